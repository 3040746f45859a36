// Convolutions of one shape over one value become one with the channels of all, of which each reader has a part. Only
// where the parts are views: one picture, whole channel blocks, and no reader that would have had its part in place.
#include <algorithm>
#include <map>

#include "graph/passes/convolution_parts.h"
#include "graph/passes/passes.h"

namespace lathe::passes {
namespace {

constexpr int kSplitVersion = 13;

// Everything that convolutions must share to be one.
bool are_alike(const Graph& graph, const Node& a, const Node& b) {
  if (!same_window(graph, a, b) || a.epilogue.has_value() != b.epilogue.has_value()) return false;
  return !a.epilogue || a.epilogue->expression == b.epilogue->expression;
}

bool is_candidate(const Rewriter& rewriter, const Graph& graph, NodeId id, int block) {
  const Node& node = graph.node(id);
  if (!is_op(node, "Conv") || node.outputs[0] == ValueId::none || (node.epilogue && node.epilogue->inputs > 0))
    return false;
  if (node.attributes.get_int("group", 1) != 1 || node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET")
    return false;
  if (node.epilogue && node.epilogue->expression.output != DType::f32) return false;
  const TensorType &x = graph.value(node.inputs[0]).type, &y = graph.value(node.outputs[0]).type;
  if (!x.is_static() || !y.is_static() || x.dtype != DType::f32 || x.rank() != 4) return false;
  if (x.dims[0].extent != 1 || x.dims[1].extent < block || y.dims[1].extent % block != 0) return false;
  if (constant_of(graph, node.inputs[1]).dtype() != DType::f32) return false;
  if (!bias_of(graph, node).defined()) return false;
  if (rewriter.is_output(node.outputs[0])) return false;
  const std::vector<Graph::Use> uses = rewriter.uses(node.outputs[0]);
  // A part that is joined with others lies in its place now, and would have to be copied there.
  return std::all_of(uses.begin(), uses.end(),
                     [&](const Graph::Use& use) { return !is_op(graph.node(use.node), "Concat"); });
}

void merge(Rewriter& rewriter, const OpSchema& split, const std::vector<NodeId>& ids) {
  Graph& graph = rewriter.graph();
  std::vector<Tensor> weights, biases;
  std::vector<ValueId> outputs;
  std::vector<int64_t> channels;
  for (const NodeId id : ids) {
    const Node& node = graph.node(id);
    weights.push_back(constant_of(graph, node.inputs[1]));
    channels.push_back(weights.back().dims()[0]);
    biases.push_back(bias_of(graph, node));
    outputs.push_back(node.outputs[0]);
  }
  int64_t all = 0;
  for (const int64_t count : channels) all += count;
  Dims dims = weights[0].dims();
  dims[0] = all;
  Node wide = graph.node(ids[0]);
  const std::string name = wide.name;
  wide.name = name + "~wide";
  const ValueId x = wide.inputs[0], kernel = rewriter.add_constant(name + "/weights", joined_rows(weights, dims));
  wide.inputs = {x, kernel, rewriter.add_constant(name + "/bias", joined_rows(biases, {all}))};
  wide.fused_from =
      (wide.fused_from.empty() ? std::string("Conv") : wide.fused_from) + " x" + std::to_string(ids.size());
  TensorType type = graph.value(outputs[0]).type;
  type.dims[1] = {all, ""};
  const ValueId whole = rewriter.add_value(name, type);
  wide.outputs = {whole};
  const ValueId sizes = rewriter.add_integers(name + "/parts", channels);
  for (const NodeId id : ids) rewriter.erase(id);
  rewriter.add(std::move(wide), ids[0]);
  Node parts{.op = &split, .version = kSplitVersion, .name = "", .inputs = {whole, sizes}, .outputs = outputs};
  parts.attributes.set("axis", int64_t{1});
  rewriter.add(std::move(parts), ids[0]);
}

}  // namespace

bool merge_convolutions(Graph& graph, const PassContext& context) {
  const OpSchema* split = context.ops.find("", "Split", kSplitVersion);
  if (split == nullptr || context.channel_block == 0) return false;
  Rewriter rewriter(graph);
  std::map<ValueId, std::vector<NodeId>> by_input;
  for (const NodeId id : graph.order()) {
    if (is_candidate(rewriter, graph, id, context.channel_block)) by_input[graph.node(id).inputs[0]].push_back(id);
  }
  for (auto& [input, ids] : by_input) {
    while (ids.size() > 1) {
      std::vector<NodeId> alike, others;
      for (const NodeId id : ids) {
        (are_alike(graph, graph.node(ids[0]), graph.node(id)) ? alike : others).push_back(id);
      }
      if (alike.size() > 1) merge(rewriter, *split, alike);
      ids = others;
    }
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
