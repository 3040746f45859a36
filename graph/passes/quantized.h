#pragma once
// What passes ask about quantized values.
#include <cstdint>
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

// Bytes, with no zero points or those of one type, one for all or one for each index of the first axis.
bool can_center(const Tensor& bytes, const Tensor& zeros);
// visit(element, value) of bytes less their zero points. Requires: can_center().
template <class Visit>
void for_each_centered(const Tensor& bytes, const Tensor& zeros, Visit visit) {
  const auto at = [](const Tensor& tensor, int64_t i) {
    return tensor.dtype() == DType::i8 ? int{tensor.data<int8_t>()[i]} : int{tensor.data<uint8_t>()[i]};
  };
  const int64_t rows = bytes.dims()[0], row = rows == 0 ? 0 : bytes.size() / rows;
  for (int64_t i = 0; i < bytes.size(); ++i) {
    const int zero = zeros.defined() ? at(zeros, zeros.size() == 1 ? 0 : i / row) : 0;
    visit(i, at(bytes, i) - zero);
  }
}

// Weights, one row for each channel, as signed bytes without zero points, which products of bytes multiply as they are;
// undefined: they are so already, or a difference does not fit, or !can_center().
Tensor centered_bytes(const Tensor& weights, const Tensor& zeros);

// So many products of two bytes less their zero points have a sum that 32 bits hold, whatever the bytes are.
constexpr int64_t kMostBytePairs = INT32_MAX / (255 * 255);

// A convolution by weights of this type sums up all channels, those of a group, or its own channel alone, under a
// window of moderate size, in sums that fit 32 bits: what lathe::QuantizedConv has kernels for. Other ones run in
// float32.
bool has_integer_kernel(const Node& conv, const TensorType& weights);

// lathe::QuantizedConv with the attributes of `old`. Inputs: x, weights, scale, x's zero point, the weights', bias.
// Constant weights become signed bytes without zero points where that is possible.
Node quantized_conv(Rewriter& rewriter, const OpSchema& schema, const Node& old, const char* fused_from,
                    std::vector<ValueId> inputs);

// Adds the node with a float32 value of its own as output, of the shape of `like`.
ValueId append_float(Rewriter& rewriter, Node node, ValueId like, NodeId place);

// Gives all elements of its first input, in another order or shape.
bool rearranges_elements(const Node& node);

// Products of integers (lathe::QuantizedMatMul, QuantizedConv): their epilogues read and store bytes, too.
bool is_integer_product(const Node& node);

}  // namespace lathe
