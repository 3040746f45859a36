// GroupNormalization as PyTorch exports it: pixels of a group in a row, InstanceNormalization over the groups, the
// shape as it was, and then gain and bias per channel.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 21;

// The elements of a constant [channels, 1, 1, ...] (perhaps behind leading ones), by channel.
std::optional<Tensor> per_channel(const Graph& graph, ValueId id, int rank, int64_t channels) {
  const Tensor tensor = constant_of(graph, id);
  if (tensor.dtype() != DType::f32 || tensor.size() != channels || tensor.rank() > rank) return std::nullopt;
  const int axis = tensor.rank() - (rank - 1);
  if (axis < 0 || tensor.dims()[static_cast<size_t>(axis)] != channels) return std::nullopt;
  return tensor.reshaped({channels});
}

// The other operand of the one node that reads `value`, when it is this operator.
ValueId operand_behind(const Rewriter& rewriter, const Graph& graph, ValueId value, const char* op, NodeId& user) {
  user = rewriter.only_user(value);
  if (user == NodeId::none || !is_op(graph.node(user), op) || graph.node(user).epilogue) return ValueId::none;
  const std::vector<ValueId>& inputs = graph.node(user).inputs;
  if (inputs.size() != 2 || inputs[0] == inputs[1] || graph.node(user).version < 7) return ValueId::none;
  return inputs[0] == value ? inputs[1] : inputs[0];
}

struct Match {
  ValueId x, result;
  int64_t groups = 0;
  std::vector<NodeId> nodes;  // from the InstanceNormalization on
  Tensor gain, bias;          // of the groups
};

std::optional<Match> match(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!is_op(node, "InstanceNormalization") || node.epilogue || node.outputs[0] == ValueId::none) return std::nullopt;
  const NodeId before = rewriter.producer_if(node.inputs[0], "Reshape"), behind = rewriter.only_user(node.outputs[0]);
  if (before == NodeId::none || behind == NodeId::none) return std::nullopt;
  if (!is_op(graph.node(behind), "Reshape") || graph.node(behind).inputs[0] != node.outputs[0]) return std::nullopt;
  Match found{graph.node(before).inputs[0],       graph.node(behind).outputs[0],     0, {id, behind},
              constant_of(graph, node.inputs[1]), constant_of(graph, node.inputs[2])};
  const TensorType &type = graph.value(found.x).type, &grouped = graph.value(node.inputs[0]).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 3 || !type.dims[1].known()) return std::nullopt;
  if (!same_shape(type, graph.value(found.result).type) || !grouped.has_rank || grouped.rank() != 3)
    return std::nullopt;
  if (!same_dim(type.dims[0], grouped.dims[0]) || !grouped.dims[1].known()) return std::nullopt;
  found.groups = grouped.dims[1].extent;
  if (found.groups < 1 || type.dims[1].extent % found.groups != 0) return std::nullopt;
  const bool has_constants = found.gain.dtype() == DType::f32 && found.bias.dtype() == DType::f32 &&
                             found.gain.size() == found.groups && found.bias.size() == found.groups;
  return has_constants ? std::optional(found) : std::nullopt;
}

bool fuse(Rewriter& rewriter, const OpSchema& schema, NodeId id) {
  Graph& graph = rewriter.graph();
  std::optional<Match> found = match(rewriter, graph, id);
  if (!found) return false;
  const TensorType& type = graph.value(found->x).type;
  const int64_t channels = type.dims[1].extent, in_group = channels / found->groups;
  Tensor gain(DType::f32, {channels}), bias(DType::f32, {channels});
  for (int64_t c = 0; c < channels; ++c) {
    gain.mutable_data<float>()[c] = found->gain.data<float>()[c / in_group];
    bias.mutable_data<float>()[c] = found->bias.data<float>()[c / in_group];
  }
  NodeId mul = NodeId::none, add = NodeId::none;
  const auto factor =
      per_channel(graph, operand_behind(rewriter, graph, found->result, "Mul", mul), type.rank(), channels);
  if (factor) {
    found->result = graph.node(mul).outputs[0];
    found->nodes.push_back(mul);
    const auto summand =
        per_channel(graph, operand_behind(rewriter, graph, found->result, "Add", add), type.rank(), channels);
    for (int64_t c = 0; c < channels; ++c) {
      gain.mutable_data<float>()[c] *= factor->data<float>()[c];
      bias.mutable_data<float>()[c] *= factor->data<float>()[c];
      if (summand) bias.mutable_data<float>()[c] += summand->data<float>()[c];
    }
    if (summand) {
      found->result = graph.node(add).outputs[0];
      found->nodes.push_back(add);
    }
  }
  const std::string name = graph.node(id).name;
  Node node{.op = &schema, .version = kVersion, .name = "", .inputs = {found->x}, .outputs = {found->result}};
  node.inputs.push_back(rewriter.add_constant(name + "/gain", gain));
  node.inputs.push_back(rewriter.add_constant(name + "/bias", bias));
  node.attributes.set("num_groups", found->groups);
  node.attributes.set("epsilon", graph.node(id).attributes.get_float("epsilon", 1e-5f));
  for (const NodeId erased : found->nodes) rewriter.erase(erased);
  rewriter.add(std::move(node), id);
  return true;
}

}  // namespace

bool fuse_group_norm(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "GroupNormalization", kVersion);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fuse(rewriter, *schema, id); });
}

}  // namespace lathe::passes
