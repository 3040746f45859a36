#pragma once
// A normalization by mean and variance over some axes, in the spellings of exporters:
//   d = x - mean(x);  y = d / sqrt(mean(d * d) + epsilon), perhaps * gain, perhaps + bias;
// with a reciprocal instead of the division; or, as TensorFlow writes it,
//   m = gain / sqrt(mean(d * d) + epsilon);  y = x * m + (bias - mean(x) * m).
#include <optional>
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

struct NormParts {
  ValueId x = ValueId::none, result = ValueId::none;
  float epsilon = 0;
  std::vector<int64_t> axes;                           // from the front, in order
  ValueId gain = ValueId::none, bias = ValueId::none;  // of TensorFlow's form only
  bool has_affine = false;                             // that form
};

// `id`: the node that makes y, without gain and bias but in TensorFlow's form. Needs the rank of x.
std::optional<NormParts> norm_parts(const Rewriter& rewriter, const Graph& graph, NodeId id);

}  // namespace lathe
