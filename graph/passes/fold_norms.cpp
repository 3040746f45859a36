// Products and sums with constants behind a normalization go into its own gain and bias.
#include "graph/passes/affine.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

struct Norm {
  ChannelAxis axis;  // along which gain and bias spread
  bool has_bias = true;
};

// Gain and bias per element of one axis: the last, or that of the channels.
std::optional<Norm> norm_of(const Graph& graph, const Node& node) {
  if (node.epilogue || node.outputs.empty() || node.outputs[0] == ValueId::none) return std::nullopt;
  const bool is_root_mean = is_op(node, "RMSNormalization");
  const bool is_row = is_root_mean || is_op(node, "LayerNormalization");
  const bool is_group = is_op(node, "GroupNormalization");
  if (!is_row && !is_group && !is_op(node, "InstanceNormalization")) return std::nullopt;
  const TensorType& type = graph.value(node.outputs[0]).type;
  const Tensor gain = constant_of(graph, input_or_none(node, 1));
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 2) return std::nullopt;
  if (gain.dtype() != DType::f32 || gain.rank() != 1) return std::nullopt;
  const int axis = is_row ? type.rank() - 1 : 1;
  const int64_t given = node.attributes.get_int("axis", -1);
  if (is_row && (given < 0 ? given + type.rank() : given) != axis) return std::nullopt;
  // Before opset 21 a GroupNormalization has one gain for each group.
  if (type.dims[static_cast<size_t>(axis)].extent != gain.size()) return std::nullopt;
  return Norm{{static_cast<size_t>(gain.size()), type.rank(), axis}, !is_root_mean};
}

bool reads_statistics(const Rewriter& rewriter, const Node& node) {
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != ValueId::none && rewriter.is_used(node.outputs[i])) return true;
  }
  return false;
}

// Takes in the one node behind it.
bool fold_next(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  const std::optional<Norm> norm = norm_of(graph, node);
  if (!norm || reads_statistics(rewriter, node)) return false;
  const ValueId result = node.outputs[0], bias = input_or_none(node, 2);
  const NodeId next = rewriter.only_user(result);
  if (next == NodeId::none || graph.node(next).epilogue || graph.node(next).outputs[0] == ValueId::none) return false;
  const std::optional<Affine> affine = affine_of_arithmetic(graph, graph.node(next), result, norm->axis);
  if (!affine || (affine->shifts() && !norm->has_bias)) return false;
  const Tensor old_bias = bias == ValueId::none ? Tensor() : constant_of(graph, bias);
  if (bias != ValueId::none && (old_bias.dtype() != DType::f32 || old_bias.rank() != 1)) return false;

  Affine total = Affine::none(norm->axis.channels);
  total.scale = as_doubles(constant_of(graph, node.inputs[1]));
  if (old_bias.defined()) total.shift = as_doubles(old_bias);
  if (total.shift.size() != total.scale.size()) return false;
  total.then(*affine);
  const Dims dims{static_cast<int64_t>(norm->axis.channels)};
  const Tensor gain = as_reals(total.scale, dims), shift = as_reals(total.shift, dims);
  if (!is_finite(gain) || !is_finite(shift)) return false;

  rewriter.set_input(id, 1, rewriter.add_constant(graph.node(id).name + "/gain", gain));
  if (old_bias.defined() || affine->shifts()) {
    graph.node(id).inputs.resize(3, ValueId::none);
    rewriter.set_input(id, 2, rewriter.add_constant(graph.node(id).name + "/bias", shift));
  }
  Node& folded = graph.node(id);
  folded.fused_from = folded.origin() + "+" + std::string(graph.node(next).op->name);
  const ValueId last = graph.node(next).outputs[0];
  rewriter.erase(next);
  rewriter.move_output(last, id);
  return true;
}

}  // namespace

bool fold_norms(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [](Rewriter& rewriter, NodeId id) {
    while (fold_next(rewriter, id)) {
    }
  });
}

}  // namespace lathe::passes
