// An Expand whose reader would spread the value itself, because another operand has the whole shape, is not needed. Nor
// is what one left in a constant, as exporters and constant folding do: a mask that is the same for each head and row.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool spreads_operands(const Node& node) {
  static constexpr std::array<std::string_view, 18> kOps = {
      "Add",   "Sub",  "Mul", "Div", "Max",  "Min",         "Sum",     "Mean",
      "Pow",   "And",  "Or",  "Xor", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
      "Equal", "Where"};
  // Before opset 7 (8 for Max and its like) there was a broadcast of another kind, or none.
  return node.op->domain.empty() && node.version >= 8 && !node.epilogue &&
         std::find(kOps.begin(), kOps.end(), node.op->name) != kOps.end();
}

// Some operand but `slot` alone gives the result its shape.
bool has_whole_operand(const Graph& graph, const Node& node, size_t slot) {
  const TensorType& expanded = graph.value(node.inputs[slot]).type;
  for (size_t other = 0; other < node.inputs.size(); ++other) {
    if (other == slot || node.inputs[other] == ValueId::none || node.inputs[other] == node.inputs[slot]) continue;
    if (broadcasts_into(expanded, graph.value(node.inputs[other]).type)) return true;
  }
  return false;
}

// What stands once for each place of an axis stands there once.
Tensor narrowed_along(const Tensor& tensor, size_t axis) {
  const Dims& dims = tensor.dims();
  const auto product = [&](size_t from, size_t to) {
    size_t count = 1;
    for (size_t i = from; i < to; ++i) count *= static_cast<size_t>(dims[i]);
    return count;
  };
  const size_t outer = product(0, axis), extent = static_cast<size_t>(dims[axis]);
  const size_t bytes = tensor.bytes() / outer / extent;
  const auto* source = static_cast<const std::byte*>(tensor.raw());
  for (size_t i = 0; i < outer; ++i) {
    const std::byte* first = source + i * extent * bytes;
    for (size_t k = 1; k < extent; ++k) {
      if (std::memcmp(first, first + k * bytes, bytes) != 0) return tensor;
    }
  }
  Dims narrow = dims;
  narrow[axis] = 1;
  Tensor result(tensor.dtype(), narrow);
  auto* target = static_cast<std::byte*>(result.mutable_raw());
  for (size_t i = 0; i < outer; ++i) std::memcpy(target + i * bytes, source + i * extent * bytes, bytes);
  return result;
}

// Of one axis they are small, and what passes look for as one number for each channel.
bool may_be_spread(const Tensor& tensor) {
  const Dims& dims = tensor.dims();
  return tensor.defined() && tensor.size() > 0 && bits_of(tensor.dtype()) >= 8 &&
         std::count_if(dims.begin(), dims.end(), [](int64_t extent) { return extent > 1; }) > 1;
}

// The constants as they were before somebody spread them, each one made once.
class NarrowConstants {
 public:
  explicit NarrowConstants(Rewriter& rewriter) : rewriter_(rewriter) {}

  // Whether a constant repeats along an axis.
  bool has(ValueId id) {
    const auto [known, is_new] = narrow_.try_emplace(id);
    if (!is_new) return known->second.tensor.defined();
    const Tensor tensor = constant_of(rewriter_.graph(), id);
    if (!may_be_spread(tensor)) return false;
    Tensor narrow = tensor;
    for (size_t axis = 0; axis < narrow.dims().size(); ++axis) {
      if (narrow.dims()[axis] > 1) narrow = narrowed_along(narrow, axis);
    }
    if (narrow.size() < tensor.size()) known->second.tensor = narrow;
    return known->second.tensor.defined();
  }
  // Requires: has(id).
  ValueId of(ValueId id) {
    Narrow& narrow = narrow_.at(id);
    if (narrow.id == ValueId::none) {
      const std::string name = rewriter_.graph().value(id).name;
      narrow.id = rewriter_.add_constant(name, narrow.tensor);
    }
    return narrow.id;
  }

 private:
  struct Narrow {
    Tensor tensor;
    ValueId id = ValueId::none;  // once it is in the graph
  };
  Rewriter& rewriter_;
  std::map<ValueId, Narrow> narrow_;
};

}  // namespace

bool bypass_expand(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  NarrowConstants constants(rewriter);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!spreads_operands(graph.node(id))) continue;
    for (size_t slot = 0; slot < graph.node(id).inputs.size(); ++slot) {
      const ValueId operand = graph.node(id).inputs[slot];
      if (operand == ValueId::none) continue;
      const NodeId expand = rewriter.producer_if(operand, "Expand");
      const bool is_expanded = expand != NodeId::none && !graph.node(expand).epilogue;
      if ((!is_expanded && !constants.has(operand)) || !has_whole_operand(graph, graph.node(id), slot)) continue;
      rewriter.set_input(id, slot, is_expanded ? graph.node(expand).inputs[0] : constants.of(operand));
    }
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
