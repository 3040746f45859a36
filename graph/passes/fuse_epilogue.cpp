// Pointwise work behind a node that can do it on its accumulators (Node::epilogue) moves there.
#include <algorithm>
#include <set>

#include "graph/passes/fusion.h"
#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

// An accumulator's expression must live in vector registers.
constexpr size_t kExpressionNodes = 48;
// Behind integers most of it is one multiple of another rounded to bytes, which needs few registers.
constexpr size_t kQuantizedNodes = 128;
constexpr size_t kExtraInputs = 4;
constexpr size_t kGroupNodes = 32;
constexpr int kCastVersion = 13;
constexpr int64_t kFloat = 1;  // TensorProto.FLOAT

bool is_product(const Node& node) {
  return is_op(node, "MatMul") || is_op(node, "Gemm") || is_lathe_op(node, "MatMulViews") ||
         is_lathe_op(node, "QuantizedMatMul");
}

// A mask that many rows or heads share: as numbers it is still small beside the result.
bool is_shared_mask(const TensorType& extra, const TensorType& result, const Node& node) {
  return extra.dtype == DType::boolean && is_product(node) && !is_integer_product(node) &&
         broadcasts_into(extra, result) && !same_shape(extra, result);
}

// Products step through whatever spreads into their result. Others take scalars, one element per channel (of the whole
// batch or of each picture), and operands of the result's own shape.
bool is_admissible(const TensorType& extra, const TensorType& result, const Node& node) {
  if (extra.dtype != DType::f32 || !broadcasts_into(extra, result)) return false;
  if (is_product(node) || is_scalar(extra) || same_shape(extra, result)) return true;
  const int shift = result.rank() - extra.rank();
  bool has_channels = false;
  for (int i = 0; i < extra.rank(); ++i) {
    const int axis = i + shift;
    if (extra.dims[static_cast<size_t>(i)].extent == 1) continue;
    if (axis > 1) return false;
    has_channels = has_channels || axis == 1;
  }
  return has_channels;
}

// Grows forward from a node's result through its readers, in topological order, and remembers the longest group after
// which only one value is read from outside.
class Group {
 public:
  Group(const Rewriter& rewriter, Graph& graph, const std::vector<int>& position, NodeId root, bool takes_masks)
      : rewriter_(rewriter),
        graph_(graph),
        position_(position),
        builder_(graph),
        best_(graph),
        root_(root),
        takes_masks_(takes_masks) {
    const Node& node = graph.node(root);
    result_ = node.outputs[0];
    type_ = graph.value(result_).type;
    if (node.epilogue) {
      // The accumulator has no value of its own: the fused result's id stands for it until the expression renames it.
      std::vector<ValueId> operands{result_};
      operands.insert(operands.end(), node.inputs.end() - node.epilogue->inputs, node.inputs.end());
      builder_.add_input(result_);
      builder_.append_as(result_, node, operands, node.epilogue->expression);
    } else {
      builder_.add_input(result_);
    }
    values_ = {result_};
  }

  // True when there is something to fuse.
  bool grow() {
    for (const Graph::Use use : rewriter_.uses(result_)) enqueue(use.node);
    while (!pending_.empty() && members_.size() < kGroupNodes) {
      const NodeId next = static_cast<NodeId>(pending_.begin()->second);
      pending_.erase(pending_.begin());
      if (!join(next)) break;
      if (is_closed() && can_store(graph_.value(values_.back()).type.dtype) && !unpacks_bytes(next)) {
        best_ = builder_;
        best_members_ = members_.size();
      }
    }
    return best_members_ > 0;
  }

  std::vector<NodeId> members() const {
    return {members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(best_members_)};
  }
  ValueId exit() const { return values_[best_members_]; }
  const ExpressionBuilder& builder() const { return best_; }

 private:
  size_t most_nodes() const { return is_integer_product(graph_.node(root_)) ? kQuantizedNodes : kExpressionNodes; }

  bool can_store(DType dtype) const {
    if (dtype == DType::f32) return true;
    return is_byte(dtype) && is_integer_product(graph_.node(root_));
  }

  // The group would end in float32 where its readers can take the bytes behind it: a quarter of the memory.
  bool unpacks_bytes(NodeId last) const {
    if (!is_lathe_op(graph_.node(root_), "QuantizedConv") || !is_op(graph_.node(last), "DequantizeLinear"))
      return false;
    const std::vector<Graph::Use> uses = rewriter_.uses(values_.back());
    return std::any_of(uses.begin(), uses.end(), [this](const Graph::Use& use) {
      const Node& reader = graph_.node(use.node);
      return is_integer_product(reader) || reader.op->express != nullptr;
    });
  }

  void enqueue(NodeId id) {
    // A node made by this pass has no place yet: it reads a mask, and nothing behind it belongs to a group.
    if (index_of(id) < position_.size()) pending_.emplace(position_[index_of(id)], static_cast<int>(id));
  }

  bool takes(ValueId input) const {
    const TensorType& type = graph_.value(input).type;
    const Node& root = graph_.node(root_);
    return is_admissible(type, type_, root) || (takes_masks_ && is_shared_mask(type, type_, root));
  }

