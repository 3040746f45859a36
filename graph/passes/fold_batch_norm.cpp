// BatchNormalization, and products and sums with constants per channel, go into the weights of the convolution or
// matrix product before them; where there is none, a chain of them becomes one product and one sum.
#include <algorithm>
#include <cmath>

#include "graph/passes/affine.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kArithmeticVersion = 14;

std::optional<Affine> affine_of_batch_norm(const Rewriter& rewriter, const Graph& graph, const Node& node,
                                           size_t channels) {
  if (node.attributes.get_int("training_mode", 0) != 0 || node.attributes.get_int("spatial", 1) == 0)
    return std::nullopt;
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != ValueId::none && rewriter.is_used(node.outputs[i])) return std::nullopt;
  }
  std::vector<std::vector<double>> constants;
  for (size_t slot = 1; slot < 5; ++slot) {
    const Tensor tensor = constant_of(graph, input_or_none(node, slot));
    if (!is_real(tensor.dtype()) || tensor.rank() != 1 || static_cast<size_t>(tensor.size()) != channels) {
      return std::nullopt;
    }
    constants.push_back(as_doubles(tensor));
  }
  const double epsilon = node.attributes.get_float("epsilon", 1e-5f);
  Affine affine = Affine::none(channels);
  for (size_t c = 0; c < channels; ++c) {
    affine.scale[c] = constants[0][c] / std::sqrt(constants[3][c] + epsilon);
    affine.shift[c] = constants[1][c] - constants[2][c] * affine.scale[c];
  }
  return affine;
}

std::optional<Affine> affine_of(const Rewriter& rewriter, const Graph& graph, const Node& node, ValueId x,
                                const ChannelAxis& axis) {
  if (node.epilogue || node.captures > 0 || node.outputs[0] == ValueId::none) return std::nullopt;
  if (is_op(node, "BatchNormalization")) {
    return node.inputs[0] == x && axis.axis == 1 ? affine_of_batch_norm(rewriter, graph, node, axis.channels)
                                                 : std::nullopt;
  }
  return affine_of_arithmetic(graph, node, x, axis);
}

struct Chain {
  Affine total;
  std::vector<NodeId> nodes;
  ValueId result;
  bool has_batch_norm = false;
};

// The affine nodes behind `x`, as long as each is the only reader of the one before.
Chain chain_behind(const Rewriter& rewriter, const Graph& graph, ValueId x, const ChannelAxis& axis) {
  Chain chain{Affine::none(axis.channels), {}, x};
  while (true) {
    const NodeId user = rewriter.only_user(chain.result);
    if (user == NodeId::none) return chain;
    const Node& node = graph.node(user);
    const std::optional<Affine> next = affine_of(rewriter, graph, node, chain.result, axis);
    if (!next) return chain;
    chain.total.then(*next);
    chain.nodes.push_back(user);
    chain.result = node.outputs[0];
    chain.has_batch_norm = chain.has_batch_norm || is_op(node, "BatchNormalization");
  }
}

// Where the weights of an output channel lie: element (i * in_group + c) * run + j belongs to channel
// i / repeats * in_group + c.
struct WeightLayout {
  size_t channels = 0;  // of the result
  int rank = 0;         // of the result
  size_t in_group = 0;  // output channels that follow each other before a row of weights ends
  size_t run = 1;       // elements of one channel that lie together
  size_t repeats = 1;   // rows of one group
};

std::optional<WeightLayout> weight_layout(const Node& node, const Tensor& weights) {
  if (!is_real(weights.dtype()) || weights.rank() < 2 || weights.size() == 0) return std::nullopt;
  const auto extent = [&](size_t axis) { return static_cast<size_t>(weights.dims()[axis]); };
  const size_t all = static_cast<size_t>(weights.size());
  if (is_op(node, "Conv")) return WeightLayout{extent(0), weights.rank(), extent(0), all / extent(0), 1};
  if (is_op(node, "ConvTranspose")) {
    const auto groups = static_cast<size_t>(std::max<int64_t>(1, node.attributes.get_int("group", 1)));
    if (extent(0) % groups != 0) return std::nullopt;
    return WeightLayout{groups * extent(1), weights.rank(), extent(1), all / extent(0) / extent(1), extent(0) / groups};
  }
  if (!is_op(node, "Gemm") || weights.rank() != 2) return std::nullopt;
  if (node.attributes.get_int("transB", 0) != 0) return WeightLayout{extent(0), 2, extent(0), extent(1), 1};
  return WeightLayout{extent(1), 2, extent(1), 1, extent(0)};
}

