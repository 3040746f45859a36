// com.microsoft's products with something fused: FusedMatMul, TransposeMatMul, FusedGemm.
#include "ops/expansion.h"

namespace lathe::ops {
namespace {

// The operand with its rows and columns swapped, and before that its first axis moved behind the batch axes. False: its
// rank must be known for that, and is not.
bool turn(ExpandContext& context, ValueId& operand, bool swaps, bool moves_batch) {
  if (!swaps && !moves_batch) return true;
  const TensorType type = context.type(operand);
  if (!type.has_rank) return false;
  const int rank = type.rank();
  if (rank < 2) return true;
  std::vector<int64_t> order;
  for (int i = 0; i < rank; ++i) order.push_back(i);
  // [rows, batch..., columns] to [batch..., rows, columns]
  if (moves_batch) std::rotate(order.begin(), order.begin() + 1, order.end() - 1);
  if (swaps) std::swap(order[order.size() - 1], order[order.size() - 2]);
  operand = add_transposed(context, operand, std::move(order));
  return true;
}

bool expand_matmul(ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  const auto flag = [&](const char* name) { return attributes.get_int(name, 0) != 0; };
  ValueId a = context.input(0), b = context.input(1);
  if (!turn(context, a, flag("transA"), flag("transBatchA"))) return false;
  if (!turn(context, b, flag("transB"), flag("transBatchB"))) return false;
  ValueId y = context.add("MatMul", {a, b});
  const float alpha = attributes.get_float("alpha", 1);
  if (alpha != 1) {
    const DType dtype = context.input_type(0).dtype;
    y = context.add("Mul", {y, add_scalar(context, dtype, static_cast<double>(alpha))});
  }
  context.set_output(0, y);
  return true;
}

bool expand_gemm(ExpandContext& context) {
  const Node& node = context.node;
  const ValueId y = context.add("Gemm", {context.input(0), context.input(1), context.input(2)},
                                copied_attributes(node, {"alpha", "beta", "transA", "transB"}));
  std::vector<float> parameters;
  for (const char* name : {"activation_alpha", "activation_beta"}) {
    if (node.attributes.has(name)) parameters.push_back(node.attributes.get_float(name, 0));
  }
  const std::string activation = node.attributes.get_string("activation", "");
  if (activation == "Selu" && node.attributes.has("activation_gamma")) {
    parameters.resize(1);
    parameters.push_back(node.attributes.get_float("activation_gamma", 0));
  }
  context.set_output(0, add_activation(context, y, activation, parameters));
  return true;
}

}  // namespace

std::vector<OpDef> contrib_matmul_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> turns = {{"alpha", Kind::real},
                                            {"transA", Kind::integer},
                                            {"transB", Kind::integer},
                                            {"transBatchA", Kind::integer},
                                            {"transBatchB", Kind::integer}};
  return {composite("FusedMatMul", 2, 2, expand_matmul, turns),
          composite("TransposeMatMul", 2, 2, expand_matmul, turns),
          composite("FusedGemm", 2, 3, expand_gemm,
                    {{"alpha", Kind::real},
                     {"beta", Kind::real},
                     {"transA", Kind::integer},
                     {"transB", Kind::integer},
                     {"activation", Kind::string},
                     {"activation_alpha", Kind::real},
                     {"activation_beta", Kind::real},
                     {"activation_gamma", Kind::real}})};
}

}  // namespace lathe::ops
