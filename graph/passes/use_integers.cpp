// A product of dequantized operands becomes a product of integers (lathe::QuantizedMatMul). Before constants are
// folded: the weights stay bytes.
#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;

bool are_bytes(const Graph& graph, const Dequantized& operand) {
  const DType dtype = graph.value(operand.bytes).type.dtype;
  return is_byte(dtype);
}

// The product of the scales, by column.
Tensor joint_scale(const Tensor& a, const Tensor& b, double factor) {
  Tensor scale(DType::f32, {b.size()});
  for (int64_t i = 0; i < b.size(); ++i) {
    scale.mutable_data<float>()[i] = static_cast<float>(factor * *a.data<float>() * b.data<float>()[i]);
  }
  return scale;
}

class Products {
 public:
  Products(Rewriter& rewriter, const OpSchema& schema, const OpSchema& add)
      : rewriter_(rewriter), schema_(schema), add_(add) {}

  void try_node(NodeId id) {
    const Node& node = rewriter_.graph().node(id);
    if (node.epilogue || node.outputs[0] == ValueId::none) return;
    if (is_op(node, "MatMul")) try_product(id, {.b_axis_from_end = 1});
    if (is_op(node, "Gemm")) try_gemm(id);
    if (is_op(node, "MatMulInteger")) try_dynamic(id);
  }

  // Transposes of bytes in front of a product become the order in which it takes its operands.
  void absorb_transposes(NodeId id) {
    for (size_t slot = 0; slot < 2; ++slot) {
      const Graph& graph = rewriter_.graph();
      const Node& node = graph.node(id);
      const char* attribute = slot == 0 ? "perm_a" : "perm_b";
      const ValueId input = node.inputs[slot];
      if (!node.attributes.get_ints(attribute).empty() || node.inputs[0] == node.inputs[1]) continue;
      const NodeId transpose = rewriter_.producer_if(input, "Transpose");
      if (transpose == NodeId::none || graph.node(transpose).epilogue) continue;
      if (rewriter_.only_user(input) == NodeId::none) continue;
      const Perm perm = order_of(graph, graph.node(transpose));
      const size_t rank = perm.size();
      if (rank < 2 || static_cast<int>(rank) != graph.value(graph.node(transpose).inputs[0]).type.rank()) continue;
      // Kernels stream whole rows: of A along k, of B along n or k.
      const auto last = static_cast<int64_t>(rank) - 1;
      if (perm[rank - 1] != last && (slot == 0 || perm[rank - 2] != last)) continue;
      const ValueId source = graph.node(transpose).inputs[0];
      rewriter_.graph().node(id).attributes.set(attribute, perm);
      rewriter_.erase(transpose);
      rewriter_.set_input(id, slot, source);
    }
  }

 private:
  struct Form {
    int b_axis_from_end = 1;  // of B, the axis with the columns
    double factor = 1;
    Perm b_perm = {};
    ValueId added = ValueId::none;
  };

  void try_gemm(NodeId id) {
    const Node& node = rewriter_.graph().node(id);
    if (node.attributes.get_int("transA", 0) != 0) return;
    Form form;
    form.factor = node.attributes.get_float("alpha", 1);
    if (node.attributes.get_int("transB", 0) != 0) {
      form.b_perm = {1, 0};
      form.b_axis_from_end = 2;
    }
    form.added = input_or_none(node, 2);
    if (form.added != ValueId::none && node.attributes.get_float("beta", 1) != 1) return;
    try_product(id, form);
  }

  // MatMulInteger that is read as float32 (dynamic quantization: the scales follow): what follows can join it.
  void try_dynamic(NodeId id) {
    Graph& graph = rewriter_.graph();
    const Node old = graph.node(id);
    const NodeId cast = rewriter_.only_user(old.outputs[0]);
    if (cast == NodeId::none || !is_op(graph.node(cast), "Cast") || graph.node(cast).epilogue) return;
    const ValueId result = graph.node(cast).outputs[0];
    if (graph.value(result).type.dtype != DType::f32) return;
    Node made;
    made.op = &schema_;
    made.name = old.name;
    const ValueId scale = rewriter_.add_constant(old.name + "_scale", Tensor::scalar(1.0F));
    made.inputs = {old.inputs[0], old.inputs[1], scale, input_or_none(old, 2), input_or_none(old, 3)};
    made.outputs = {ValueId::none};
    made.fused_from = "MatMulInteger+Cast";
    rewriter_.erase(id);
    rewriter_.erase(cast);
    rewriter_.move_output(result, rewriter_.add(std::move(made), cast));
  }

  void try_product(NodeId id, const Form& form) {
    Graph& graph = rewriter_.graph();
    const Node& node = graph.node(id);
    const auto a = dequantized(rewriter_, node.inputs[0]), b = dequantized(rewriter_, node.inputs[1]);
    if (!a || !b || !a->is_per_tensor() || !are_bytes(graph, *a) || !are_bytes(graph, *b)) return;
    if (graph.value(a->bytes).is_constant() && graph.value(b->bytes).is_constant()) return;
    const TensorType &a_type = graph.value(a->bytes).type, &b_type = graph.value(b->bytes).type;
    if (a_type.has_rank && a_type.rank() > 0 && a_type.dims.back().extent > kMostBytePairs) return;
    if (!b->is_per_tensor() && (b_type.rank() != 2 || b->axis != 2 - form.b_axis_from_end)) return;
    replace(id, form, *a, *b);
  }

  void replace(NodeId id, const Form& form, const Dequantized& a, const Dequantized& b) {
    Graph& graph = rewriter_.graph();
    const Node old = graph.node(id);
    const ValueId result = old.outputs[0];
    Node made;
    made.op = &schema_;
    made.name = old.name;
    const ValueId scale = rewriter_.add_constant(old.name + "_scale", joint_scale(a.scale, b.scale, form.factor));
    made.inputs = {a.bytes, b.bytes, scale, a.zero, b.zero};
    made.outputs = {ValueId::none};
    made.fused_from = "Quantized" + std::string(old.op->name);
    if (!form.b_perm.empty()) made.attributes.set("perm_b", form.b_perm);
    rewriter_.erase(id);
    // Weights that nobody dequantizes any more must not be folded before they are found dead.
    for (const NodeId reader : {a.node, b.node}) {
      if (rewriter_.is_live(reader) && !rewriter_.is_used(graph.node(reader).outputs[0])) rewriter_.erase(reader);
    }
    if (form.added == ValueId::none) {
      rewriter_.move_output(result, rewriter_.add(std::move(made), id));
      return;
    }
    const ValueId product = rewriter_.add_value(graph.value(result).name, graph.value(result).type);
    made.outputs = {product};
    rewriter_.add(std::move(made), id);
    Node sum;
    sum.op = &add_;
    sum.version = 14;
    sum.inputs = {product, form.added};
    sum.outputs = {ValueId::none};
    rewriter_.move_output(result, rewriter_.add(std::move(sum), id));
  }

  Rewriter& rewriter_;
  const OpSchema &schema_, &add_;
};

}  // namespace

bool use_integers(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("lathe", "QuantizedMatMul", 1);
  const OpSchema* add = context.ops.find("", "Add", 14);
  if (schema == nullptr || add == nullptr) return false;
  Rewriter rewriter(graph);
  Products products(rewriter, *schema, *add);
  for (const NodeId id : std::vector<NodeId>(graph.order())) {
    if (rewriter.is_live(id)) products.try_node(id);
    if (rewriter.is_live(id) && is_lathe_op(graph.node(id), "QuantizedMatMul")) products.absorb_transposes(id);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
