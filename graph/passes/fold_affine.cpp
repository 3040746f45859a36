// Products and sums with constants before a convolution or matrix product go into its weights and bias:
// (x * s + t) W + b = x (s W) + (t W + b).
#include <algorithm>
#include <cmath>

#include "graph/passes/affine.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kAddVersion = 14;

// What a node multiplies its input 0 with: weights[o][i][j] meets element i of `input`, and makes element o of the
// result, each a product and a sum over i and j.
struct Weights {
  Tensor tensor;  // as float32
  ChannelAxis input;
  size_t outputs = 0;
  size_t groups = 1;           // the weights of output o begin at input o / (outputs / groups) * in_group
  size_t in_group = 0;         // inputs of one group
  size_t run = 1;              // weights of one input and one output
  bool is_transposed = false;  // [i][o]

  size_t input_of(size_t output, size_t i) const { return output / (outputs / groups) * in_group + i; }
  size_t index(size_t output, size_t i) const {
    return is_transposed ? i * outputs + output : (output * in_group + i) * run;
  }
};

std::optional<Weights> weights_of_conv(const Node& node, const Tensor& tensor) {
  if (tensor.rank() < 3) return std::nullopt;
  Weights weights{.tensor = tensor, .input = {}};
  weights.groups = static_cast<size_t>(std::max<int64_t>(1, node.attributes.get_int("group", 1)));
  weights.outputs = static_cast<size_t>(tensor.dims()[0]);
  weights.in_group = static_cast<size_t>(tensor.dims()[1]);
  if (weights.outputs % weights.groups != 0) return std::nullopt;
  weights.run = static_cast<size_t>(tensor.size()) / weights.outputs / weights.in_group;
  weights.input = {weights.groups * weights.in_group, tensor.rank(), 1};
  return weights;
}

std::optional<Weights> weights_of(const Graph& graph, const Node& node) {
  const Tensor stored = constant_of(graph, input_or_none(node, 1));
  if (!is_real(stored.dtype()) || stored.size() == 0 || node.epilogue) return std::nullopt;
  const Tensor tensor = as_float32(stored);
  if (is_op(node, "Conv")) return weights_of_conv(node, tensor);
  const TensorType& type = graph.value(node.inputs[0]).type;
  const bool is_gemm = is_op(node, "Gemm");
  if ((!is_gemm && !is_op(node, "MatMul")) || tensor.rank() != 2 || !type.has_rank || type.rank() < 2)
    return std::nullopt;
  if (is_gemm && node.attributes.get_int("transA", 0) != 0) return std::nullopt;
  Weights weights{.tensor = tensor, .input = {}};
  weights.is_transposed = !is_gemm || node.attributes.get_int("transB", 0) == 0;
  const size_t outputs = weights.is_transposed ? 1 : 0;
  weights.outputs = static_cast<size_t>(tensor.dims()[outputs]);
  weights.in_group = static_cast<size_t>(tensor.dims()[1 - outputs]);
  weights.input = {weights.in_group, type.rank(), type.rank() - 1};
  return weights;
}

// A border of zeros is not shifted.
bool may_pad(const Node& node) {
  if (!is_op(node, "Conv")) return false;
  const std::string mode = node.attributes.get_string("auto_pad", "NOTSET");
  if (mode == "VALID") return false;
  const std::vector<int64_t> pads = node.attributes.get_ints("pads");
  return mode != "NOTSET" || std::any_of(pads.begin(), pads.end(), [](int64_t count) { return count != 0; });
}

Tensor scaled(const Weights& weights, const std::vector<double>& scale) {
  Tensor result = weights.tensor.clone();
  float* to = result.mutable_data<float>();
  for (size_t o = 0; o < weights.outputs; ++o) {
    for (size_t i = 0; i < weights.in_group; ++i) {
      const double factor = scale[weights.input_of(o, i)];
      float* at = to + weights.index(o, i);
      for (size_t j = 0; j < weights.run; ++j) at[j] = static_cast<float>(at[j] * factor);
    }
  }
  return result;
}

// What the summands make of each output.
std::vector<double> shifted(const Weights& weights, const std::vector<double>& shift) {
  std::vector<double> sums(weights.outputs, 0);
  const float* from = weights.tensor.data<float>();
  for (size_t o = 0; o < weights.outputs; ++o) {
    for (size_t i = 0; i < weights.in_group; ++i) {
      const float* at = from + weights.index(o, i);
      for (size_t j = 0; j < weights.run; ++j) sums[o] += at[j] * shift[weights.input_of(o, i)];
    }
  }
  return sums;
}

// The node's own bias as it is added; nullopt when it is not constant or not one per output.
std::optional<std::vector<double>> bias_of(const Graph& graph, const Node& node, size_t outputs) {
  const ValueId id = input_or_none(node, 2);
  if (is_op(node, "MatMul") || id == ValueId::none) return std::vector<double>(outputs, 0);
  std::optional<std::vector<double>> bias =
      per_channel(constant_of(graph, id), {outputs, is_op(node, "Gemm") ? 2 : 1, is_op(node, "Gemm") ? 1 : 0});
  if (!bias || !is_op(node, "Gemm")) return bias;
  for (double& number : *bias) number *= node.attributes.get_float("beta", 1);
  return bias;
}

