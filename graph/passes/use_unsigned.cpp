// Signed bytes that QuantizeLinear makes for DequantizeLinear alone become unsigned ones, 128 more, and so do their
// zero points: exactly the same numbers, in the form in which the kernels for integers take their left operand.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr uint8_t kFlip = 0x80;  // adds 128

bool is_plain(const Node& node, std::string_view name) {
  return is_op(node, name) && !node.epilogue && node.attributes.get_int("output_dtype", 0) == 0;
}

// The zero point, if it is a constant of signed bytes.
Tensor signed_zero(const Graph& graph, const Node& node) {
  const Tensor zero = constant_of(graph, input_or_none(node, 2));
  return zero.defined() && zero.dtype() == DType::i8 ? zero : Tensor();
}

Tensor unsigned_zero(const Tensor& zero) {
  Tensor flipped(DType::u8, zero.dims());
  for (int64_t i = 0; i < zero.size(); ++i) {
    flipped.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(static_cast<uint8_t>(zero.data<int8_t>()[i]) ^ kFlip);
  }
  return flipped;
}

void flip_zero(Rewriter& rewriter, NodeId id) {
  const Graph& graph = rewriter.graph();
  const ValueId zero = graph.node(id).inputs[2];
  const std::string name = graph.value(zero).name;
  rewriter.set_input(id, 2, rewriter.add_constant(name, unsigned_zero(constant_of(graph, zero))));
}

void flip(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& quantize = graph.node(id);
  if (!is_plain(quantize, "QuantizeLinear") || !signed_zero(graph, quantize).defined()) return;
  const ValueId bytes = quantize.outputs[0];
  const std::vector<Graph::Use> uses = rewriter.uses(bytes);
  if (rewriter.is_output(bytes) || uses.empty()) return;
  for (const Graph::Use& use : uses) {
    const Node& reader = graph.node(use.node);
    if (use.slot != 0 || !is_op(reader, "DequantizeLinear") || reader.epilogue) return;
    if (!signed_zero(graph, reader).defined()) return;
  }
  flip_zero(rewriter, id);
  for (const Graph::Use& use : uses) flip_zero(rewriter, use.node);
  graph.value(bytes).type.dtype = DType::u8;
}

}  // namespace

bool use_unsigned(Graph& graph, const PassContext&) { return rewrite_each(graph, flip); }

}  // namespace lathe::passes
