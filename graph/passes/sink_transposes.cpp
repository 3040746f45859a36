// Transposes move down through pointwise nodes, Concat, Pad, reductions and Softmax until they meet their inverse, or a
// node that takes them in. TensorFlow's graphs, full of them between picture orders, lose them so.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;

bool is_one_of(const Node& node, std::initializer_list<std::string_view> names) {
  return node.op->domain.empty() && std::find(names.begin(), names.end(), node.op->name) != names.end();
}

// Elements depend on those at their own place only, and operands broadcast.
bool is_pointwise(const Node& node) {
  return node.op->domain.empty() && node.op->express != nullptr && !node.attributes.has("axis") &&
         !node.attributes.has("broadcast") && node.outputs.size() == 1 &&
         !is_one_of(node, {"QuantizeLinear", "DequantizeLinear", "PRelu"});
}

Perm inverse(const Perm& perm) {
  Perm result(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) result[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return result;
}

std::vector<Dim> permuted(const std::vector<Dim>& dims, const Perm& perm) {
  std::vector<Dim> result;
  for (const int64_t axis : perm) result.push_back(dims[static_cast<size_t>(axis)]);
  return result;
}

class Sinker {
 public:
  Sinker(Rewriter& rewriter, const PassContext& context)
      : rewriter_(rewriter), graph_(rewriter.graph()), ops_(context.ops) {}

  bool try_node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.epilogue || node.captures > 0 || node.outputs.empty() || node.outputs[0] == ValueId::none) return false;
    const bool is_join = is_one_of(node, {"Concat"});
    if (!is_join && !is_pointwise(node) &&
        !is_one_of(node, {"Pad", "Softmax", "ReduceMean", "ReduceMax", "ReduceSum"})) {
      return false;
    }
    if (!find_transposes(node) || !fits(node, is_join)) return false;
    if (is_join || is_pointwise(node)) {
      move_below(id, is_join);
      return true;
    }
    return move_below_axes(id);
  }

 private:
  Perm order_of(NodeId transpose) const {
    const Node& node = graph_.node(transpose);
    const TensorType& type = graph_.value(node.inputs[0]).type;
    Perm perm = node.attributes.get_ints("perm");
    if (perm.empty() && type.has_rank) {
      for (int axis = type.rank(); axis-- > 0;) perm.push_back(axis);
    }
    return perm;
  }

  // The Transposes before the node, all of one order; at least one of them is read by nobody else.
  bool find_transposes(const Node& node) {
    perm_.clear();
    transposes_.assign(node.inputs.size(), NodeId::none);
    bool frees_one = false;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const ValueId input = node.inputs[slot];
      const NodeId transpose = rewriter_.producer_if(input, "Transpose");
      if (transpose == NodeId::none) continue;
      const Perm perm = order_of(transpose);
      if (perm.empty() || (!perm_.empty() && perm != perm_)) return false;
      perm_ = perm;
      transposes_[slot] = transpose;
      frees_one = frees_one || rewriter_.only_user(input) != NodeId::none;
    }
    return frees_one;
  }

  // Whatever is not transposed must be the same in any order of axes, or a constant that can be put in order.
  bool fits(const Node& node, bool is_join) const {
    const TensorType& result = graph_.value(node.outputs[0]).type;
    if (!result.has_rank) return false;
    const bool has_axes = !is_join && !is_pointwise(node);
    if (!has_axes && result.rank() != static_cast<int>(perm_.size())) return false;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      if (transposes_[slot] != NodeId::none || node.inputs[slot] == ValueId::none || (has_axes && slot > 0)) continue;
      const Value& value = graph_.value(node.inputs[slot]);
      if (is_join || has_axes) return false;
      if (is_scalar(value.type) && value.type.rank() <= result.rank()) continue;
      if (!value.is_constant() || value.constant.rank() > result.rank()) return false;
    }
    return true;
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
    TensorType type = graph_.value(whole).type;
    type.dims = permuted(type.dims, inverse(perm_));
    const ValueId turned = rewriter_.add_value(name, type);
    add_transpose(whole, turned, inverse(perm_), place_);
    return turned;
  }

  void add_transpose(ValueId from, ValueId to, const Perm& perm, NodeId place) {
    constexpr int kVersion = 13;
    Node node;
    node.op = &ops_.require("", "Transpose", kVersion);
    node.version = kVersion;
    node.inputs = {from};
    node.outputs = {to};
    node.attributes.set("perm", perm);
    rewriter_.add(std::move(node), place);
  }

  void erase_unread(const std::vector<NodeId>& transposes) {
    for (const NodeId transpose : transposes) {
      if (transpose == NodeId::none || !rewriter_.is_live(transpose)) continue;
      if (!rewriter_.is_used(graph_.node(transpose).outputs[0])) rewriter_.erase(transpose);
    }
  }

  // The node over `inputs`, and a Transpose by `perm` behind it that makes the old result.
  void replace(NodeId id, std::vector<ValueId> inputs, std::vector<std::pair<const char*, Attribute>> attributes,
               const Perm& perm) {
    const ValueId result = graph_.node(id).outputs[0];
    TensorType type = graph_.value(result).type;
    type.dims = permuted(type.dims, inverse(perm));
    const ValueId inner = rewriter_.add_value(graph_.value(result).name, type);
    Node moved = graph_.node(id);
    moved.inputs = std::move(inputs);
    for (auto& [name, value] : attributes) moved.attributes.set(name, std::move(value));
    moved.outputs = {inner};
    rewriter_.erase(id);
    rewriter_.add(std::move(moved), id);
    add_transpose(inner, result, perm, id);
  }

  void move_below(NodeId id, bool is_join) {
    place_ = id;
    const std::vector<ValueId> old = graph_.node(id).inputs;
    const std::vector<NodeId> transposes = transposes_;
    std::vector<ValueId> inputs;
    for (size_t slot = 0; slot < old.size(); ++slot) inputs.push_back(above(old[slot], transposes[slot]));
    std::vector<std::pair<const char*, Attribute>> attributes;
    if (is_join) attributes.emplace_back("axis", moved_axis(graph_.node(id).attributes.get_int("axis", 1)));
    replace(id, std::move(inputs), std::move(attributes), perm_);
    erase_unread(transposes);
  }

  int64_t moved_axis(int64_t axis) const {
    return perm_[static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(perm_.size()) : axis)];
  }

  // Nodes with one input that name axes.
  bool move_below_axes(NodeId id) {
    const Node& node = graph_.node(id);
    if (transposes_[0] == NodeId::none) return false;
    const std::vector<NodeId> transposes = transposes_;
    std::vector<ValueId> inputs = node.inputs;
    inputs[0] = graph_.node(transposes[0]).inputs[0];
    std::vector<std::pair<const char*, Attribute>> attributes;
    if (is_op(node, "Softmax")) {
      if (node.version < 13) return false;
      attributes.emplace_back("axis", moved_axis(node.attributes.get_int("axis", -1)));
    } else if (is_op(node, "Pad")) {
      if (!turn_pads(node, inputs)) return false;
    } else if (!turn_axes(node, inputs, attributes)) {
      return false;
    }
    replace(id, std::move(inputs), std::move(attributes), perm_);
    erase_unread(transposes);
    return true;
  }

  ValueId integers(const std::string& name, const std::vector<int64_t>& numbers) {
    return rewriter_.add_constant(name, Tensor::from<int64_t>({static_cast<int64_t>(numbers.size())}, numbers));
  }

  bool turn_pads(const Node& node, std::vector<ValueId>& inputs) {
    const size_t rank = perm_.size();
    const auto pads = integers_of(graph_, input_or_none(node, 1));
    if (node.version < 11 || !pads || pads->size() != 2 * rank || input_or_none(node, 3) != ValueId::none) return false;
    std::vector<int64_t> turned(2 * rank);
    for (size_t axis = 0; axis < rank; ++axis) {
      turned[static_cast<size_t>(perm_[axis])] = (*pads)[axis];
      turned[rank + static_cast<size_t>(perm_[axis])] = (*pads)[rank + axis];
    }
    inputs[1] = integers(node.name + "/pads", turned);
    return true;
  }

  // Reductions that keep their axes.
  bool turn_axes(const Node& node, std::vector<ValueId>& inputs,
                 std::vector<std::pair<const char*, Attribute>>& attributes) {
    if (node.attributes.get_int("keepdims", 1) == 0) return false;
    const bool is_input = input_or_none(node, 1) != ValueId::none;
    const auto given = is_input ? integers_of(graph_, node.inputs[1]) : std::optional(node.attributes.get_ints("axes"));
    if (!given || given->empty()) return false;
    std::vector<int64_t> axes;
    for (const int64_t axis : *given) axes.push_back(moved_axis(axis));
    std::sort(axes.begin(), axes.end());
    if (is_input) {
      inputs[1] = integers(node.name + "/axes", axes);
    } else {
      attributes.emplace_back("axes", axes);
    }
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
  Perm perm_;
  std::vector<NodeId> transposes_;  // by input slot
  NodeId place_ = NodeId::none;
};

}  // namespace

bool sink_transposes(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  Sinker sinker(rewriter, context);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (rewriter.is_live(id)) sinker.try_node(id);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
