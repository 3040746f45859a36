#pragma once
// What passes ask about quantized values.
#include <optional>

#include "graph/passes/rewrite.h"

namespace lathe {

// A float32 value that is scale * (bytes - zero), the scale constant and the zero point constant or absent.
struct Dequantized {
  NodeId node = NodeId::none;
  ValueId bytes = ValueId::none;
  ValueId zero = ValueId::none;  // none: 0
  Tensor scale;
  int64_t axis = 0;  // of several scales; not negative
  bool is_per_tensor() const { return scale.size() == 1; }
};

// The DequantizeLinear of u8 or i8 (or i32, for biases) that makes this value. Needs the rank for several scales.
std::optional<Dequantized> dequantized(Rewriter& rewriter, ValueId id);

// Products of integers (lathe::QuantizedMatMul, QuantizedConv): their epilogues read and store bytes, too.
bool is_integer_product(const Node& node);

}  // namespace lathe