struct Found {
  NodeId before = NodeId::none;
  ValueId x = ValueId::none;
  Affine affine;
  bool is_uniform = false;
};

std::optional<Found> affine_before(const Rewriter& rewriter, const Graph& graph, NodeId id, const ChannelAxis& axis,
                                   DType dtype) {
  const ValueId operand = graph.node(id).inputs[0];
  const NodeId before = graph.value(operand).producer;
  if (before == NodeId::none || !rewriter.is_live(before) || rewriter.only_user(operand) != id ||
      !rewriter.has_one_use(operand))
    return std::nullopt;
  const Node& node = graph.node(before);
  if (node.epilogue || node.inputs.size() != 2) return std::nullopt;
  for (size_t slot = 0; slot < 2; ++slot) {
    const ValueId x = node.inputs[slot], other = node.inputs[1 - slot];
    const TensorType& type = graph.value(x).type;
    if (graph.value(x).is_constant() || type.dtype != dtype || !type.has_rank || type.rank() != axis.rank) continue;
    if (type.dims[static_cast<size_t>(axis.axis)].extent != static_cast<int64_t>(axis.channels)) continue;
    std::optional<Affine> affine = affine_of_arithmetic(graph, node, x, axis);
    if (!affine) continue;
    const bool is_known =
        std::all_of(affine->scale.begin(), affine->scale.end(), [](double s) { return std::isfinite(s); });
    if (is_known) return Found{before, x, std::move(*affine), is_scalar(graph.value(other).type)};
  }
  return std::nullopt;
}

class Folder {
 public:
  Folder(Rewriter& rewriter, const PassContext& context, NodeId id)
      : rewriter_(rewriter), graph_(rewriter.graph()), context_(context), id_(id) {}

  bool fold() {
    const std::optional<Weights> weights = weights_of(graph_, graph_.node(id_));
    if (!weights) return false;
    const DType dtype = graph_.value(graph_.node(id_).inputs[1]).type.dtype;
    const std::optional<Found> found = affine_before(rewriter_, graph_, id_, weights->input, dtype);
    if (!found) return false;
    const bool scales = found->affine.scales(), shifts = found->affine.shifts(),
               is_conv = is_op(graph_.node(id_), "Conv");
    // One factor for all rides behind a product for nothing; weights of a file would become a copy.
    if (scales && found->is_uniform && !is_conv) return false;
    if (shifts && may_pad(graph_.node(id_))) return false;
    const std::optional<std::vector<double>> bias = bias_of(graph_, graph_.node(id_), weights->outputs);
    if (shifts && !bias) return false;
    const Tensor factors = scales ? rounded_to(scaled(*weights, found->affine.scale), dtype) : weights->tensor;
    if (!is_finite(factors)) return false;
    const OpSchema* add = context_.ops.find("", "Add", kAddVersion);
    if (shifts) {
      const bool is_matmul = is_op(graph_.node(id_), "MatMul");
      if (is_matmul && (add == nullptr || graph_.node(id_).outputs[0] == ValueId::none)) return false;
      std::vector<double> sums = shifted(*weights, found->affine.shift);
      const double alpha = is_op(graph_.node(id_), "Gemm") ? graph_.node(id_).attributes.get_float("alpha", 1) : 1;
      for (size_t o = 0; o < sums.size(); ++o) sums[o] = sums[o] * alpha + (*bias)[o];
      const Tensor sum = as_reals(sums, {static_cast<int64_t>(sums.size())}, dtype);
      if (!is_finite(sum)) return false;
      is_matmul ? add_behind(*add, sum) : set_bias(sum);
    }
    Node& node = graph_.node(id_);
    node.fused_from = std::string(graph_.node(found->before).op->name) + "+" + node.origin();
    if (scales) rewriter_.set_input(id_, 1, rewriter_.add_constant(graph_.value(node.inputs[1]).name, factors));
    rewriter_.set_input(id_, 0, found->x);
    rewriter_.erase(found->before);
    return true;
  }

 private:
  void set_bias(const Tensor& sum) {
    const ValueId bias = rewriter_.add_constant(graph_.node(id_).name + "/bias", sum);
    graph_.node(id_).inputs.resize(3, ValueId::none);
    rewriter_.set_input(id_, 2, bias);
    if (is_op(graph_.node(id_), "Gemm")) graph_.node(id_).attributes.set("beta", 1.f);
  }

  void add_behind(const OpSchema& add, const Tensor& sum) {
    const ValueId result = graph_.node(id_).outputs[0];
    const ValueId inner = rewriter_.add_value(graph_.value(result).name, graph_.value(result).type);
    const ValueId bias = rewriter_.add_constant(graph_.node(id_).name + "/bias", sum);
    rewriter_.move_output(inner, id_);
    rewriter_.add({.op = &add, .version = kAddVersion, .name = "", .inputs = {inner, bias}, .outputs = {result}}, id_);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const PassContext& context_;
  NodeId id_;
};

}  // namespace

bool fold_affine(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    while (rewriter.is_live(id) && Folder(rewriter, context, id).fold()) {
    }
  });
}

}  // namespace lathe::passes
