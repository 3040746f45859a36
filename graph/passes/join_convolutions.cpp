// A convolution and a 1x1 convolution right behind it become one, where that is less to compute.
#include <algorithm>

#include "graph/passes/affine.h"
#include "graph/passes/convolution_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr double kWorthwhile = 0.9;
// Pixels that a stride leaves out cost less than counted where the first convolution has a faster algorithm.
constexpr double kStridedGain = 4;
constexpr double kMostWork = 1 << 28;  // multiply-adds to make the joint weights: a fraction of a second

struct Convolution {
  Tensor weights;            // [outputs][inputs][window...]
  std::vector<double> bias;  // per output
  Dims strides;

  int64_t outputs() const { return weights.dims()[0]; }
  int64_t inputs() const { return weights.dims()[1]; }
  int64_t window() const { return weights.size() / outputs() / inputs(); }
};

std::optional<Convolution> as_convolution(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  if (id == NodeId::none || !rewriter.is_live(id)) return std::nullopt;
  const Node& node = graph.node(id);
  if (!is_op(node, "Conv") || node.epilogue || node.attributes.get_int("group", 1) != 1) return std::nullopt;
  Convolution made{constant_of(graph, node.inputs[1]), {}, node.attributes.get_ints("strides")};
  if (made.weights.dtype() != DType::f32 || made.weights.rank() < 3 || made.weights.size() == 0) return std::nullopt;
  made.strides.resize(static_cast<size_t>(made.weights.rank()) - 2, 1);
  made.bias.assign(static_cast<size_t>(made.outputs()), 0);
  if (input_or_none(node, 2) == ValueId::none) return made;
  const Tensor bias = constant_of(graph, node.inputs[2]);
  if (bias.dtype() != DType::f32 || bias.size() != made.outputs()) return std::nullopt;
  made.bias = as_doubles(bias);
  return made;
}

bool is_worthwhile(const Convolution& first, const Convolution& second) {
  const auto size = [](int64_t count) { return static_cast<double>(count); };
  double skipped = 1;
  for (const int64_t stride : second.strides) skipped *= size(stride);
  const double before = size(first.weights.size()), behind = size(second.weights.size());
  const double joint = size(first.inputs()) * size(second.outputs()) * size(first.window());
  if (joint * size(first.outputs()) > kMostWork) return false;
  const bool may_be_faster = skipped > 1 && first.window() > 1;
  return joint * (may_be_faster ? kStridedGain : 1) < kWorthwhile * (before * skipped + behind);
}

Tensor joint_weights(const Convolution& first, const Convolution& second) {
  Dims dims = first.weights.dims();
  dims[0] = second.outputs();
  Tensor result(DType::f32, dims);
  const auto row = static_cast<size_t>(first.weights.size() / first.outputs());
  const float* outer = second.weights.data<float>();
  float* to = result.mutable_data<float>();
  std::vector<double> sums(row);
  for (int64_t o = 0; o < second.outputs(); ++o, to += row) {
    std::fill(sums.begin(), sums.end(), 0);
    const float* inner = first.weights.data<float>();
    for (int64_t m = 0; m < first.outputs(); ++m, ++outer, inner += row) {
      for (size_t i = 0; i < row; ++i) sums[i] += double{*outer} * inner[i];
    }
    std::transform(sums.begin(), sums.end(), to, [](double sum) { return static_cast<float>(sum); });
  }
  return result;
}

Tensor joint_bias(const Convolution& first, const Convolution& second) {
  std::vector<double> sums = second.bias;
  const float* outer = second.weights.data<float>();
  for (double& sum : sums) {
    for (const double summand : first.bias) sum += summand * *outer++;
  }
  return as_reals(sums, {second.outputs()});
}

bool join(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const std::optional<Convolution> second = as_convolution(rewriter, graph, id);
  if (!second || second->window() != 1 || !has_no_pads(graph.node(id))) return false;
  const ValueId between = graph.node(id).inputs[0];
  const NodeId before = graph.value(between).producer;
  const std::optional<Convolution> first = as_convolution(rewriter, graph, before);
  if (!first || rewriter.only_user(between) != id || first->outputs() != second->inputs()) return false;
  if (first->strides.size() != second->strides.size() || !is_worthwhile(*first, *second)) return false;
  const bool is_strided = std::any_of(second->strides.begin(), second->strides.end(), [](int64_t s) { return s != 1; });
  // How an automatic padding is shared out depends on the stride.
  const std::string mode = graph.node(before).attributes.get_string("auto_pad", "NOTSET");
  if (is_strided && mode != "NOTSET" && mode != "VALID") return false;
  const Tensor weights = joint_weights(*first, *second), bias = joint_bias(*first, *second);
  if (!is_finite(weights) || !is_finite(bias)) return false;

  Node joint = graph.node(before);
  const ValueId result = graph.node(id).outputs[0];
  joint.name = graph.node(id).name;
  joint.inputs = {joint.inputs[0], rewriter.add_constant(graph.value(joint.inputs[1]).name, weights),
                  rewriter.add_constant(joint.name + "/bias", bias)};
  joint.outputs = {result};
  joint.fused_from = "Conv+Conv";
  Dims strides = first->strides;
  for (size_t i = 0; i < strides.size(); ++i) strides[i] *= second->strides[i];
  joint.attributes.set("strides", std::move(strides));
  rewriter.erase(before);
  rewriter.erase(id);
  rewriter.add(std::move(joint), id);
  return true;
}

}  // namespace

bool join_convolutions(Graph& graph, const PassContext&) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { join(rewriter, id); });
}

}  // namespace lathe::passes
