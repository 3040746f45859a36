// Trees and diamonds of pointwise nodes become one "lathe::Pointwise" node, which reads its operands once.
#include <algorithm>
#include <set>

#include "graph/passes/fusion.h"
#include "graph/passes/passes.h"

namespace lathe::passes {
namespace {

constexpr size_t kInputs = 8;
constexpr size_t kNodes = 64;

// Grows backward from one node's result: a producer joins when nobody else reads it and its result has the whole shape,
// so that nothing is computed twice.
class Group {
 public:
  Group(const Rewriter& rewriter, Graph& graph, const std::vector<int>& position, NodeId root)
      : rewriter_(rewriter), graph_(graph), position_(position) {
    members_.insert({position[index_of(root)], root});
    type_ = graph.value(graph.node(root).outputs[0]).type;
  }

  bool grow() {
    for (bool grew = true; grew && members_.size() < kNodes;) {
      grew = false;
      // The latest producers first: their other readers are members already when the earlier ones' turn comes.
      for (auto member = members_.rbegin(); member != members_.rend() && !grew; ++member) {
        for (const ValueId input : graph_.node(member->second).inputs)
          grew = grew || (input != ValueId::none && join(input));
      }
    }
    return members_.size() > 1;
  }

  const std::set<std::pair<int, NodeId>>& members() const { return members_; }  // in topological order

  std::optional<ExpressionBuilder> build() const {
    ExpressionBuilder builder(graph_);
    for (const auto& [at, id] : members_) {
      const std::optional<Expression> expression = fusible_expression(graph_, graph_.node(id));
      if (!expression) return std::nullopt;
      builder.append(graph_.node(id), *expression);
    }
    if (builder.inputs().empty() || builder.inputs().size() > kInputs) return std::nullopt;
    return builder;
  }

 private:
  // Nodes that this pass made have no position: they are whole.
  bool is_known(NodeId id) const { return index_of(id) < position_.size(); }
  bool is_member(NodeId id) const { return is_known(id) && members_.contains({position_[index_of(id)], id}); }

  bool join(ValueId value) {
    const NodeId id = graph_.value(value).producer;
    if (id == NodeId::none || !rewriter_.is_live(id) || !is_known(id) || is_member(id)) return false;
    const Node& node = graph_.node(id);
    if (node.outputs[0] != value || rewriter_.is_output(value) || !has_whole_shape(value)) return false;
    if (!rewriter_.all_users(value, [this](NodeId user) { return is_member(user); })) return false;
    if (!fusible_expression(graph_, node)) return false;
    members_.insert({position_[index_of(id)], id});
    if (build()) return true;
    members_.erase({position_[index_of(id)], id});
    return false;
  }

  // Members' results have the root's shape; so has this value when the other operands of a member only spread into it.
  bool has_whole_shape(ValueId value) const {
    const TensorType& type = graph_.value(value).type;
    if (same_shape(type, type_)) return true;
    return std::any_of(members_.begin(), members_.end(), [&](const std::pair<int, NodeId>& member) {
      const std::vector<ValueId>& inputs = graph_.node(member.second).inputs;
      return std::find(inputs.begin(), inputs.end(), value) != inputs.end() &&
             std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) {
               return input == ValueId::none || input == value || broadcasts_into(graph_.value(input).type, type);
             });
    });
  }

  const Rewriter& rewriter_;
  Graph& graph_;
  const std::vector<int>& position_;
  TensorType type_;
  std::set<std::pair<int, NodeId>> members_;
};

void apply(Rewriter& rewriter, const OpSchema& schema, NodeId root, const Group& group, ExpressionBuilder builder) {
  Graph& graph = rewriter.graph();
  const ValueId result = graph.node(root).outputs[0];
  const TensorType& type = graph.value(result).type;
  // An operand of the whole shape goes first, where there is one.
  for (size_t i = 0; i < builder.inputs().size(); ++i) {
    if (!same_shape(graph.value(builder.inputs()[i]).type, type)) continue;
    builder.swap_inputs(0, i);
    break;
  }
  Node node{.op = &schema,
            .name = graph.node(root).name,
            .inputs = builder.inputs(),
            .outputs = {result},
            .epilogue = Epilogue{builder.finish(type.dtype), static_cast<int>(builder.inputs().size()) - 1}};
  for (const auto& [at, id] : group.members()) {
    node.fused_from += (node.fused_from.empty() ? "" : "+") + graph.node(id).origin();
    rewriter.erase(id);
  }
  rewriter.add(std::move(node), root);
}

}  // namespace

bool fuse_pointwise(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("lathe", "Pointwise", 1);
  if (schema == nullptr) return false;
  Rewriter rewriter(graph);
  std::vector<NodeId> order = graph.order();
  const std::vector<int> position = positions_in(order);
  std::reverse(order.begin(), order.end());
  bool changed = false;
  for (const NodeId id : order) {
    if (!rewriter.is_live(id) || !fusible_expression(graph, graph.node(id))) continue;
    if (graph.value(graph.node(id).outputs[0]).type.layout.channel_block != 0) continue;
    Group group(rewriter, graph, position, id);
    if (!group.grow()) continue;
    std::optional<ExpressionBuilder> builder = group.build();
    if (!builder) continue;
    apply(rewriter, *schema, id, group, std::move(*builder));
    changed = true;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
