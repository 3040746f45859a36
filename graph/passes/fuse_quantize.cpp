// QuantizeLinear behind a normalization or Softmax of rows goes into its kernel, which then stores bytes.
#include <array>
#include <cmath>

#include "graph/passes/fusion.h"
#include "graph/passes/passes.h"
#include "graph/softmax_axes.h"

namespace lathe::passes {
namespace {

bool normalizes_rows(const Node& node) {
  static constexpr std::array<std::string_view, 3> kNames = {"LayerNormalization", "RMSNormalization",
                                                             "SimplifiedLayerNormalization"};
  static constexpr std::array<std::string_view, 2> kSkipNames = {"SkipLayerNormalization",
                                                                 "SkipSimplifiedLayerNormalization"};
  for (const std::string_view name : kNames) {
    if (is_op(node, name)) return true;
  }
  for (const std::string_view name : kSkipNames) {
    if (node.op->domain == "com.microsoft" && node.op->name == name) return true;
  }
  return false;
}

bool is_softmax_of_rows(const Node& node, const TensorType& type) {
  return is_op(node, "Softmax") && type.has_rank && type.rank() > 0 && softmax_axes(node, type.rank()).are_innermost();
}

}  // namespace

bool takes_quantization(const Graph& graph, const Node& node) {
  return normalizes_rows(node) || is_softmax_of_rows(node, graph.value(node.outputs[0]).type);
}

namespace {

// One scale for all elements, of which the reciprocal is a number too, and bytes as results.
bool is_plain(const Graph& graph, const Node& quantize) {
  if (quantize.epilogue || quantize.inputs.size() < 2) return false;
  const DType to = graph.value(quantize.outputs[0]).type.dtype;
  if (to != DType::u8 && to != DType::i8) return false;
  const Tensor scale = constant_of(graph, quantize.inputs[1]);
  if (!scale.defined() || scale.dtype() != DType::f32 || scale.size() != 1 || scale.rank() > 1) return false;
  const float value = *scale.data<float>();
  if (!std::isnormal(value) || !std::isnormal(1 / value)) return false;
  const ValueId zero = input_or_none(quantize, 2);
  if (zero == ValueId::none) return true;
  const Tensor constant = constant_of(graph, zero);
  return constant.defined() && constant.size() == 1 && constant.rank() <= 1;
}

bool try_fuse(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& quantize = graph.node(id);
  if (!is_op(quantize, "QuantizeLinear") || !is_plain(graph, quantize)) return false;
  const ValueId rows = quantize.inputs[0];
  const NodeId maker = graph.value(rows).producer;
  if (maker == NodeId::none || !rewriter.is_live(maker) || rewriter.only_user(rows) != id) return false;
  const Node& node = graph.node(maker);
  const TensorType& type = graph.value(rows).type;
  if (node.epilogue || node.outputs[0] != rows || type.dtype != DType::f32 || type.layout.channel_block != 0) {
    return false;
  }
  if (!takes_quantization(graph, node)) return false;
  const std::optional<Expression> expression = fusible_expression(graph, quantize);
  if (!expression) return false;
  ExpressionBuilder builder(graph);
  builder.add_input(rows);
  builder.append(quantize, *expression);
  if (builder.inputs().size() != 1) return false;
  const ValueId result = quantize.outputs[0];
  Epilogue epilogue{builder.finish(graph.value(result).type.dtype), 0};
  rewriter.erase(id);
  Node& fused = graph.node(maker);
  fused.fused_from = (fused.fused_from.empty() ? std::string(fused.op->name) : fused.fused_from) + "+QuantizeLinear";
  fused.epilogue = std::move(epilogue);
  rewriter.move_output(result, maker);
  return true;
}

}  // namespace

bool fuse_quantize(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  return rewrite_each(rewriter, [&](NodeId id) { try_fuse(rewriter, id); });
}

}  // namespace lathe::passes
