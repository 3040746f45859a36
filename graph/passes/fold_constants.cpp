// Nodes whose inputs are all known are computed at load, by their references, or by generated code where that is much.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "graph/infer.h"
#include "graph/passes/codes.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "lathe/error.h"
#include "src/base/checked_size.h"

namespace lathe::passes {
namespace {

// Results up to this size are always kept; larger ones must not be much larger than what they are made of, or folding
// an Expand would trade a moment of computing for memory that stays.
constexpr size_t kFreelyKeptBytes = size_t{1} << 20;
constexpr size_t kGrowth = 4;      // int8 weights to float32
constexpr size_t kHalfGrowth = 8;  // int4 weights
// About a second's worth of them: by plain loops, which is what references are, and by generated code. That is not
// worth having for few.
constexpr double kMostInLoops = 3e8, kMost = 5e10, kWorthCode = 1e6;
// References take some 5 ns an element, code 20 us and more to make.
constexpr size_t kBytesWorthCode = size_t{256} << 10;

bool is_product(const Node& node) {
  static constexpr std::array<std::string_view, 14> kProducts = {
      "MatMul",        "Gemm",        "Conv", "ConvTranspose", "Einsum", "MatMulInteger", "ConvInteger",
      "QLinearMatMul", "QLinearConv", "LSTM", "GRU",           "RNN",    "Attention",     "DeformConv"};
  return std::find(kProducts.begin(), kProducts.end(), node.op->name) != kProducts.end();
}

// The product of an M*K and a K*N matrix takes sqrt(MK * KN * MN) multiply-adds.
double multiply_adds(const Node& node, const std::vector<Tensor>& inputs, const TensorType& output) {
  if (!is_product(node)) return 0;
  if (!output.is_static()) return std::numeric_limits<double>::infinity();
  double volume = 1;
  for (size_t i = 0; i < inputs.size() && i < 3; ++i)
    volume *= std::max<double>(1, static_cast<double>(inputs[i].size()));
  for (const Dim& dim : output.dims) volume *= static_cast<double>(std::max<int64_t>(1, dim.extent));
  return std::sqrt(volume);
}

bool is_small(const Node& node, const Graph& graph, size_t input_bytes, const Limits& limits) {
  const bool is_of_halves =
      is_op(node, "DequantizeLinear") && bits_of_code(graph.value(node.inputs[0]).type.dtype) == 4;
  const size_t growth = is_of_halves ? kHalfGrowth : kGrowth;
  const size_t allowed = std::min(limits.folded_bytes, std::max(kFreelyKeptBytes, growth * input_bytes));
  for (const ValueId id : node.outputs) {
    if (id == ValueId::none) continue;
    const TensorType& type = graph.value(id).type;
    // Where the size depends on the data (NonZero), it is bounded by the inputs'.
    if (type.is_object()) return false;
    if (!type.is_static()) {
      if (input_bytes > kFreelyKeptBytes) return false;
      continue;
    }
    try {
      if (checked_bytes(type.dtype, type.extents()) > allowed) return false;
    } catch (const Error&) {
      return false;
    }
  }
  return true;
}

// Quantized weights are most of what there is to fold in a quantized model: not by the reference's way through double.
// The product of a small integer and a float32 rounds the same.
Tensor fast_dequantized(const Node& node, const std::vector<Tensor>& inputs) {
  if (!is_op(node, "DequantizeLinear") || node.epilogue || inputs.size() < 2) return {};
  const Tensor &from = inputs[0], &scale = inputs[1];
  const Tensor zero = inputs.size() > 2 ? inputs[2] : Tensor();
  if (bits_of_code(from.dtype()) == 0 || scale.dtype() != DType::f32) return {};
  if (zero.defined() && (zero.dtype() != from.dtype() || zero.size() != scale.size())) return {};
  if (node.attributes.get_int("output_dtype", 1) > 1 || from.size() == 0) return {};
  const int64_t given = node.attributes.get_int("axis", 1), axis = given < 0 ? given + from.rank() : given;
  const int64_t block = node.attributes.get_int("block_size", 0);
  if (block == 0 && scale.rank() > 1) return {};
  // Elements are [outer, extent, inner] around the axis; scales the same of blocks, [extent], or one.
  int64_t extent = from.size(), inner = 1, run = extent, outer_step = 0, inner_step = 0;
  if (scale.size() != 1 || block > 0) {
    if (axis < 0 || axis >= from.rank()) return {};
    const auto at = static_cast<size_t>(axis);
    extent = from.dims()[at];
    for (size_t d = at + 1; d < from.dims().size(); ++d) inner *= from.dims()[d];
    run = std::max<int64_t>(block, 1);
    Dims wanted = block > 0 ? from.dims() : Dims{extent};
    if (block > 0) wanted[at] = (extent + block - 1) / block;
    if (scale.dims() != wanted) return {};
    if (block > 0) outer_step = wanted[at] * inner;
    inner_step = block > 0 ? 1 : 0;
  }
  const int64_t run_step = block > 0 ? inner : 1;
  const int no_zero = is_signed(from.dtype()) ? 1 << (bits_of_code(from.dtype()) - 1) : 0;
  const Codes codes(from), zeros(zero.defined() ? zero : from);
  Tensor to(DType::f32, from.dims());
  float* out = to.mutable_data<float>();
  int64_t flat = 0;
  for (int64_t outer = 0; outer < from.size() / (extent * inner); ++outer) {
    for (int64_t i = 0; i < extent; ++i) {
      const int64_t first = outer * outer_step + i / run * run_step;
      for (int64_t j = 0; j < inner; ++j, ++flat) {
        const int64_t at = first + j * inner_step;
        const int difference = codes[flat] - (zero.defined() ? zeros[at] : no_zero);
        out[flat] = static_cast<float>(difference) * scale.data<float>()[at];
      }
    }
  }
  return to;
}

// The results, or nothing when the node must stay.
std::vector<Tensor> results_of(const Graph& graph, const Node& node, const PassContext& context) {
  if (!node.op->deterministic || node.captures > 0 || has_bodies(node)) return {};
  if (node.op->reference == nullptr && !is_lathe_op(node, "Pointwise")) return {};
  std::vector<Tensor> inputs;
  size_t input_bytes = 0;
  for (const ValueId id : node.inputs) {
    inputs.push_back(constant_of(graph, id));
    if (id != ValueId::none && !inputs.back().defined()) return {};
    input_bytes += inputs.back().defined() ? inputs.back().bytes() : 0;
  }
  for (const ValueId id : node.outputs) {
    if (id != ValueId::none && graph.value(id).type.layout.channel_block != 0) return {};
  }
  if (!is_small(node, graph, input_bytes, context.limits)) return {};
  const TensorType first = node.outputs[0] == ValueId::none ? TensorType() : graph.value(node.outputs[0]).type;
  const double work = multiply_adds(node, inputs, first);
  if (work > (context.run_node ? kMost : kMostInLoops)) return {};
  if (Tensor fast = fast_dequantized(node, inputs); fast.defined()) return {fast};
  try {
    const bool is_much = work > kWorthCode || (work == 0 && input_bytes > kBytesWorthCode);
    if (context.run_node && is_much && !node.epilogue) return context.run_node(node, inputs);
    return run_reference(node, inputs, context.limits);
  } catch (const Error&) {
    return {};  // bad data is an error of the run that reaches it, if any does
  }
}

bool all_defined(const Node& node, const std::vector<Tensor>& results) {
  if (results.size() < node.outputs.size()) return false;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != ValueId::none && !results[i].defined()) return false;
  }
  return true;
}

}  // namespace

bool fold_constants(Graph& graph, const PassContext& context) {
  std::vector<NodeId> kept;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<Tensor> results = node.outputs.empty() ? std::vector<Tensor>() : results_of(graph, node, context);
    if (results.empty() || !all_defined(node, results)) {
      kept.push_back(id);
      continue;
    }
    graph.fold(id, std::move(results));
  }
  if (kept.size() == graph.order().size()) return false;
  graph.set_order(std::move(kept));
  return true;
}

}  // namespace lathe::passes
