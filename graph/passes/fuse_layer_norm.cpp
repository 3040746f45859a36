// Puts together LayerNormalization where an exporter spelled it out:
//   d = x - mean(x);  y = d / sqrt(mean(d * d) + epsilon) * gain + bias
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 17;

struct Match {
  ValueId x;
  float epsilon;
};

// ReduceMean over the last axis that keeps it.
bool is_row_mean(const Graph& graph, const Node& node) {
  if (node.attributes.get_int("keepdims", 1) == 0) return false;
  std::vector<int64_t> axes = node.attributes.get_ints("axes");
  if (input_or_none(node, 1) != ValueId::none) {
    const auto given = integers_of(graph, node.inputs[1]);
    if (!given) return false;
    axes = *given;
  }
  const TensorType& type = graph.value(node.inputs[0]).type;
  return axes.size() == 1 && (axes[0] == -1 || (type.has_rank && axes[0] == type.rank() - 1));
}

// The value that is squared: Pow(d, 2) or Mul(d, d).
ValueId squared(const Graph& graph, const Rewriter& rewriter, ValueId id, NodeId& node) {
  node = rewriter.producer_if(id, "Pow");
  if (node != NodeId::none) {
    const ValueId exponent = graph.node(node).inputs[1];
    const auto integer = integers_of(graph, exponent);
    const bool is_two = scalar_of(graph, exponent) == 2.f || (integer && *integer == std::vector<int64_t>{2});
    return is_two ? graph.node(node).inputs[0] : ValueId::none;
  }
  node = rewriter.producer_if(id, "Mul");
  if (node == NodeId::none || graph.node(node).inputs[0] != graph.node(node).inputs[1]) return ValueId::none;
  return graph.node(node).inputs[0];
}

// x and its mean's node behind d = x - mean(x).
ValueId centered(const Graph& graph, const Rewriter& rewriter, ValueId d, NodeId& sub, NodeId& mean) {
  sub = rewriter.producer_if(d, "Sub");
  if (sub == NodeId::none) return ValueId::none;
  const ValueId x = graph.node(sub).inputs[0];
  mean = rewriter.producer_if(graph.node(sub).inputs[1], "ReduceMean");
  if (mean == NodeId::none || graph.node(mean).inputs[0] != x || !is_row_mean(graph, graph.node(mean))) {
    return ValueId::none;
  }
  return x;
}

// Matches everything above the anchor, Div(d, Sqrt(...)).
std::optional<Match> match(const Graph& graph, const Rewriter& rewriter, const Node& anchor) {
  const ValueId d = anchor.inputs[0];
  const NodeId root = rewriter.producer_if(anchor.inputs[1], "Sqrt");
  if (root == NodeId::none) return std::nullopt;
  const NodeId sum = rewriter.producer_if(graph.node(root).inputs[0], "Add");
  if (sum == NodeId::none) return std::nullopt;
  const size_t slot = scalar_of(graph, graph.node(sum).inputs[1]) ? 0 : 1;
  const std::optional<float> epsilon = scalar_of(graph, graph.node(sum).inputs[1 - slot]);
  const NodeId variance = rewriter.producer_if(graph.node(sum).inputs[slot], "ReduceMean");
  if (!epsilon || variance == NodeId::none || !is_row_mean(graph, graph.node(variance))) return std::nullopt;
  NodeId square, sub, mean, other_sub = NodeId::none, other_mean = NodeId::none;
  const ValueId inner = squared(graph, rewriter, graph.node(variance).inputs[0], square);
  const ValueId x = centered(graph, rewriter, d, sub, mean);
  if (inner == ValueId::none || x == ValueId::none) return std::nullopt;
  if (inner != d && centered(graph, rewriter, inner, other_sub, other_mean) != x) return std::nullopt;
  return Match{x, *epsilon};
}

// The 1-D gain or bias of a Mul or Add that alone reads `id`; none when there is no such node.
ValueId row_operand(Rewriter& rewriter, ValueId id, std::string_view op, int64_t columns, NodeId& user) {
  Graph& graph = rewriter.graph();
  user = rewriter.only_user(id);
  if (user == NodeId::none || !is_op(graph.node(user), op) || graph.node(user).epilogue) return ValueId::none;
  const Node& node = graph.node(user);
  const ValueId other = node.inputs[node.inputs[0] == id ? 1 : 0];
  if (other == id) return ValueId::none;
  const TensorType& type = graph.value(other).type;
  if (type.dtype != DType::f32 || !type.is_static()) return ValueId::none;
  if (type.rank() == 1 && type.dims[0].extent == columns) return other;
  const Tensor tensor = constant_of(graph, other);
  // [1, 1, C] is as good when it is a constant.
  if (!tensor.defined() || tensor.rank() == 0 || tensor.size() != columns || tensor.dims().back() != columns ||
      tensor.rank() > graph.value(id).type.rank()) {
    return ValueId::none;
  }
  return rewriter.add_constant(graph.value(other).name, tensor.reshaped({columns}));
}

Tensor ones(int64_t count) {
  Tensor tensor(DType::f32, {count});
  for (int64_t i = 0; i < count; ++i) tensor.mutable_data<float>()[i] = 1;
  return tensor;
}

struct Tail {
  ValueId result, gain = ValueId::none, bias = ValueId::none;
  NodeId mul = NodeId::none, add = NodeId::none;
};

Tail tail_behind(Rewriter& rewriter, ValueId normalized, int64_t columns) {
  Tail tail{normalized};
  NodeId user = NodeId::none;
  tail.gain = row_operand(rewriter, normalized, "Mul", columns, user);
  if (tail.gain == ValueId::none) return tail;
  tail.mul = user;
  tail.result = rewriter.graph().node(user).outputs[0];
  tail.bias = row_operand(rewriter, tail.result, "Add", columns, user);
  if (tail.bias == ValueId::none) return tail;
  tail.add = user;
  tail.result = rewriter.graph().node(user).outputs[0];
  return tail;
}

bool fuse(Rewriter& rewriter, const OpSchema& schema, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& anchor = graph.node(id);
  if (!is_op(anchor, "Div") || anchor.epilogue || anchor.inputs.size() != 2) return false;
  const std::optional<Match> found = match(graph, rewriter, anchor);
  if (!found) return false;
  const TensorType& type = graph.value(found->x).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 1 || !type.dims.back().known()) return false;
  const int64_t columns = type.dims.back().extent;

  Tail tail = tail_behind(rewriter, anchor.outputs[0], columns);
  if (tail.gain == ValueId::none) tail.gain = rewriter.add_constant(anchor.name + "/gain", ones(columns));
  Node node{.op = &schema, .version = kVersion, .name = "", .inputs = {found->x, tail.gain}, .outputs = {tail.result}};
  if (tail.bias != ValueId::none) node.inputs.push_back(tail.bias);
  node.attributes.set("axis", int64_t{-1});
  node.attributes.set("epsilon", found->epsilon);
  // What stands before the anchor may have other readers: remove-dead takes it when it has none.
  for (const NodeId replaced : {id, tail.mul, tail.add}) {
    if (replaced != NodeId::none) rewriter.erase(replaced);
  }
  rewriter.add(std::move(node), id);
  return true;
}

}  // namespace

bool fuse_layer_norm(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "LayerNormalization", kVersion);
  if (schema == nullptr) return false;
  Rewriter rewriter(graph);
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (rewriter.is_live(id)) changed = fuse(rewriter, *schema, id) || changed;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
