#pragma once
// What passes that make one convolution of several ask and build.
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

// Windows that step, spread and pad alike over kernels of one size. Requires: constant weights.
bool same_window(const Graph& graph, const Node& a, const Node& b);

// The rows of all float32 parts behind one another, under these extents.
Tensor joined_rows(const std::vector<Tensor>& parts, Dims dims);

// The constant float32 bias of a convolution, zeros for none; undefined for any other.
Tensor bias_of(const Graph& graph, const Node& convolution);

}  // namespace lathe
