#pragma once
// What passes ask of convolutions, and build of several.
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

// Windows that step, spread and pad alike over kernels of one size. Requires: constant weights.
bool same_window(const Graph& graph, const Node& a, const Node& b);

// Of a convolution or pool: nothing is added around the picture.
bool has_no_pads(const Node& node);
// It steps from each pixel to the next.
bool has_unit_strides(const Node& node);
// Of a convolution: its window is one pixel, with nothing added around, so that each result is of one pixel.
bool is_of_pixels(const Graph& graph, const Node& conv);

// The rows of all float32 parts behind one another, under these extents.
Tensor joined_rows(const std::vector<Tensor>& parts, Dims dims);

// The constant float32 bias of a convolution, zeros for none; undefined for any other.
Tensor bias_of(const Graph& graph, const Node& convolution);

}  // namespace lathe
