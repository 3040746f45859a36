// Convolutions of the parts of a Split, joined again in their order, are one convolution of groups: no parts to copy,
// and one step. The other way round is the kernels' business: groups narrower than a block of channels run as one
// dense block with zeros between them.
#include <algorithm>

#include "graph/passes/convolution_parts.h"
#include "graph/passes/passes.h"

namespace lathe::passes {
namespace {

// Wider parts of more than one tap run by Winograd's method each, which is worth more than the copies, and has groups
// only where they are whole blocks of channels.
constexpr int64_t kMostChannels = 32;

class Grouper {
 public:
  explicit Grouper(Rewriter& rewriter) : rewriter_(rewriter), graph_(rewriter.graph()) {}

  void try_concat(NodeId id) {
    const Node& concat = graph_.node(id);
    if (!is_op(concat, "Concat") || concat.epilogue || concat.inputs.size() < 2 ||
        !is_along_channels(concat, concat.outputs[0], concat.attributes.get_int("axis", 0))) {
      return;
    }
    parts_.clear();
    split_ = NodeId::none;
    for (const ValueId input : concat.inputs) {
      const NodeId part = rewriter_.producer_if(input, "Conv");
      if (part == NodeId::none || rewriter_.only_user(input) != id || !takes(part)) return;
      parts_.push_back(part);
    }
    if (graph_.node(split_).outputs.size() == parts_.size()) group(id);
  }

 private:
  bool is_along_channels(const Node& node, ValueId like, int64_t axis) const {
    const TensorType& type = graph_.value(like).type;
    return !node.outputs.empty() && type.has_rank && type.rank() >= 3 && (axis < 0 ? axis + type.rank() : axis) == 1;
  }

  // The convolution of the next part.
  bool takes(NodeId id) {
    const Node& node = graph_.node(id);
    const ValueId read = node.inputs[0];
    const NodeId split = graph_.value(read).producer;
    if (split == NodeId::none || !is_op(graph_.node(split), "Split") || graph_.node(split).epilogue) return false;
    const std::vector<ValueId>& all = graph_.node(split).outputs;
    if (parts_.size() >= all.size() || all[parts_.size()] != read) return false;
    if (split_ == NodeId::none) {
      split_ = split;
      if (!is_along_channels(graph_.node(split), graph_.node(split).inputs[0],
                             graph_.node(split).attributes.get_int("axis", 0))) {
        return false;
      }
    }
    const Tensor weights = constant_of(graph_, node.inputs[1]);
    if (split != split_ || rewriter_.only_user(read) != id || !weights.defined() || weights.dtype() != DType::f32 ||
        !bias_of(graph_, node).defined()) {
      return false;
    }
    const Node& first = parts_.empty() ? node : graph_.node(parts_[0]);
    return same_window(graph_, first, node) && constant_of(graph_, first.inputs[1]).dims() == weights.dims() &&
           first.attributes.get_int("group", 1) == node.attributes.get_int("group", 1) && !is_wide(weights.dims());
  }

  static bool is_wide(const Dims& weights) {
    const bool has_one_tap =
        std::all_of(weights.begin() + 2, weights.end(), [](int64_t extent) { return extent == 1; });
    return !has_one_tap && weights[1] > kMostChannels;
  }

  void group(NodeId concat) {
    std::vector<Tensor> weights, biases;
    for (const NodeId id : parts_) {
      weights.push_back(constant_of(graph_, graph_.node(id).inputs[1]));
      biases.push_back(bias_of(graph_, graph_.node(id)));
    }
    const auto count = static_cast<int64_t>(parts_.size());
    Dims dims = weights[0].dims();
    dims[0] *= count;
    Node made = graph_.node(parts_[0]);
    const std::string name = made.name;
    made.inputs = {graph_.node(split_).inputs[0], rewriter_.add_constant(name + "/weights", joined_rows(weights, dims)),
                   rewriter_.add_constant(name + "/bias", joined_rows(biases, {dims[0]}))};
    made.attributes.set("group", made.attributes.get_int("group", 1) * count);
    made.fused_from = (made.fused_from.empty() ? std::string("Conv") : made.fused_from) + " x" + std::to_string(count);
    made.outputs = {ValueId::none};
    const ValueId result = graph_.node(concat).outputs[0];
    for (const NodeId id : parts_) rewriter_.erase(id);
    rewriter_.erase(split_);
    rewriter_.erase(concat);
    rewriter_.move_output(result, rewriter_.add(std::move(made), concat));
  }

  Rewriter& rewriter_;
  Graph& graph_;
  std::vector<NodeId> parts_;
  NodeId split_ = NodeId::none;
};

}  // namespace

bool group_convolutions(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  Grouper grouper(rewriter);
  return rewrite_each(rewriter, [&](NodeId id) { grouper.try_concat(id); });
}

}  // namespace lathe::passes