  bool join(NodeId id) {
    const Node& node = graph_.node(id);
    const std::optional<Expression> expression = fusible_expression(graph_, node);
    if (!expression || builder_.has_input(node.outputs[0])) return false;
    for (const ValueId input : node.inputs) {
      if (input == ValueId::none || is_member(input)) continue;
      if (builder_.absorbs(input, node)) continue;
      if (!takes(input) && !is_unread(node, *expression, input)) return false;
    }
    builder_.append(node, *expression);
    if (builder_.inputs().size() > kExtraInputs + 1 || builder_.size() > most_nodes()) return false;
    members_.push_back(id);
    values_.push_back(node.outputs[0]);
    for (const Graph::Use use : rewriter_.uses(node.outputs[0])) enqueue(use.node);
    return true;
  }

  static bool is_unread(const Node& node, const Expression& expression, ValueId input) {
    return std::none_of(expression.nodes.begin(), expression.nodes.end(), [&](const ExprNode& each) {
      return each.op == ExprOp::input && node.inputs[static_cast<size_t>(each.a)] == input;
    });
  }

  bool is_member(ValueId id) const { return std::find(values_.begin(), values_.end(), id) != values_.end(); }

  // All values but the last are read only by members.
  bool is_closed() const {
    for (size_t i = 0; i + 1 < values_.size(); ++i) {
      if (rewriter_.is_output(values_[i])) return false;
      const bool are_members = rewriter_.all_users(values_[i], [this](NodeId user) {
        return std::find(members_.begin(), members_.end(), user) != members_.end();
      });
      if (!are_members) return false;
    }
    return true;
  }

  const Rewriter& rewriter_;
  Graph& graph_;
  const std::vector<int>& position_;
  ExpressionBuilder builder_, best_;
  ValueId result_ = ValueId::none;
  TensorType type_;
  NodeId root_;
  bool takes_masks_;
  std::vector<NodeId> members_;
  std::vector<ValueId> values_;  // the root's result, then each member's
  size_t best_members_ = 0;
  std::set<std::pair<int, int>> pending_;  // position, node
};

bool can_carry(const Graph& graph, const Node& node) {
  // Pointwise nodes have a fusion of their own.
  if (!node.op->fuses_epilogue || node.op->express != nullptr || is_lathe_op(node, "Pointwise")) return false;
  if (node.outputs.empty() || node.outputs[0] == ValueId::none) return false;
  if (node.epilogue && node.epilogue->expression.output != DType::f32) return false;
  const TensorType& type = graph.value(node.outputs[0]).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.layout.channel_block != 0) return false;
  return std::all_of(node.outputs.begin() + 1, node.outputs.end(), [](ValueId id) { return id == ValueId::none; });
}

// A mask as the zeros and ones that an epilogue reads.
ValueId as_numbers(Rewriter& rewriter, const OpSchema& cast, ValueId mask, NodeId place) {
  Graph& graph = rewriter.graph();
  TensorType type = graph.value(mask).type;
  type.dtype = DType::f32;
  const ValueId numbers = rewriter.add_value(graph.value(mask).name, std::move(type));
  Node node{.op = &cast, .version = kCastVersion, .name = "", .inputs = {mask}, .outputs = {numbers}};
  node.attributes.set("to", kFloat);
  rewriter.add(std::move(node), place);
  return numbers;
}

void apply(Rewriter& rewriter, NodeId root, const Group& group, const OpSchema* cast) {
  Graph& graph = rewriter.graph();
  std::vector<ValueId> extras(group.builder().inputs().begin() + 1, group.builder().inputs().end());
  Expression expression = group.builder().finish(graph.value(group.exit()).type.dtype);
  for (size_t i = 0; i < extras.size(); ++i) {
    if (graph.value(extras[i]).type.dtype != DType::boolean) continue;
    extras[i] = as_numbers(rewriter, *cast, extras[i], root);
    expression.inputs[i + 1] = DType::f32;
  }
  Node& node = graph.node(root);
  std::string name = node.origin();
  const ValueId exit = group.exit();
  for (const NodeId member : group.members()) {
    name += "+" + graph.node(member).origin();
    rewriter.erase(member);
  }
  const size_t own = node.own_input_count() + static_cast<size_t>(node.captures);
  node.inputs.resize(own + extras.size());
  for (size_t i = 0; i < extras.size(); ++i) rewriter.set_input(root, own + i, extras[i]);
  node.epilogue = Epilogue{std::move(expression), static_cast<int>(extras.size())};
  node.fused_from = std::move(name);
  rewriter.move_output(exit, root);
}

}  // namespace

bool fuse_epilogue(Graph& graph, const PassContext& context) {
  const OpSchema* cast = context.ops.find("", "Cast", kCastVersion);
  Rewriter rewriter(graph);
  std::vector<NodeId> order = graph.order();
  const std::vector<int> position = positions_in(order);
  // From the back: of two operands of a sum, the one that is made last has the other one at hand.
  std::reverse(order.begin(), order.end());
  bool changed = false;
  for (const NodeId id : order) {
    if (!rewriter.is_live(id) || !can_carry(graph, graph.node(id))) continue;
    Group group(rewriter, graph, position, id, cast != nullptr);
    if (!group.grow()) continue;
    apply(rewriter, id, group, cast);
    changed = true;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