Tensor scaled(const Tensor& stored, const WeightLayout& layout, const std::vector<double>& scale) {
  const Tensor weights = as_float32(stored);
  Tensor result(DType::f32, weights.dims());
  const float* from = weights.data<float>();
  float* to = result.mutable_data<float>();
  const size_t row = layout.in_group * layout.run, rows = static_cast<size_t>(weights.size()) / row;
  for (size_t i = 0; i < rows; ++i) {
    const size_t first = i / layout.repeats * layout.in_group;
    for (size_t c = 0; c < layout.in_group; ++c) {
      const double factor = scale[first + c];
      for (size_t j = 0; j < layout.run; ++j, ++from, ++to) *to = static_cast<float>(*from * factor);
    }
  }
  return rounded_to(result, stored.dtype());
}

// The bias per channel as it is added to the result; nullopt when it is not known or not per channel.
std::optional<std::vector<double>> bias_of(const Graph& graph, const Node& node, size_t channels) {
  const ValueId bias = input_or_none(node, 2);
  if (bias == ValueId::none) return std::vector<double>(channels, 0);
  const Tensor tensor = constant_of(graph, bias);
  if (!is_real(tensor.dtype())) return std::nullopt;
  if (!is_op(node, "Gemm")) {
    if (static_cast<size_t>(tensor.size()) != channels) return std::nullopt;
    return as_doubles(tensor);
  }
  auto numbers = per_channel(tensor, {channels, 2, 1});
  if (numbers) {
    for (double& number : *numbers) number *= node.attributes.get_float("beta", 1);
  }
  return numbers;
}

// Looking at all weights of a model again takes as long as scaling them: only where something could be wrong.
bool may_overflow(const Tensor& weights, const std::vector<double>& scale) {
  constexpr double kHarmless = 1e18;  // float32 weights beyond 1e20 are none
  return weights.dtype() != DType::f32 ||
         std::any_of(scale.begin(), scale.end(), [](double factor) { return !(std::abs(factor) < kHarmless); });
}

bool fold_into_weights(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (node.epilogue || (!is_op(node, "Conv") && !is_op(node, "ConvTranspose") && !is_op(node, "Gemm"))) return false;
  const Tensor weights = constant_of(graph, input_or_none(node, 1));
  const std::optional<WeightLayout> layout = weight_layout(node, weights);
  if (!layout) return false;
  const Chain chain = chain_behind(rewriter, graph, node.outputs[0], {layout->channels, layout->rank, 1});
  std::optional<std::vector<double>> bias = bias_of(graph, node, layout->channels);
  if (chain.nodes.empty() || !bias) return false;

  const std::vector<double>& scale = chain.total.scale;
  for (size_t c = 0; c < bias->size(); ++c) (*bias)[c] = (*bias)[c] * scale[c] + chain.total.shift[c];
  const Tensor summands = as_reals(*bias, {static_cast<int64_t>(layout->channels)}, weights.dtype());
  const Tensor factors = chain.total.scales() ? scaled(weights, *layout, scale) : weights;
  if (!is_finite(summands) || (may_overflow(weights, scale) && !is_finite(factors))) return false;
  if (chain.total.scales()) {
    rewriter.set_input(id, 1, rewriter.add_constant(graph.value(node.inputs[1]).name, factors));
  }
  const ValueId sum = rewriter.add_constant(graph.node(id).name + "/bias", summands);
  graph.node(id).inputs.resize(3, ValueId::none);
  rewriter.set_input(id, 2, sum);
  if (is_op(graph.node(id), "Gemm")) graph.node(id).attributes.set("beta", 1.f);
  for (const NodeId folded : chain.nodes) {
    graph.node(id).fused_from += (graph.node(id).fused_from.empty() ? std::string(graph.node(id).op->name) : "") + "+" +
                                 std::string(graph.node(folded).op->name);
  }
  for (const NodeId folded : chain.nodes) {
    if (graph.node(folded).outputs[0] == chain.result) rewriter.move_output(chain.result, id);
    rewriter.erase(folded);
  }
  return true;
}

