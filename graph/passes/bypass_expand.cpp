// An Expand whose reader would spread the value itself, because another operand has the whole shape, is not needed. Nor
// is what one left in a constant, as exporters and constant folding do: a mask that is the same for each head and row,
// places in a table that are the same for each head.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
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
  // Of the narrow one.
  std::optional<Dims> dims(ValueId id) { return has(id) ? std::optional(narrow_.at(id).tensor.dims()) : std::nullopt; }
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

// GatherElements wants indices of the result's shape: what repeats along other axes than its own, for as many places as
// the data have there, lathe::TakeAlongAxis reads as it was.
class IndexNarrower {
 public:
  IndexNarrower(Rewriter& rewriter, NarrowConstants& constants, const OpLookup& ops, NodeId id)
      : rewriter_(rewriter), graph_(rewriter.graph()), constants_(constants), ops_(ops), id_(id) {}

  void try_node() {
    const OpSchema* schema = ops_.find("lathe", "TakeAlongAxis", 1);
    const ValueId whole = graph_.node(id_).inputs[1];
    if (schema == nullptr || !graph_.value(whole).type.is_static()) return;
    const NodeId expand = rewriter_.producer_if(whole, "Expand");
    const std::optional<Dims> narrow =
        expand != NodeId::none ? extents_before(graph_.node(expand)) : constants_.dims(whole);
    if (!narrow || !may_read(graph_.value(whole).type.extents(), *narrow)) return;
    const ValueId once = expand != NodeId::none ? graph_.node(expand).inputs[0] : constants_.of(whole);
    Dims dims(static_cast<size_t>(graph_.value(whole).type.rank()) - narrow->size(), 1);  // axes that are missing
    const bool has_all = dims.empty();
    dims.insert(dims.end(), narrow->begin(), narrow->end());
    rewriter_.set_input(id_, 1, has_all ? once : Rearranger(rewriter_, ops_, id_).reshaped(once, dims));
    Node& node = graph_.node(id_);
    node.op = schema;
    node.version = 1;
  }

 private:
  std::optional<Dims> extents_before(const Node& expand) const {
    const TensorType& once = graph_.value(expand.inputs[0]).type;
    return !expand.epilogue && once.is_static() ? std::optional(once.extents()) : std::nullopt;
  }

  bool may_read(const Dims& whole, const Dims& narrow) const {
    const Node& node = graph_.node(id_);
    const TensorType& data = graph_.value(node.inputs[0]).type;
    if (!data.is_static() || data.rank() != static_cast<int>(whole.size()) || narrow.size() > whole.size())
      return false;
    int64_t axis = node.attributes.get_int("axis", 0);
    if (axis < 0) axis += data.rank();
    const size_t missing = whole.size() - narrow.size();
    for (size_t d = 0; d < whole.size(); ++d) {
      const int64_t once = d < missing ? 1 : narrow[d - missing];
      // One place along an axis of which more are there would be read as spread.
      const bool is_spread = static_cast<int64_t>(d) != axis && once == 1;
      if (is_spread ? whole[d] != data.dims[d].extent : whole[d] != once) return false;
    }
    return true;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  NarrowConstants& constants_;
  const OpLookup& ops_;
  const NodeId id_;
};

}  // namespace

bool bypass_expand(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  NarrowConstants constants(rewriter);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (is_op(graph.node(id), "GatherElements")) IndexNarrower(rewriter, constants, context.ops, id).try_node();
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
