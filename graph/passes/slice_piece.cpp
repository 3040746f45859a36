#include "graph/passes/slice_piece.h"

#include <algorithm>
#include <limits>

#include "graph/passes/rewrite.h"

namespace lathe {
namespace {

std::optional<int64_t> single(const std::vector<int64_t>& numbers) {
  return numbers.size() == 1 ? std::optional(numbers[0]) : std::nullopt;
}

}  // namespace

std::optional<SlicePiece> slice_piece(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!is_op(node, "Slice") || node.epilogue || node.outputs[0] == ValueId::none) return std::nullopt;
  const TensorType& type = graph.value(node.inputs[0]).type;
  if (!type.has_rank || type.rank() < 1) return std::nullopt;
  std::optional<int64_t> begin, end, axis = 0;
  if (node.version < 10) {
    begin = single(node.attributes.get_ints("starts"));
    end = single(node.attributes.get_ints("ends"));
    if (node.attributes.has("axes")) axis = single(node.attributes.get_ints("axes"));
  } else {
    begin = integer_of(graph, input_or_none(node, 1));
    end = integer_of(graph, input_or_none(node, 2));
    if (input_or_none(node, 3) != ValueId::none) axis = integer_of(graph, node.inputs[3]);
    if (input_or_none(node, 4) != ValueId::none && integer_of(graph, node.inputs[4]) != 1) return std::nullopt;
  }
  if (!begin || !end || !axis) return std::nullopt;
  if (*axis < 0) *axis += type.rank();
  if (*axis < 0 || *axis >= type.rank() || !type.dims[static_cast<size_t>(*axis)].known()) return std::nullopt;
  const int64_t extent = type.dims[static_cast<size_t>(*axis)].extent;
  // As the operator counts: from the back when negative, and never beyond the ends.
  const auto within = [extent](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent); };
  if (*end == std::numeric_limits<int64_t>::min()) return std::nullopt;
  return SlicePiece{id, *axis, within(*begin), within(*end)};
}

}  // namespace lathe
