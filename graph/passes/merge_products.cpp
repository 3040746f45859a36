// The projections of one value to the queries, keys and values of an attention become one wide product, of which the
// attention reads three parts. Elsewhere a part of each row would have to be copied out again.
#include <algorithm>
#include <cstring>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// x W + b with constant W [k, n] and b [n] (or none).
struct Projection {
  NodeId id = NodeId::none;
  ValueId x = ValueId::none;
  Tensor weights, bias;
  int64_t columns() const { return weights.dims()[1]; }
};

// acc + x1, in either order.
bool is_sum_with_one_input(const Epilogue& epilogue) {
  const std::vector<ExprNode>& nodes = epilogue.expression.nodes;
  if (epilogue.inputs != 1 || nodes.size() != 3 || nodes[2].op != ExprOp::add) return false;
  if (nodes[0].op != ExprOp::input || nodes[1].op != ExprOp::input || nodes[0].a == nodes[1].a) return false;
  return nodes[2].a != nodes[2].b && epilogue.expression.output == DType::f32;
}

std::optional<Projection> projection_of(const Rewriter& rewriter, const Graph& graph, ValueId value, NodeId user) {
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::none || !rewriter.is_live(id) || !is_op(graph.node(id), "MatMul")) return std::nullopt;
  if (rewriter.only_user(value) != user || !rewriter.has_one_use(value)) return std::nullopt;
  const Node& node = graph.node(id);
  Projection made{id, node.inputs[0], constant_of(graph, node.inputs[1]), {}};
  if (made.weights.dtype() != DType::f32 || made.weights.rank() != 2 || made.weights.size() == 0) return std::nullopt;
  if (!node.epilogue) return made;
  made.bias = constant_of(graph, node.inputs.back());
  const bool is_row = made.bias.dtype() == DType::f32 && made.bias.size() == made.columns() && made.bias.rank() >= 1 &&
                      made.bias.dims().back() == made.columns() && made.bias.rank() <= graph.value(value).type.rank();
  if (!is_sum_with_one_input(*node.epilogue) || !is_row) return std::nullopt;
  return made;
}

// [k, n0 + n1 + n2]
Tensor side_by_side(const std::vector<Projection>& parts, int64_t columns) {
  const int64_t rows = parts[0].weights.dims()[0];
  Tensor all(DType::f32, {rows, columns});
  float* to = all.mutable_data<float>();
  for (int64_t row = 0; row < rows; ++row) {
    for (const Projection& part : parts) {
      std::memcpy(to, part.weights.data<float>() + row * part.columns(), static_cast<size_t>(part.columns()) * 4);
      to += part.columns();
    }
  }
  return all;
}

Tensor biases(const std::vector<Projection>& parts, int64_t columns) {
  Tensor all(DType::f32, {columns});  // zeros
  float* to = all.mutable_data<float>();
  std::fill(to, to + columns, 0.f);
  for (const Projection& part : parts) {
    if (part.bias.defined()) std::copy_n(part.bias.data<float>(), part.columns(), to);
    to += part.columns();
  }
  return all;
}

bool merge(Rewriter& rewriter, NodeId attention) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(attention);
  if (!is_lathe_op(node, "Attention") || node.attributes.has("parts")) return false;
  std::vector<Projection> parts;
  for (size_t slot = 0; slot < 3; ++slot) {
    const auto part = projection_of(rewriter, graph, node.inputs[slot], attention);
    if (!part || (slot > 0 && part->x != parts[0].x)) return false;
    if (slot > 0 && part->weights.dims()[0] != parts[0].weights.dims()[0]) return false;
    parts.push_back(*part);
  }
  std::vector<int64_t> ranges;
  int64_t columns = 0;
  for (const Projection& part : parts) {
    ranges.insert(ranges.end(), {columns, part.columns()});
    columns += part.columns();
  }

  const Node& first = graph.node(parts[0].id);
  TensorType type = graph.value(node.inputs[0]).type;
  type.dims.back() = {columns, ""};
  Node wide{.op = first.op, .version = first.version, .name = "", .inputs = {parts[0].x}, .outputs = {}};
  wide.inputs.push_back(rewriter.add_constant(first.name + "/weights", side_by_side(parts, columns)));
  wide.fused_from = "MatMul+MatMul+MatMul";
  const bool has_bias = std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.bias.defined(); });
  if (has_bias) {
    Expression sum;
    sum.inputs = {DType::f32, DType::f32};
    const int x = sum.add({.op = ExprOp::input, .a = 0}), bias = sum.add({.op = ExprOp::input, .a = 1});
    sum.add({.op = ExprOp::add, .a = x, .b = bias});
    wide.epilogue = Epilogue{sum, 1};
    wide.inputs.push_back(rewriter.add_constant(graph.node(parts[0].id).name + "/bias", biases(parts, columns)));
    wide.fused_from += "+Add";
  }
  const ValueId made = rewriter.add_value(graph.node(parts[0].id).name, type);
  wide.outputs = {made};
  const NodeId place = parts[0].id;
  for (const Projection& part : parts) rewriter.erase(part.id);
  rewriter.add(std::move(wide), place);
  for (size_t slot = 0; slot < 3; ++slot) rewriter.set_input(attention, slot, made);
  graph.node(attention).attributes.set("parts", std::move(ranges));
  return true;
}

}  // namespace

bool merge_products(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { merge(rewriter, id); });
}

}  // namespace lathe::passes
