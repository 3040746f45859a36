#include "ops/body_types.h"

#include <algorithm>

namespace lathe {

TensorType common_type(const TensorType& a, const TensorType& b) {
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
      if (round == kRounds) states[i] = TensorType::unranked(states[i].dtype);
      inputs[first_input + i] = states[i];
    }
    std::vector<TensorType> outputs = context.infer_body(body, inputs);
    if (outputs.size() < first_output + states.size()) context.fail("its body gives too few outputs");
    bool is_stable = true;
    for (size_t i = 0; i < states.size(); ++i) {
      const TensorType& next = outputs[first_output + i];
      if (next.dtype != DType::undefined && states[i].dtype != DType::undefined && next.dtype != states[i].dtype) {
        context.fail("state " + std::to_string(i) + " is " + std::string(name_of(states[i].dtype)) +
                     ", its body gives " + std::string(name_of(next.dtype)));
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