// MatMul has no bias: the summands stay a node behind it. One factor for all columns does so too, for it costs nothing
// there, while weights of a file would become a copy.
bool fold_into_product(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!is_op(node, "MatMul") || node.epilogue || node.outputs[0] == ValueId::none) return false;
  const Tensor weights = constant_of(graph, node.inputs[1]);
  const TensorType type = graph.value(node.outputs[0]).type;
  if (!is_real(weights.dtype()) || weights.rank() != 2 || weights.size() == 0) return false;
  if (!type.has_rank || type.rank() < 2 || type.dtype != weights.dtype()) return false;
  const auto columns = static_cast<size_t>(weights.dims()[1]), rows = static_cast<size_t>(weights.dims()[0]);
  const Chain chain = chain_behind(rewriter, graph, node.outputs[0], {columns, type.rank(), type.rank() - 1});
  const std::vector<double>& scale = chain.total.scale;
  if (std::all_of(scale.begin(), scale.end(), [&](double factor) { return factor == scale[0]; })) return false;
  const Tensor factors = scaled(weights, {columns, type.rank(), columns, 1, rows}, scale);
  const OpSchema* add = context.ops.find("", "Add", kArithmeticVersion);
  const Tensor summands = as_reals(chain.total.shift, {static_cast<int64_t>(columns)}, weights.dtype());
  if (!is_finite(factors) || !is_finite(summands) || add == nullptr) return false;

  for (const NodeId folded : chain.nodes) {
    graph.node(id).fused_from +=
        (graph.node(id).fused_from.empty() ? "MatMul+" : "+") + std::string(graph.node(folded).op->name);
    rewriter.erase(folded);
  }
  rewriter.set_input(id, 1, rewriter.add_constant(graph.value(graph.node(id).inputs[1]).name, factors));
  if (!chain.total.shifts()) {
    rewriter.move_output(chain.result, id);
    return true;
  }
  const ValueId shift = rewriter.add_constant(graph.node(id).name + "/bias", summands);
  const ValueId made = graph.node(id).outputs[0];
  rewriter.add(
      {.op = add, .version = kArithmeticVersion, .name = "", .inputs = {made, shift}, .outputs = {chain.result}}, id);
  return true;
}

// A chain that begins with a BatchNormalization and has no weights before it: x * scale + shift.
bool spell_out(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!is_op(node, "BatchNormalization") || node.epilogue) return false;
  const ValueId x = node.inputs[0];
  const TensorType type = graph.value(x).type;
  const Tensor scale = constant_of(graph, input_or_none(node, 1));
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 2 || !scale.defined()) return false;
  const auto channels = static_cast<size_t>(scale.size());
  const std::optional<Affine> first = affine_of(rewriter, graph, node, x, {channels, type.rank(), 1});
  const OpSchema *mul = context.ops.find("", "Mul", kArithmeticVersion),
                 *add = context.ops.find("", "Add", kArithmeticVersion);
  if (!first || mul == nullptr || add == nullptr) return false;
  Chain chain = chain_behind(rewriter, graph, node.outputs[0], {channels, type.rank(), 1});
  Affine total = *first;
  total.then(chain.total);

  Dims dims(static_cast<size_t>(type.rank() - 1), 1);
  dims[0] = static_cast<int64_t>(channels);
  const std::string name = node.name;
  const ValueId scales = rewriter.add_constant(name + "/scale", as_reals(total.scale, dims));
  const ValueId shifts = rewriter.add_constant(name + "/shift", as_reals(total.shift, dims));
  const ValueId scaled = rewriter.add_value(name + "/scaled", type);
  rewriter.erase(id);
  for (const NodeId merged : chain.nodes) rewriter.erase(merged);
  rewriter.add({.op = mul, .version = kArithmeticVersion, .name = "", .inputs = {x, scales}, .outputs = {scaled}}, id);
  rewriter.add({.op = add,
                .version = kArithmeticVersion,
                .name = "",
                .inputs = {scaled, shifts},
                .outputs = {chain.result},
                .fused_from = "BatchNormalization"},
               id);
  return true;
}

}  // namespace

bool fold_batch_norm(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!rewriter.is_live(id)) continue;
    changed = fold_into_weights(rewriter, id) || fold_into_product(rewriter, context, id) ||
              spell_out(rewriter, context, id) || changed;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
