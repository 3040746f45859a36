#include "graph/passes/affine.h"

#include <algorithm>
#include <cmath>

#include "src/base/half.h"

namespace lathe {

void Affine::then(const Affine& next) {
  for (size_t c = 0; c < scale.size(); ++c) {
    scale[c] *= next.scale[c];
    shift[c] = shift[c] * next.scale[c] + next.shift[c];
  }
}

bool Affine::scales() const {
  return std::any_of(scale.begin(), scale.end(), [](double factor) { return factor != 1; });
}

bool Affine::shifts() const {
  return std::any_of(shift.begin(), shift.end(), [](double summand) { return summand != 0; });
}

bool is_real(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

Tensor as_float32(const Tensor& tensor) {
  if (tensor.dtype() == DType::f32) return tensor;
  Tensor result(DType::f32, tensor.dims());
  const auto bits = tensor.elements<uint16_t>();
  std::transform(bits.begin(), bits.end(), result.mutable_data<float>(),
                 tensor.dtype() == DType::f16 ? half_to_float : bfloat_to_float);
  return result;
}

Tensor rounded_to(const Tensor& float32, DType dtype) {
  if (dtype == DType::f32) return float32;
  Tensor result(dtype, float32.dims());
  const auto numbers = float32.elements<float>();
  std::transform(numbers.begin(), numbers.end(), result.mutable_data<uint16_t>(),
                 dtype == DType::f16 ? float_to_half : float_to_bfloat);
  return result;
}

std::vector<double> as_doubles(const Tensor& tensor) {
  const Tensor numbers = as_float32(tensor);
  const auto elements = numbers.elements<float>();
  return {elements.begin(), elements.end()};
}

Tensor as_reals(const std::vector<double>& numbers, Dims dims, DType dtype) {
  Tensor tensor(DType::f32, std::move(dims));
  std::transform(numbers.begin(), numbers.end(), tensor.mutable_data<float>(),
                 [](double x) { return static_cast<float>(x); });
  return rounded_to(tensor, dtype);
}

bool is_finite(const Tensor& tensor) {
  const Tensor numbers = as_float32(tensor);
  const auto elements = numbers.elements<float>();
  return std::all_of(elements.begin(), elements.end(), [](float x) { return std::isfinite(x); });
}

std::optional<std::vector<double>> per_channel(const Tensor& tensor, const ChannelAxis& axis) {
  if (!is_real(tensor.dtype()) || tensor.rank() > axis.rank) return std::nullopt;
  if (tensor.size() == 1) return std::vector<double>(axis.channels, as_doubles(tensor)[0]);
  const int own = tensor.rank() - (axis.rank - axis.axis);  // of the channels, in the constant
  if (own < 0 || static_cast<size_t>(tensor.size()) != axis.channels) return std::nullopt;
  if (tensor.dims()[static_cast<size_t>(own)] != tensor.size()) return std::nullopt;
  return as_doubles(tensor);
}

std::optional<Affine> affine_of_arithmetic(const Graph& graph, const Node& node, ValueId x, const ChannelAxis& axis) {
  if (node.version < 7 || node.inputs.size() != 2) return std::nullopt;
  const size_t slot = node.inputs[0] == x ? 0 : 1;
  if (node.inputs[1 - slot] == x) return std::nullopt;
  const auto constant = per_channel(constant_of(graph, node.inputs[1 - slot]), axis);
  if (!constant) return std::nullopt;
  Affine affine = Affine::none(axis.channels);
  if (is_op(node, "Mul")) {
    affine.scale = *constant;
  } else if (is_op(node, "Add")) {
    affine.shift = *constant;
  } else if (is_op(node, "Div") && slot == 0) {
    for (size_t c = 0; c < axis.channels; ++c) affine.scale[c] = 1 / (*constant)[c];
  } else if (is_op(node, "Sub")) {
    for (size_t c = 0; c < axis.channels; ++c) affine.shift[c] = (slot == 0 ? -1 : 1) * (*constant)[c];
    if (slot == 1) std::fill(affine.scale.begin(), affine.scale.end(), -1);
  } else {
    return std::nullopt;
  }
  return affine;
}

}  // namespace lathe
