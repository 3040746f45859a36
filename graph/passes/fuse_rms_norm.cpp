// Puts together RMSNormalization where an exporter spelled it out: x / sqrt(mean(x * x) + epsilon) * gain, the division
// written as such, or as a product with a reciprocal.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 23;

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

// x behind x * x or x to the power of 2.
ValueId square_root_of(const Rewriter& rewriter, const Graph& graph, ValueId square) {
  if (const NodeId mul = rewriter.producer_if(square, "Mul"); mul != NodeId::none) {
    const std::vector<ValueId>& inputs = graph.node(mul).inputs;
    return inputs[0] == inputs[1] ? inputs[0] : ValueId::none;
  }
  const NodeId pow = rewriter.producer_if(square, "Pow");
  if (pow == NodeId::none || scalar_of(graph, graph.node(pow).inputs[1]) != 2.f) return ValueId::none;
  return graph.node(pow).inputs[0];
}

struct Root {
  ValueId x = ValueId::none;
  float epsilon = 0;
};

// sqrt(mean(x * x) + epsilon)
std::optional<Root> root_behind(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  const NodeId sqrt = rewriter.producer_if(value, "Sqrt");
  if (sqrt == NodeId::none) return std::nullopt;
  const NodeId add = rewriter.producer_if(graph.node(sqrt).inputs[0], "Add");
  if (add == NodeId::none) return std::nullopt;
  for (size_t slot = 0; slot < 2; ++slot) {
    const NodeId mean = rewriter.producer_if(graph.node(add).inputs[slot], "ReduceMean");
    const std::optional<float> epsilon = scalar_of(graph, graph.node(add).inputs[1 - slot]);
    if (mean == NodeId::none || !epsilon || !is_row_mean(graph, graph.node(mean))) continue;
    const ValueId x = square_root_of(rewriter, graph, graph.node(mean).inputs[0]);
    if (x != ValueId::none) return Root{x, *epsilon};
  }
  return std::nullopt;
}

// 1 / root, in either spelling: the value under the fraction, or none.
ValueId under_one(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  if (const NodeId node = rewriter.producer_if(value, "Reciprocal"); node != NodeId::none) {
    return graph.node(node).inputs[0];
  }
  const NodeId div = rewriter.producer_if(value, "Div");
  if (div == NodeId::none || scalar_of(graph, graph.node(div).inputs[0]) != 1.f) return ValueId::none;
  return graph.node(div).inputs[1];
}

// `id` is the last division or product: x over its own root.
std::optional<Root> match(const Rewriter& rewriter, const Graph& graph, const Node& node) {
  if (node.epilogue || node.inputs.size() != 2 || node.outputs[0] == ValueId::none) return std::nullopt;
  if (is_op(node, "Div")) {
    const auto root = root_behind(rewriter, graph, node.inputs[1]);
    return root && root->x == node.inputs[0] ? root : std::nullopt;
  }
  if (!is_op(node, "Mul")) return std::nullopt;
  for (size_t slot = 0; slot < 2; ++slot) {
    const ValueId under = under_one(rewriter, graph, node.inputs[slot]);
    if (under == ValueId::none) continue;
    const auto root = root_behind(rewriter, graph, under);
    if (root && root->x == node.inputs[1 - slot]) return root;
  }
  return std::nullopt;
}

// A product of the normalized rows with one constant row: its node, and the row.
NodeId gain_behind(const Rewriter& rewriter, const Graph& graph, ValueId normalized, int64_t columns, ValueId& gain) {
  const NodeId user = rewriter.only_user(normalized);
  if (user == NodeId::none || !is_op(graph.node(user), "Mul") || graph.node(user).epilogue) return NodeId::none;
  const std::vector<ValueId>& inputs = graph.node(user).inputs;
  const ValueId other = inputs[0] == normalized ? inputs[1] : inputs[0];
  const TensorType& type = graph.value(other).type;
  if (other == normalized || type.dtype != DType::f32 || !type.has_rank || type.rank() != 1) return NodeId::none;
  if (type.dims[0].extent != columns || !graph.value(other).is_constant()) return NodeId::none;
  gain = other;
  return user;
}

bool fuse(Rewriter& rewriter, const OpSchema& schema, NodeId id) {
  Graph& graph = rewriter.graph();
  const std::optional<Root> found = match(rewriter, graph, graph.node(id));
  if (!found) return false;
  const TensorType& type = graph.value(found->x).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 1 || !type.dims.back().known()) return false;
  const int64_t columns = type.dims.back().extent;
  ValueId result = graph.node(id).outputs[0], gain = ValueId::none;
  const NodeId product = gain_behind(rewriter, graph, result, columns, gain);
  if (product != NodeId::none) {
    result = graph.node(product).outputs[0];
  } else {
    Tensor ones(DType::f32, {columns});
    for (int64_t i = 0; i < columns; ++i) ones.mutable_data<float>()[i] = 1;
    gain = rewriter.add_constant(graph.node(id).name + "/gain", ones);
  }
  Node node{.op = &schema, .version = kVersion, .name = "", .inputs = {found->x, gain}, .outputs = {result}};
  node.attributes.set("axis", int64_t{-1});
  node.attributes.set("epsilon", found->epsilon);
  rewriter.erase(id);
  if (product != NodeId::none) rewriter.erase(product);
  rewriter.add(std::move(node), id);
  return true;
}

}  // namespace

bool fuse_rms_norm(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "RMSNormalization", kVersion);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fuse(rewriter, *schema, id); });
}

}  // namespace lathe::passes
