// Puts together LayerNormalization where an exporter spelled it out:
//   d = x - mean(x);  y = d / sqrt(mean(d * d) + epsilon) * gain + bias
// or another form of it (norm_parts.h), over the last axis.
#include "graph/passes/norm_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 17;

// As a list of one number for each column; none where it is not.
ValueId as_row(Rewriter& rewriter, ValueId id, int64_t columns, int rank) {
  const TensorType& type = rewriter.graph().value(id).type;
  if (type.dtype != DType::f32 || !type.is_static()) return ValueId::none;
  if (type.rank() == 1 && type.dims[0].extent == columns) return id;
  const Tensor tensor = constant_of(rewriter.graph(), id);
  // [1, 1, C] is as good when it is a constant.
  if (!tensor.defined() || tensor.rank() == 0 || tensor.size() != columns || tensor.dims().back() != columns ||
      tensor.rank() > rank) {
    return ValueId::none;
  }
  return rewriter.add_constant(rewriter.graph().value(id).name, tensor.reshaped({columns}));
}

// The 1-D gain or bias of a Mul or Add that alone reads `id`; none when there is no such node.
ValueId row_operand(Rewriter& rewriter, ValueId id, std::string_view op, int64_t columns, NodeId& user) {
  Graph& graph = rewriter.graph();
  user = rewriter.only_user(id);
  if (user == NodeId::none || !is_op(graph.node(user), op) || graph.node(user).epilogue) return ValueId::none;
  const Node& node = graph.node(user);
  const ValueId other = node.inputs[node.inputs[0] == id ? 1 : 0];
  if (other == id) return ValueId::none;
  return as_row(rewriter, other, columns, graph.value(id).type.rank());
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
  const std::optional<NormParts> found = norm_parts(rewriter, graph, id);
  if (!found) return false;
  const Node& anchor = graph.node(id);
  const TensorType type = graph.value(found->x).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 1 || !type.dims.back().known()) return false;
  if (found->axes != std::vector<int64_t>{type.rank() - 1}) return false;
  const int64_t columns = type.dims.back().extent;

  Tail tail{found->result};
  if (found->has_affine) {
    tail.gain = as_row(rewriter, found->gain, columns, type.rank());
    tail.bias = as_row(rewriter, found->bias, columns, type.rank());
    if (tail.gain == ValueId::none || tail.bias == ValueId::none) return false;
  } else {
    tail = tail_behind(rewriter, found->result, columns);
  }
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
