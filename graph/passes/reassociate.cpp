// Constants of a chain of sums, or of products, meet each other: (x + a) + b = x + (a + b). They are folded next.
#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 14;
// Sums of numbers below this keep their digits in another order; beyond lie masks, and tricks that round.
constexpr float kLargestSummand = 65536;
// Two such factors, or their quotient, are far from overflow.
constexpr float kLargestFactor = 1e12f;

// x . constant, or x . constant undone (Sub, Div).
struct Step {
  NodeId id = NodeId::none;
  ValueId x = ValueId::none, constant = ValueId::none;
  bool is_product = false, is_undone = false;
};

bool is_harmless(const Tensor& constant, bool is_product) {
  if (constant.dtype() != DType::f32) return false;
  const auto elements = constant.elements<float>();
  return std::all_of(elements.begin(), elements.end(), [&](float value) {
    const float size = std::abs(value);
    return is_product ? size < kLargestFactor && size > 1 / kLargestFactor : size < kLargestSummand;
  });
}

std::optional<Step> as_step(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  if (id == NodeId::none || !rewriter.is_live(id)) return std::nullopt;
  const Node& node = graph.node(id);
  Step step{.id = id};
  step.is_undone = is_op(node, "Sub") || is_op(node, "Div");
  step.is_product = is_op(node, "Mul") || is_op(node, "Div");
  if (!step.is_undone && !step.is_product && !is_op(node, "Add")) return std::nullopt;
  if (node.version < 7 || node.epilogue || node.inputs.size() != 2 || node.outputs[0] == ValueId::none)
    return std::nullopt;
  for (size_t slot = 0; slot < (step.is_undone ? 1u : 2u); ++slot) {
    step.x = node.inputs[slot];
    step.constant = node.inputs[1 - slot];
    if (graph.value(step.x).is_constant() || graph.value(step.x).type.dtype != DType::f32) continue;
    if (is_harmless(graph.value(step.constant).constant, step.is_product)) return step;
  }
  return std::nullopt;
}

bool join(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const std::optional<Step> second = as_step(rewriter, graph, id);
  if (!second) return false;
  const std::optional<Step> first = as_step(rewriter, graph, graph.value(second->x).producer);
  if (!first || first->is_product != second->is_product || rewriter.only_user(second->x) != id) return false;
  const TensorType &a = graph.value(first->constant).type, &b = graph.value(second->constant).type;
  // A row and a column would make a matrix.
  if (!broadcasts_into(a, b) && !broadcasts_into(b, a)) return false;

  // (x - a) + b = x + (b - a), (x - a) - b = x - (a + b), (x + a) - b = x + (a - b)
  const bool is_undone = first->is_undone && second->is_undone;
  const bool is_difference = first->is_undone != second->is_undone;
  const std::string_view sum = first->is_product ? "Mul" : "Add", difference = first->is_product ? "Div" : "Sub";
  const OpSchema *inner = context.ops.find("", is_difference ? difference : sum, kVersion),
                 *outer = context.ops.find("", is_undone ? difference : sum, kVersion);
  if (inner == nullptr || outer == nullptr) return false;
  std::vector<ValueId> constants{first->constant, second->constant};
  if (first->is_undone && !second->is_undone) std::swap(constants[0], constants[1]);
  const ValueId joint = rewriter.add_value(graph.value(first->constant).name, broadcasts_into(a, b) ? b : a);
  const ValueId result = graph.node(id).outputs[0], x = first->x;
  rewriter.erase(first->id);
  rewriter.erase(id);
  rewriter.add({.op = inner, .version = kVersion, .name = "", .inputs = constants, .outputs = {joint}}, id);
  rewriter.add({.op = outer, .version = kVersion, .name = "", .inputs = {x, joint}, .outputs = {result}}, id);
  return true;
}

}  // namespace

bool reassociate(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { join(rewriter, context, id); });
}

}  // namespace lathe::passes
