#include "ops/constant_release.h"

#include <algorithm>

namespace lathe {
namespace {

constexpr size_t kWorthwhileBytes = 16 << 10;
constexpr long kHolders = 2;  // of a constant that only this graph has: its value and its buffer

bool is_read(const LoweredGraph& lowered, BufferId buffer) {
  const auto reads = [&](const Step& step) {
    return std::find(step.reads.begin(), step.reads.end(), buffer) != step.reads.end();
  };
  const auto lies_inside = [&](const Buffer& other) { return other.inside == buffer; };
  return std::any_of(lowered.steps.begin(), lowered.steps.end(), reads) ||
         std::any_of(lowered.buffers.begin(), lowered.buffers.end(), lies_inside);
}

}  // namespace

ConstantRelease::ConstantRelease(Graph& graph, const PackedWeights& packed)
    : graph_(graph), packed_(packed), readers_(graph.value_count()) {
  for (NodeId id : graph.order())
    for (ValueId input : graph.node(id).inputs)
      if (input != ValueId::none) ++readers_[index_of(input)];
  for (ValueId output : graph.outputs) ++readers_[index_of(output)];
}

bool ConstantRelease::may_go(ValueId id, const LoweredGraph& lowered) const {
  const Tensor& constant = graph_.value(id).constant;
  return constant.defined() && constant.bytes() >= kWorthwhileBytes && constant.owner().use_count() == kHolders &&
         packed_.contains(constant) && !is_read(lowered, lowered.of_value[index_of(id)]);
}

void ConstantRelease::after_lowering(NodeId node, LoweredGraph& lowered) {
  for (ValueId input : graph_.node(node).inputs) {
    if (input == ValueId::none || --readers_[index_of(input)] > 0 || !may_go(input, lowered)) continue;
    lowered.buffer(lowered.of_value[index_of(input)]) = Buffer();
    graph_.value(input).constant = Tensor();
  }
}

}  // namespace lathe
