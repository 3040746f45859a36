// An Einsum of two operands that is a product of matrices (or of stacks of them) becomes a MatMul between Transposes,
// which the other passes know: attention in this spelling, too.
#include <algorithm>

#include "graph/passes/einsum_letters.h"
#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kMatMulVersion = 13;
using Ints = std::vector<int64_t>;

// "bhik,bhjk->bhij" by what each letter is to the product.
struct Equation {
  std::string a, b, result;               // letters of the operands, in order
  std::string stack, rows, columns, sum;  // in all three; in a and the result; in b and the result; in a and b
};

std::optional<Equation> equation_of(const Node& node) {
  const std::optional<EinsumLetters> letters = letters_of(node);
  if (!letters || letters->operands.size() != 2) return std::nullopt;
  Equation found{.a = letters->operands[0], .b = letters->operands[1], .result = letters->result};
  found.stack = those(found.a, [&](char c) { return has(found.b, c) && has(found.result, c); });
  found.sum = those(found.a, [&](char c) { return has(found.b, c) && !has(found.result, c); });
  found.rows = those(found.a, [&](char c) { return !has(found.b, c) && has(found.result, c); });
  found.columns = those(found.b, [&](char c) { return !has(found.a, c) && has(found.result, c); });
  // Sums along an axis of one operand alone are another node's work; and each letter of the result comes from
  // somewhere.
  if (found.a.size() != found.stack.size() + found.rows.size() + found.sum.size()) return std::nullopt;
  if (found.b.size() != found.stack.size() + found.columns.size() + found.sum.size()) return std::nullopt;
  if (found.result.size() != found.stack.size() + found.rows.size() + found.columns.size()) return std::nullopt;
  return found;
}

class Expander {
 public:
  Expander(Rewriter& rewriter, const OpLookup& ops, const OpSchema& product, NodeId id)
      : rewriter_(rewriter), graph_(rewriter.graph()), product_(product), rearranger_(rewriter, ops, id), id_(id) {}

  void expand() {
    const Node& node = graph_.node(id_);
    if (!is_op(node, "Einsum") || node.epilogue || node.inputs.size() != 2 || node.outputs[0] == ValueId::none) return;
    const std::optional<Equation> equation = equation_of(node);
    if (!equation || !fits(*equation)) return;
    const ValueId a = node.inputs[0], b = node.inputs[1], result = node.outputs[0];
    if (equation->rows.size() == 1 && equation->columns.size() == 1 && equation->sum.size() == 1) {
      multiply(*equation, a, b, result);
    } else if (equation->stack.empty() && graph_.value(b).is_constant()) {
      multiply_flat(*equation, a, b, result);
    }
  }

 private:
  // Extents of shared letters are certainly equal: none of them spreads.
  bool fits(const Equation& equation) const {
    const Node& node = graph_.node(id_);
    const TensorType &a = graph_.value(node.inputs[0]).type, &b = graph_.value(node.inputs[1]).type;
    if (a.dtype != DType::f32 || b.dtype != DType::f32 || !a.has_rank || !b.has_rank) return false;
    if (a.dims.size() != equation.a.size() || b.dims.size() != equation.b.size()) return false;
    return std::all_of(equation.a.begin(), equation.a.end(), [&](char letter) {
      return !has(equation.b, letter) || same_dim(a.dims[equation.a.find(letter)], b.dims[equation.b.find(letter)]);
    });
  }

  // `columns`: of the right operand.
  ValueId multiplied(ValueId left, ValueId right, const Dim& columns) {
    TensorType type = graph_.value(left).type;
    type.dims.back() = columns;
    const ValueId made = rewriter_.add_value(graph_.value(left).name, std::move(type));
    rewriter_.add({.op = &product_, .version = kMatMulVersion, .name = "", .inputs = {left, right}, .outputs = {made}},
                  id_);
    return made;
  }

  // The value with its axes in another order.
  ValueId turned(ValueId x, const std::string& from, const std::string& to) {
    if (from == to) return x;
    Ints perm;
    for (const char letter : to) perm.push_back(static_cast<int64_t>(from.find(letter)));
    return rearranger_.transposed(x, perm);
  }

  void finish(ValueId made, ValueId result) {
    rewriter_.erase(id_);
    rewriter_.move_output(result, graph_.value(made).producer);
  }

  void multiply(const Equation& equation, ValueId a, ValueId b, ValueId result) {
    // Stacks lie as the result has them.
    const std::string stack = those(equation.result, [&](char c) { return has(equation.stack, c); });
    const ValueId left = turned(a, equation.a, stack + equation.rows + equation.sum),
                  right = turned(b, equation.b, stack + equation.sum + equation.columns);
    const ValueId product = multiplied(left, right, graph_.value(right).type.dims.back());
    finish(turned(product, stack + equation.rows + equation.columns, equation.result), result);
  }

  // Weights as one matrix; the rows may have any axes.
  void multiply_flat(const Equation& equation, ValueId a, ValueId b, ValueId result) {
    if (equation.rows.empty() || equation.columns.empty() || equation.sum.empty()) return;
    if (equation.result != equation.rows + equation.columns) return;
    const TensorType& w = graph_.value(b).type;
    int64_t inputs = 1, outputs = 1;
    for (const char letter : equation.sum) inputs *= w.dims[equation.b.find(letter)].extent;
    for (const char letter : equation.columns) outputs *= w.dims[equation.b.find(letter)].extent;
    if (inputs < 1 || outputs < 1 || equation.a != equation.rows + equation.sum) return;
    Ints flat(equation.rows.size(), 0), whole(equation.rows.size(), 0);
    flat.push_back(inputs);
    for (const char letter : equation.columns) whole.push_back(w.dims[equation.b.find(letter)].extent);
    const ValueId left = equation.sum.size() == 1 ? a : rearranger_.reshaped(a, flat);
    const ValueId right =
        rearranger_.reshaped(turned(b, equation.b, equation.sum + equation.columns), {inputs, outputs});
    const ValueId product = multiplied(left, right, {outputs, ""});
    finish(equation.columns.size() == 1 ? product : rearranger_.reshaped(product, whole), result);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpSchema& product_;
  Rearranger rearranger_;
  NodeId id_;
};

}  // namespace

bool expand_einsum(Graph& graph, const PassContext& context) {
  const OpSchema* product = context.ops.find("", "MatMul", kMatMulVersion);
  if (product == nullptr) return false;
  return rewrite_each(graph,
                      [&](Rewriter& rewriter, NodeId id) { Expander(rewriter, context.ops, *product, id).expand(); });
}

}  // namespace lathe::passes
