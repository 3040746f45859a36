#include "ops/resize/repeated_pixels.h"

#include <algorithm>

#include "ops/pointwise/pointwise_lowering.h"

namespace lathe {
namespace {

bool is_resize(const Node& node) {
  return node.op->domain.empty() && (node.op->name == "Resize" || node.op->name == "Upsample");
}

bool is_pointwise(const Node& node) {
  return node.op->express != nullptr || (node.op->domain == "lathe" && node.op->name == "Pointwise");
}

// Blocks of channels are whole vectors, repeated or not; single elements would have to be spread.
bool is_block_of_floats(const TensorType& type) {
  return type.is_static() && type.dtype == DType::f32 && type.layout.channel_block != 0;
}

// The one node that reads the result; none: there are more, or the result is the graph's.
NodeId only_reader(const Graph& graph, const std::vector<std::vector<Graph::Use>>& uses, ValueId value) {
  const std::vector<Graph::Use>& readers = uses[index_of(value)];
  const bool is_one = !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](const Graph::Use& use) {
    return use.node == readers.front().node;
  });
  return is_one && !graph.is_output(value) ? readers.front().node : NodeId::none;
}

bool takes(const Graph& graph, const Node& reader, const Node& resize) {
  if (!is_pointwise(reader) || reader.captures > 0 || reader.outputs.size() != 1) return false;
  const TensorType &small = graph.value(resize.inputs[0]).type, &large = graph.value(resize.outputs[0]).type,
                   &result = graph.value(reader.outputs[0]).type;
  return is_block_of_floats(small) && is_block_of_floats(large) && small.layout == large.layout &&
         large.layout == result.layout && result.is_static() && large.extents() == result.extents();
}

}  // namespace

RepeatedPixels::RepeatedPixels(const Graph& graph) {
  const std::vector<NodeId>& order = graph.order();
  if (std::none_of(order.begin(), order.end(), [&](NodeId id) { return is_resize(graph.node(id)); })) return;
  const std::vector<std::vector<Graph::Use>> uses = graph.uses();
  std::unordered_map<NodeId, std::vector<int64_t>> repeats_of;  // by reader
  for (const NodeId id : order) {
    const Node& node = graph.node(id);
    if (!is_resize(node) || node.epilogue || node.outputs[0] == ValueId::none) continue;
    const NodeId reader = only_reader(graph, uses, node.outputs[0]);
    if (reader == NodeId::none || !takes(graph, graph.node(reader), node)) continue;
    const auto repeats = pixel_repeats(graph, node);
    if (!repeats || repeats_of.try_emplace(reader, *repeats).first->second != *repeats) continue;
    inner_.insert(id);
    by_reader_[reader].push_back(id);
  }
}

std::span<const NodeId> RepeatedPixels::read_by(NodeId id) const {
  const auto found = by_reader_.find(id);
  return found == by_reader_.end() ? std::span<const NodeId>() : std::span<const NodeId>(found->second);
}

bool lower_with_repeats(LowerContext& reader, std::span<const NodeId> resizes) {
  const Graph& graph = reader.graph;
  RepeatedOperands repeated;
  for (const NodeId id : resizes) {
    const Node& resize = graph.node(id);
    repeated.repeats = *pixel_repeats(graph, resize);
    repeated.small.emplace_back(resize.outputs[0], resize.inputs[0]);
  }
  return lower_pointwise_with(reader, repeated);
}

}  // namespace lathe
