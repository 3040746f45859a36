// InstanceNormalization where an exporter spelled it out (norm_parts.h): mean and variance of each channel's pixels.
#include <algorithm>

#include "graph/passes/norm_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 6;

bool are_pixels(const std::vector<int64_t>& axes, int rank) {
  if (rank < 3 || static_cast<int>(axes.size()) != rank - 2) return false;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != static_cast<int64_t>(i) + 2) return false;
  }
  return true;
}

// A constant [channels, 1, 1, ...], perhaps behind leading ones, that the one node behind `value` combines with it.
struct Affine {
  NodeId node = NodeId::none;
  Tensor channels;
};

std::optional<Affine> affine_behind(const Rewriter& rewriter, const Graph& graph, ValueId value, const char* op,
                                    int64_t channels, int rank) {
  const NodeId user = rewriter.only_user(value);
  if (user == NodeId::none || !is_op(graph.node(user), op) || graph.node(user).epilogue) return std::nullopt;
  const Node& node = graph.node(user);
  if (node.version < 7 || node.inputs[0] == node.inputs[1]) return std::nullopt;
  const Tensor tensor = constant_of(graph, node.inputs[node.inputs[0] == value ? 1 : 0]);
  if (tensor.dtype() != DType::f32 || tensor.size() != channels || tensor.rank() > rank) return std::nullopt;
  const int axis = tensor.rank() - (rank - 1);
  if (axis < 0 || tensor.dims()[static_cast<size_t>(axis)] != channels) return std::nullopt;
  return Affine{user, tensor.reshaped({channels})};
}

Tensor filled(int64_t count, float value) {
  Tensor tensor(DType::f32, {count});
  std::fill_n(tensor.mutable_data<float>(), count, value);
  return tensor;
}

void fuse(Rewriter& rewriter, const OpSchema& schema, NodeId id) {
  Graph& graph = rewriter.graph();
  const std::optional<NormParts> found = norm_parts(rewriter, graph, id);
  if (!found || found->has_affine) return;
  const TensorType type = graph.value(found->x).type;
  if (type.dtype != DType::f32 || !type.has_rank || !are_pixels(found->axes, type.rank())) return;
  if (!type.dims[1].known() || found->epsilon < 0) return;
  const int64_t channels = type.dims[1].extent;
  ValueId result = found->result;
  const std::string name = graph.node(id).name;
  std::vector<NodeId> replaced{id};
  std::optional<Affine> gain = affine_behind(rewriter, graph, result, "Mul", channels, type.rank()), bias;
  if (gain) {
    replaced.push_back(gain->node);
    result = graph.node(gain->node).outputs[0];
    bias = affine_behind(rewriter, graph, result, "Add", channels, type.rank());
  }
  if (bias) {
    replaced.push_back(bias->node);
    result = graph.node(bias->node).outputs[0];
  }
  Node node;
  node.op = &schema;
  node.version = kVersion;
  node.inputs = {found->x, rewriter.add_constant(name + "/gain", gain ? gain->channels : filled(channels, 1)),
                 rewriter.add_constant(name + "/bias", bias ? bias->channels : filled(channels, 0))};
  node.outputs = {result};
  node.attributes.set("epsilon", found->epsilon);
  // What stands before may have other readers: remove-dead takes it when it has none.
  for (const NodeId erased : replaced) rewriter.erase(erased);
  rewriter.add(std::move(node), id);
}

}  // namespace

bool fuse_instance_norm(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "InstanceNormalization", kVersion);
  if (schema == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { fuse(rewriter, *schema, id); });
}

}  // namespace lathe::passes
