// Values that are quantized and dequantized. Only inputs are quantized, and what follows exactly from such bytes: the
// rounding of a sum must not decide about a whole step.
#include <algorithm>
#include <numeric>

#include "tests/fuzz/graph_maker.h"

namespace lathe::testing {
namespace {

struct Scale {
  ValueId scale, zero;
};

Scale scale_of(GraphMaker& maker, float scale, bool is_signed) {
  Tensor zero(is_signed ? DType::i8 : DType::u8, {});
  *static_cast<uint8_t*>(zero.mutable_raw()) = is_signed ? 3 : 120;
  return {maker.scalar(scale), maker.constant(zero)};
}
ValueId quantized(GraphMaker& maker, ValueId x, const Scale& by) {
  return maker.node("QuantizeLinear", {x, by.scale, by.zero});
}
ValueId dequantized(GraphMaker& maker, ValueId x, const Scale& by) {
  return maker.node("DequantizeLinear", {x, by.scale, by.zero});
}

// What moves elements without changing them.
ValueId moved(GraphMaker& maker, ValueId y, const Recipe& recipe) {
  const Dims dims = maker.dims_of(y);
  if (recipe.picks[1] % 4 == 0) {
    std::vector<int64_t> perm(dims.size());
    std::iota(perm.rbegin(), perm.rend(), int64_t{0});
    return maker.node("Transpose", {y}, {{"perm", perm}});
  }
  if (recipe.picks[1] % 4 == 1) return maker.node("Flatten", {y}, {{"axis", int64_t{1}}});
  if (recipe.picks[1] % 4 == 2 && dims.size() == 4 && std::min(dims[2], dims[3]) > 1)
    return maker.node("MaxPool", {y}, {{"kernel_shape", std::vector<int64_t>{2, 2}}});
  return y;
}

// Dequantized, moved, and quantized again: the same way, or nearly.
void quantized_twice(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.inputs()[recipe.picks[0] % maker.inputs().size()];
  const bool is_signed = recipe.picks[2] % 2 == 0;
  const Scale first = scale_of(maker, 0.021f, is_signed);
  const Scale second = recipe.picks[2] % 5 == 0 ? scale_of(maker, 0.0334f, is_signed) : first;
  ValueId y = dequantized(maker, quantized(maker, x.id, first), first);
  if (recipe.picks[3] % 5 == 0) maker.keep(y);
  y = moved(maker, y, recipe);
  if (recipe.picks[3] % 7 == 0) maker.keep(y);
  y = dequantized(maker, quantized(maker, y, second), second);
  maker.keep(recipe.picks[3] % 3 == 0 ? maker.node("Relu", {y}) : y);
}

Tensor noise_bytes(const Dims& dims, uint32_t seed) {
  Tensor bytes(DType::i8, dims);
  std::mt19937 random(seed);
  for (int64_t i = 0; i < bytes.size(); ++i)
    bytes.mutable_data<int8_t>()[i] = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  return bytes;
}

// A product or convolution of bytes.
void product_of_bytes(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.inputs()[recipe.picks[0] % maker.inputs().size()];
  if (x.dims.size() < 2) return;
  const Scale by = scale_of(maker, 0.021f, recipe.picks[1] % 2 == 0);
  const ValueId left = dequantized(maker, quantized(maker, x.id, by), by);
  const bool is_conv = x.dims.size() == 4 && recipe.picks[1] % 3 != 0;
  const int64_t inputs = is_conv ? x.dims[1] : x.dims.back(), outputs = 10;
  const bool by_channel = recipe.picks[2] % 2 == 0;
  const Tensor bytes = noise_bytes(is_conv ? Dims{outputs, inputs, 3, 3} : Dims{inputs, outputs}, recipe.picks[3]);
  const ValueId scales = by_channel ? maker.weights({outputs}, 0.004f, 0.008f) : maker.scalar(0.006f);
  const ValueId zero = maker.constant(Tensor(DType::i8, by_channel ? Dims{outputs} : Dims{}));
  const ValueId right =
      maker.node("DequantizeLinear", {maker.constant(bytes), scales, zero}, {{"axis", int64_t{is_conv ? 0 : 1}}});
  if (recipe.picks[2] % 7 == 0) maker.keep(left);
  ValueId y = is_conv ? maker.node("Conv", {left, right}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}})
                      : maker.node("MatMul", {left, right});
  if (!is_conv && recipe.picks[2] % 3 == 0) y = maker.node("Add", {y, maker.weights({outputs})});
  maker.keep(recipe.picks[3] % 2 == 0 ? maker.node("Relu", {y}) : y);
}

}  // namespace

const std::vector<PatternFn*>& byte_patterns() {
  static const std::vector<PatternFn*> kPatterns = {quantized_twice, product_of_bytes};
  return kPatterns;
}

}  // namespace lathe::testing
