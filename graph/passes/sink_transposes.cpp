// Transposes move down through pointwise nodes, Concat, and what names its axes (Pad, Resize, Split, reductions, ...)
// until they meet their inverse, or a node that takes them in. TensorFlow's graphs, full of them between picture
// orders, lose them so.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"
#include "graph/passes/turn_axes.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;

// Of pointwise nodes that a Transpose with several readers sinks through at once.
constexpr size_t kLargestRegion = 32;

// Elements depend on those at their own place only, and operands broadcast.
bool is_pointwise(const Node& node) {
  return node.op->domain.empty() && node.op->express != nullptr && !node.attributes.has("axis") &&
         !node.attributes.has("broadcast") && node.outputs.size() == 1 &&
         !is_one_of(node, {"QuantizeLinear", "DequantizeLinear"}) &&
         // Older ones have slopes per channel, not by broadcasting.
         !(is_one_of(node, {"PRelu"}) && node.version < 7);
}

class Sinker {
 public:
  Sinker(Rewriter& rewriter, const PassContext& context)
      : rewriter_(rewriter), graph_(rewriter.graph()), ops_(context.ops) {}

  bool try_node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.epilogue || node.captures > 0 || node.outputs.empty() || node.outputs[0] == ValueId::none) return false;
    if (is_op(node, "Shape")) return move_below_shape(id);
    if (is_op(node, "Transpose")) return false;
    if (!is_one_of(node, {"Concat"}) && !is_pointwise(node)) return move_below_axes(id);
    if (!find_transposes(node) || !(frees_one_ || is_in_region(id)) || !fits(node)) return false;
    move_below(id);
    return true;
  }

  // A Transpose that several nodes read goes through all of them, when at most one Transpose is left behind them.
  void find_regions() {
    for (const NodeId id : graph_.order()) {
      if (!is_op(graph_.node(id), "Transpose") || graph_.node(id).epilogue) continue;
      const ValueId result = graph_.node(id).outputs[0];
      if (result == ValueId::none || rewriter_.is_output(result) || rewriter_.only_user(result) != NodeId::none)
        continue;
      for (const NodeId member : region_below(id)) {
        in_region_.resize(std::max(in_region_.size(), index_of(member) + 1), false);
        in_region_[index_of(member)] = true;
      }
    }
  }

 private:
  bool is_in_region(NodeId id) const { return index_of(id) < in_region_.size() && in_region_[index_of(id)]; }

  // The Transposes before the node, all of one order. frees_one_: one of them is read by nobody else.
  bool find_transposes(const Node& node) {
    perm_.clear();
    transposes_.assign(node.inputs.size(), NodeId::none);
    frees_one_ = false;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const ValueId input = node.inputs[slot];
      const NodeId transpose = rewriter_.producer_if(input, "Transpose");
      if (transpose == NodeId::none) continue;
      const Perm perm = order_of(graph_, graph_.node(transpose));
      if (perm.empty() || (!perm_.empty() && perm != perm_)) return false;
      perm_ = perm;
      transposes_[slot] = transpose;
      frees_one_ = frees_one_ || rewriter_.only_user(input) != NodeId::none;
    }
    return !perm_.empty();
  }

  // The same in any order of axes, or a constant that can be put in order.
  bool turns_freely(const Node& node, ValueId input) const {
    const int rank = graph_.value(node.outputs[0]).type.rank();
    const Value& value = graph_.value(input);
    if (is_one_of(node, {"Concat"})) return false;
    if (is_scalar(value.type) && value.type.rank() <= rank) return true;
    return value.is_constant() && value.constant.rank() <= rank;
  }

  bool fits(const Node& node) const {
    const TensorType& result = graph_.value(node.outputs[0]).type;
    if (!result.has_rank || result.rank() != static_cast<int>(perm_.size())) return false;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      if (transposes_[slot] != NodeId::none || node.inputs[slot] == ValueId::none) continue;
      if (!turns_freely(node, node.inputs[slot])) return false;
    }
    return true;
  }

  // A reduction that keeps its axes, or one behind which the others are in order as they are.
  bool is_reduction(const Node& node, const Perm& perm) const {
    if (!is_one_of(node, {"ReduceMean", "ReduceMax", "ReduceSum"}) || node.epilogue ||
        node.inputs[0] == ValueId::none) {
      return false;
    }
    const ValueId list = input_or_none(node, 1);
    const auto axes =
        list == ValueId::none ? std::optional(node.attributes.get_ints("axes")) : integers_of(graph_, list);
    const TensorType& type = graph_.value(node.inputs[0]).type;
    if (!axes || axes->empty() || !type.has_rank || !graph_.value(node.outputs[0]).type.has_rank) return false;
    if (node.attributes.get_int("keepdims", 1) != 0) return true;
    Perm kept;
    for (int64_t axis = 0; axis < type.rank(); ++axis) {
      const auto is_named = [&](int64_t each) { return each == axis || each + type.rank() == axis; };
      if (std::none_of(axes->begin(), axes->end(), is_named)) kept.push_back(perm[static_cast<size_t>(axis)]);
    }
    return std::is_sorted(kept.begin(), kept.end());
  }

  // Pointwise nodes and reductions that could read the value before this Transpose, or one another, instead. Empty:
  // there would be more Transposes behind them than before.
  std::vector<NodeId> region_below(NodeId transpose) const {
    const Perm perm = order_of(graph_, graph_.node(transpose));
    std::vector<ValueId> turned{graph_.node(transpose).outputs[0]};
    std::vector<NodeId> region;
    const auto is_member = [&](NodeId id) { return std::find(region.begin(), region.end(), id) != region.end(); };
    const auto joins = [&](const Node& node) {
      if (is_reduction(node, perm)) return true;
      if (node.epilogue || node.captures > 0 || node.outputs.empty() || !is_pointwise(node)) return false;
      const TensorType& result = graph_.value(node.outputs[0]).type;
      if (!result.has_rank || result.rank() != static_cast<int>(perm.size())) return false;
      return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
        if (input == ValueId::none || std::find(turned.begin(), turned.end(), input) != turned.end()) return true;
        const NodeId other = rewriter_.producer_if(input, "Transpose");
        return other != NodeId::none ? order_of(graph_, graph_.node(other)) == perm : turns_freely(node, input);
      });
    };
    for (bool grows = true; grows;) {
      grows = false;
      const std::vector<ValueId> values = turned;
      for (const ValueId value : values) {
        for (const Graph::Use use : rewriter_.uses(value)) {
          if (is_member(use.node) || !joins(graph_.node(use.node))) continue;
          if (region.size() == kLargestRegion) return {};
          region.push_back(use.node);
          const ValueId result = graph_.node(use.node).outputs[0];
          if (graph_.value(result).type.rank() == static_cast<int>(perm.size())) turned.push_back(result);
          grows = true;
        }
      }
    }
    int left = 0;
    for (const ValueId value : turned) {
      bool is_read_turned = rewriter_.is_output(value);
      for (const Graph::Use use : rewriter_.uses(value)) {
        const Node& user = graph_.node(use.node);
        if (is_member(use.node)) continue;
        is_read_turned = is_read_turned || !is_op(user, "Transpose") ||
                         order_of(graph_, graph_.node(use.node)) != inverse_order(perm);
      }
      // The Transpose itself must go.
      if (value == turned[0] && is_read_turned) return {};
      left += is_read_turned;
    }
    return left <= 1 ? region : std::vector<NodeId>();
  }

  // The operand as it is to be read above the Transpose.
  ValueId above(ValueId input, NodeId transpose) {
    if (input == ValueId::none) return input;
    if (transpose != NodeId::none) return graph_.node(transpose).inputs[0];
    if (is_scalar(graph_.value(input).type)) return input;
    // A constant along the transposed axes: with leading axes of 1 it has them all, and turns back with them.
    const Tensor constant = graph_.value(input).constant;
    Dims dims(perm_.size() - constant.dims().size(), 1);
    dims.insert(dims.end(), constant.dims().begin(), constant.dims().end());
    const std::string name = graph_.value(input).name;
    const ValueId whole = rewriter_.add_constant(name, constant.reshaped(dims));
    return Rearranger(rewriter_, ops_, place_).transposed(whole, inverse_order(perm_));
  }

  void erase_unread(const std::vector<NodeId>& transposes) {
    for (const NodeId transpose : transposes) {
      if (transpose == NodeId::none || !rewriter_.is_live(transpose)) continue;
      if (!rewriter_.is_used(graph_.node(transpose).outputs[0])) rewriter_.erase(transpose);
    }
  }

  // The node over `inputs`, and behind it Transposes by `perm` that make the old results.
  void replace(NodeId id, std::vector<ValueId> inputs, const std::vector<std::pair<const char*, Attribute>>& attributes,
               const Perm& perm) {
    const std::vector<ValueId> results = graph_.node(id).outputs;
    Node moved = graph_.node(id);
    moved.inputs = std::move(inputs);
    for (const auto& [name, value] : attributes) moved.attributes.set(name, value);
    if (!is_same_order(perm)) {
      for (ValueId& result : moved.outputs) {
        if (result == ValueId::none) continue;
        TensorType type = graph_.value(result).type;
        if (type.rank() == static_cast<int>(perm.size())) type.dims = permuted(type.dims, inverse_order(perm));
        result = rewriter_.add_value(graph_.value(result).name, std::move(type));
      }
    }
    const std::vector<ValueId> inner = moved.outputs;
    rewriter_.erase(id);
    rewriter_.add(std::move(moved), id);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] != inner[i]) Rearranger(rewriter_, ops_, id).transposed(inner[i], perm, results[i]);
    }
  }

  void move_below(NodeId id) {
    place_ = id;
    const std::vector<ValueId> old = graph_.node(id).inputs;
    const std::vector<NodeId> transposes = transposes_;
    std::vector<ValueId> inputs;
    for (size_t slot = 0; slot < old.size(); ++slot) inputs.push_back(above(old[slot], transposes[slot]));
    std::vector<std::pair<const char*, Attribute>> attributes;
    if (is_op(graph_.node(id), "Concat")) {
      const int64_t axis = graph_.node(id).attributes.get_int("axis", 1);
      attributes.emplace_back("axis", perm_[static_cast<size_t>(axis < 0 ? axis + int64_t(perm_.size()) : axis)]);
    }
    replace(id, std::move(inputs), attributes, perm_);
    erase_unread(transposes);
  }

  // Nodes with one input that name axes.
  bool move_below_axes(NodeId id) {
    const NodeId transpose = rewriter_.producer_if(input_or_none(graph_.node(id), 0), "Transpose");
    if (transpose == NodeId::none) return false;
    const Node& node = graph_.node(id);
    if (rewriter_.only_user(node.inputs[0]) != id && !is_in_region(id)) return false;
    for (const ValueId output : node.outputs) {
      if (output != ValueId::none && !graph_.value(output).type.has_rank) return false;
    }
    const Perm perm = order_of(graph_, graph_.node(transpose));
    if (perm.empty()) return false;
    std::optional<TurnedNode> turned = turned_node(rewriter_, ops_, node, id, perm);
    if (!turned) return false;
    turned->inputs[0] = graph_.node(transpose).inputs[0];
    replace(id, std::move(turned->inputs), turned->attributes, turned->perm);
    erase_unread({transpose});
    return true;
  }

  // The extents before the Transpose, in another order: what asks for them must not keep it from sinking.
  bool move_below_shape(NodeId id) {
    constexpr int kVersion = 13;
    const Node node = graph_.node(id);
    const NodeId transpose = rewriter_.producer_if(node.inputs[0], "Transpose");
    if (transpose == NodeId::none || node.attributes.has("start") || node.attributes.has("end")) return false;
    const Perm perm = order_of(graph_, graph_.node(transpose));
    if (perm.empty()) return false;
    const TensorType type = TensorType::of(DType::i64, {static_cast<int64_t>(perm.size())});
    const ValueId extents = rewriter_.add_value(graph_.value(node.outputs[0]).name, type);
    const ValueId places = rewriter_.add_integers(node.name + "/order", perm);
    Node shape = node, gather;
    shape.inputs = {graph_.node(transpose).inputs[0]};
    shape.outputs = {extents};
    gather.op = &ops_.require("", "Gather", kVersion);
    gather.version = kVersion;
    gather.inputs = {extents, places};
    gather.outputs = node.outputs;
    rewriter_.erase(id);
    rewriter_.add(std::move(shape), id);
    rewriter_.add(std::move(gather), id);
    erase_unread({transpose});
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
  Perm perm_;
  bool frees_one_ = false;
  std::vector<NodeId> transposes_;  // by input slot
  std::vector<bool> in_region_;     // by node
  NodeId place_ = NodeId::none;
};

}  // namespace

bool sink_transposes(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  Sinker sinker(rewriter, context);
  sinker.find_regions();
  return rewrite_each(rewriter, [&](NodeId id) { sinker.try_node(id); });
}

}  // namespace lathe::passes
