#pragma once
// What all lowerings of lathe::QuantizedConv read from the node: zero points, bias, packed weights with their sums, and
// the epilogue with the scale in it.
#include <functional>
#include <optional>
#include <vector>

#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/common/int8_store.h"
#include "ops/conv/conv_operands.h"
#include "ops/int8/int8_pack.h"
#include "ops/lower.h"
#include "ops/pointwise/byte_table.h"

namespace lathe {

struct ConvInt8Operands {
  BoundEpilogue bound;
  Int8Store store;
  std::optional<ByteTable> table = {};  // for all that was stored, in a step behind
};
// scale * sum, what follows it, and the operands of both; without a scale int32 sums. nullopt: types or operands that
// the kernels lack.
std::optional<ConvInt8Operands> bind_conv_int8_operands(const LowerContext& context, const Dims& out, int lanes);

struct ConvInt8Zeros {
  std::optional<int32_t> input;  // nullopt: it comes with each run
  std::vector<int32_t> weights;  // one for all or for each channel
};
// nullopt: they have types or numbers that the kernels lack.
std::optional<ConvInt8Zeros> conv_int8_zeros(const LowerContext& context, int64_t channels);

// Bytes where weights are signed and have no zero point, or 16 bits.
Int8Dot conv_int8_dot(const LowerContext& context, const ConvInt8Zeros& zeros);
// The same over channels of an input of this type; also bytes where weights are of seven bits, or the input's bytes
// mostly small.
Int8Dot conv_int8_sums_dot(const LowerContext& context, const TensorType& input, const ConvInt8Zeros& zeros);

// What is taken off the input's bytes, as unsigned ones, so that they are as mostly small ones are, if none of them is
// less: those behind SiLU, GELU or a rectifier that were quantized without a zero point of their own. nullopt: they are
// as they are, or `dot` multiplies any.
std::optional<int32_t> conv_int8_least(const LowerContext& context, const TensorType& input, const ConvInt8Zeros& zeros,
                                       Int8Dot dot);

// A bias is there for all channels, or absent.
bool has_conv_int8_bias(const LowerContext& context, int64_t channels);
bool has_conv_elements(const LowerContext& context);

ByteMatrix conv_weight_rows(const Tensor& weights, int64_t channels);
ByteZeros view_of_zeros(const std::vector<int32_t>& zeros);

// Packed weights with the sums of each channel's behind them.
struct ConvInt8Weights {
  Tensor packed;
  int64_t sums_at = 0;  // bytes

  // What the sums of a run begin with: -in_zero * sum, and the bias if there is one.
  void fill_init(const void* packed_at, int32_t in_zero, const Tensor& bias, int32_t* init, int64_t count) const;
};
// `format`: of the weights before their sums, which take `bytes`. `pack` fills in both.
ConvInt8Weights pack_conv_int8(const LowerContext& context, const std::string& format,
                               const std::vector<int32_t>& zeros, int64_t bytes, int64_t channels,
                               const std::function<void(void* weights, int32_t* sums)>& pack);

// The zero point that sums have in them.
struct ConvInt8ZeroInSums {
  std::optional<int32_t> known;
  BufferId at = BufferId::none;                         // else: the input's, which comes with the run,
  std::function<int32_t(const void* at)> of = nullptr;  // and what it is in sums
};
// The buffer of what sums begin with; filled by a step where the input's zero point comes with the run.
BufferId conv_int8_init(const LowerContext& context, const ConvInt8Weights& weights, BufferId packed,
                        const ConvInt8ZeroInSums& zero, int64_t count);

}  // namespace lathe
