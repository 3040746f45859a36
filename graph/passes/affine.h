#pragma once
// Products and sums with constants along one axis of a value: what weights before and behind them can take in.
#include <optional>
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

// Axis number `axis` of a value of `rank` axes, which has `channels` elements.
struct ChannelAxis {
  size_t channels = 0;
  int rank = 0;
  int axis = 1;
};

// y = scale * x + shift, per channel. In double: several of them in a row are joined before they are rounded.
struct Affine {
  std::vector<double> scale, shift;

  static Affine none(size_t channels) { return {std::vector<double>(channels, 1), std::vector<double>(channels, 0)}; }
  void then(const Affine& next);
  bool scales() const;  // some factor is not 1
  bool shifts() const;  // some summand is not 0
};

// What weights are made of: float32, float16 or bfloat16. The functions below want tensors of these.
bool is_real(DType dtype);
std::vector<double> as_doubles(const Tensor& tensor);
Tensor as_reals(const std::vector<double>& numbers, Dims dims, DType dtype = DType::f32);  // rounded; may overflow
Tensor as_float32(const Tensor& tensor);                                                   // shared when it is
Tensor rounded_to(const Tensor& float32, DType dtype);
bool is_finite(const Tensor& tensor);

// A constant that spreads along this axis only (or has one element), one element per channel.
std::optional<std::vector<double>> per_channel(const Tensor& tensor, const ChannelAxis& axis);

// Mul, Add, Div or Sub of `x` and such a constant; `x` may be on either side of all but Div.
std::optional<Affine> affine_of_arithmetic(const Graph& graph, const Node& node, ValueId x, const ChannelAxis& axis);

}  // namespace lathe
