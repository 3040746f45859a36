#include "ops/body_types.h"

#include <algorithm>

namespace lathe {

namespace {

// Of two types of which one at least is an object's.
TensorType common_object(const TensorType& a, const TensorType& b) {
  using Kind = ContainerType::Kind;
  if (a.dtype == DType::undefined) return b;
  if (b.dtype == DType::undefined || a == b) return a;
  if ((a.is_object() && !a.container) || (b.is_object() && !b.container)) return TensorType::unranked(DType::object);
  const auto is = [](const TensorType& type, Kind kind) { return type.container && type.container->kind == kind; };
  const auto element = [&](const TensorType& type) {
    return is(type, Kind::optional) ? type.container->element : type;
  };
  if (is(a, Kind::optional) || is(b, Kind::optional)) {
    return TensorType::optional_of(common_type(element(a), element(b)));
  }
  if (!a.container || !b.container || a.container->kind != b.container->kind) {
    return TensorType::unranked(DType::object);
  }
  const TensorType inner = common_type(a.container->element, b.container->element);
  return is(a, Kind::map) ? TensorType::map_of(a.container->key, inner) : TensorType::sequence_of(inner);
}

}  // namespace

TensorType common_type(const TensorType& a, const TensorType& b) {
  if (a.is_object() || b.is_object()) return common_object(a, b);
  const DType dtype = a.dtype == DType::undefined ? b.dtype : a.dtype;
  if (!a.has_rank || !b.has_rank || a.rank() != b.rank()) return TensorType::unranked(dtype);
  TensorType result = a;
  result.dtype = dtype;
  for (size_t i = 0; i < result.dims.size(); ++i) {
    if (a.dims[i] != b.dims[i]) result.dims[i] = Dim();
  }
  return result;
}

std::vector<TensorType> infer_iterated(const InferContext& context, const Graph& body, std::vector<TensorType> inputs,
                                       size_t first_input, size_t first_output, std::vector<TensorType>& states) {
  // Each round loses at least one extent; what has not settled after a few is given up altogether.
  constexpr int kRounds = 6;
  for (int round = 0;; ++round) {
    for (size_t i = 0; i < states.size(); ++i) {
      if (round == kRounds) states[i] = states[i].without_shape();
      inputs[first_input + i] = states[i];
    }
    std::vector<TensorType> outputs = context.infer_body(body, inputs);
    if (outputs.size() < first_output + states.size()) context.fail("its body gives too few outputs");
    bool is_stable = true;
    for (size_t i = 0; i < states.size(); ++i) {
      const TensorType& next = outputs[first_output + i];
      if (!may_agree(next, states[i])) {
        context.fail("state " + std::to_string(i) + " is " + to_string(states[i].without_shape()) +
                     ", its body gives " + to_string(next.without_shape()));
      }
      TensorType common = common_type(states[i], next);
      is_stable = is_stable && common == states[i];
      states[i] = std::move(common);
    }
    if (is_stable || round == kRounds) return outputs;
  }
}

TensorType with_axis(const TensorType& type, int64_t axis, Dim dim) {
  if (!type.has_rank) return type;
  if (axis < 0) axis += type.rank() + 1;
  if (axis < 0 || axis > type.rank()) return TensorType::unranked(type.dtype);
  TensorType result = type;
  result.dims.insert(result.dims.begin() + axis, std::move(dim));
  return result;
}

TensorType without_axis(const TensorType& type, int64_t axis) {
  if (!type.has_rank) return type;
  if (axis < 0) axis += type.rank();
  if (axis < 0 || axis >= type.rank()) return TensorType::unranked(type.dtype);
  TensorType result = type;
  result.dims.erase(result.dims.begin() + axis);
  return result;
}

}  // namespace lathe
