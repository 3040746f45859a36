#include "ops/resize/repeated_pixels.h"

#include <unordered_map>

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

bool takes(const Graph& graph, const Node& reader, const Node& resize) {
  if (!is_pointwise(reader) || reader.captures > 0 || reader.outputs.size() != 1) return false;
  const TensorType &small = graph.value(resize.inputs[0]).type, &large = graph.value(resize.outputs[0]).type,
                   &result = graph.value(reader.outputs[0]).type;
  return is_block_of_floats(small) && is_block_of_floats(large) && small.layout == large.layout &&
         large.layout == result.layout && result.is_static() && large.extents() == result.extents();
}

}  // namespace

std::vector<std::vector<NodeId>> repeated_pixels(const Graph& graph, const SoleReaders& readers) {
  std::unordered_map<NodeId, std::vector<int64_t>> repeats_of;  // by reader
  std::unordered_map<NodeId, std::vector<NodeId>> resizes_of;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!is_resize(node) || node.epilogue || node.outputs[0] == ValueId::none) continue;
    const NodeId reader = readers.of(node.outputs[0]);
    if (reader == NodeId::none || !takes(graph, graph.node(reader), node)) continue;
    const auto repeats = pixel_repeats(graph, node);
    if (!repeats || repeats_of.try_emplace(reader, *repeats).first->second != *repeats) continue;
    resizes_of[reader].push_back(id);
  }
  std::vector<std::vector<NodeId>> found;
  for (auto& [reader, nodes] : resizes_of) {
    nodes.push_back(reader);
    found.push_back(std::move(nodes));
  }
  return found;
}

bool lower_with_repeats(std::span<const LowerContext> nodes) {
  RepeatedOperands repeated;
  for (const LowerContext& resize : nodes.first(nodes.size() - 1)) {
    repeated.repeats = *pixel_repeats(resize.graph, resize.node);
    repeated.small.emplace_back(resize.output(0), resize.input(0));
  }
  LowerContext reader = nodes.back();
  return lower_pointwise_with(reader, repeated);
}

}  // namespace lathe
