#pragma once
// A Resize to the nearest that repeats each pixel a whole number of times, of which pointwise work is the only reader:
// it reads the small picture itself, again and again, and the large one is never written.
#include <optional>
#include <span>
#include <vector>

#include "ops/lower.h"
#include "ops/sole_readers.h"

namespace lathe {

// How often each element is repeated along each axis behind the channels; nullopt: the node (a Resize or Upsample) does
// something else, or its extents and parameters are not known.
std::optional<std::vector<int64_t>> pixel_repeats(const Graph& graph, const Node& node);

// Such Resizes, all with the same repeats, and their reader behind them.
std::vector<std::vector<NodeId>> repeated_pixels(const Graph& graph, const SoleReaders& readers);

// One step for pointwise work, the last of the nodes, and the Resizes that it reads. False: no kernels can be emitted;
// lower each by itself.
bool lower_with_repeats(std::span<const LowerContext> nodes);

}  // namespace lathe
