#pragma once
// A Resize to the nearest that repeats each pixel a whole number of times, of which pointwise work is the only reader:
// it reads the small picture itself, again and again, and the large one is never written.
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ops/lower.h"

namespace lathe {

// How often each element is repeated along each axis behind the channels; nullopt: the node (a Resize or Upsample) does
// something else, or its extents and parameters are not known.
std::optional<std::vector<int64_t>> pixel_repeats(const Graph& graph, const Node& node);

class RepeatedPixels {
 public:
  explicit RepeatedPixels(const Graph& graph);

  // A Resize that belongs to its reader.
  bool is_inner(NodeId id) const { return inner_.contains(id); }
  // The Resizes of this node's operands, all with the same repeats; mostly none.
  std::span<const NodeId> read_by(NodeId id) const;

 private:
  std::unordered_set<NodeId> inner_;
  std::unordered_map<NodeId, std::vector<NodeId>> by_reader_;
};

// One step for pointwise work and the Resizes that it reads. False: no kernels can be emitted; lower each by itself.
bool lower_with_repeats(LowerContext& reader, std::span<const NodeId> resizes);

}  // namespace lathe
