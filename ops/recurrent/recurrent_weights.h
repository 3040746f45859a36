#pragma once
// W and R in the form that products read.
#include <functional>
#include <optional>
#include <string>

#include "ops/int8/dynamic_product.h"
#include "ops/lower.h"

namespace lathe {

// Inputs of the nodes. The last four are DynamicQuantizeLSTM's.
enum RecurrentInput { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kPeepholes, kWScale, kWZero, kRScale, kRZero };

struct PackedForm {
  std::string text;  // tells it from other forms of the same weights
  int64_t bytes = 0;
  std::function<void(const char* weights, const char* zero_points, void* out)> pack;  // of all directions
};
// Packed at load where the operands are constant, by a step of every run otherwise. `zeros`: none for float32.
BufferId packed_weights(const LowerContext& context, RecurrentInput weights, std::optional<RecurrentInput> zeros,
                        const PackedForm& form);

// The scales and zero points of DynamicQuantizeLSTM's W or R: one for each direction, or for each column of each.
struct ByteOperands {
  RecurrentInput weights, scale, zero;
};
inline constexpr ByteOperands kWBytes{kW, kWScale, kWZero}, kRBytes{kR, kRScale, kRZero};
// nullopt: types or shapes that the products lack. `columns`: of one direction.
std::optional<ByteWeights> byte_weights(const LowerContext& context, const ByteOperands& operands, int64_t direction,
                                        int64_t directions, int64_t columns);
// How many elements an operand has for each direction.
int64_t elements_by_direction(const LowerContext& context, RecurrentInput input, int64_t directions);
// The zero points of a direction, which lie behind those of the directions before.
ByteZeros zeros_of_direction(const LowerContext& context, RecurrentInput input, const char* all, int64_t direction,
                             int64_t directions);

}  // namespace lathe
