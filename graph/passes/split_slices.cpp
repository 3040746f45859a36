// Slices that cut a value into parts without gaps become one Split, whose parts are views where they can be, in blocked
// layouts too.
#include <algorithm>
#include <limits>
#include <map>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;

struct Piece {
  NodeId slice = NodeId::none;
  int64_t axis = 0, begin = 0, end = 0;
};

std::optional<int64_t> single(const std::optional<std::vector<int64_t>>& numbers) {
  return numbers && numbers->size() == 1 ? std::optional((*numbers)[0]) : std::nullopt;
}

// A Slice of one axis by steps of 1, at places that are known.
std::optional<Piece> piece_of(const Graph& graph, NodeId id) {
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
    begin = single(integers_of(graph, input_or_none(node, 1)));
    end = single(integers_of(graph, input_or_none(node, 2)));
    if (input_or_none(node, 3) != ValueId::none) axis = single(integers_of(graph, node.inputs[3]));
    if (input_or_none(node, 4) != ValueId::none && single(integers_of(graph, node.inputs[4])) != 1) return std::nullopt;
  }
  if (!begin || !end || !axis) return std::nullopt;
  if (*axis < 0) *axis += type.rank();
  if (*axis < 0 || *axis >= type.rank() || !type.dims[static_cast<size_t>(*axis)].known()) return std::nullopt;
  const int64_t extent = type.dims[static_cast<size_t>(*axis)].extent;
  // As the operator counts: from the back when negative, and never beyond the ends.
  const auto within = [extent](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent); };
  if (*end == std::numeric_limits<int64_t>::min()) return std::nullopt;
  return Piece{id, *axis, within(*begin), within(*end)};
}

void replace(Rewriter& rewriter, const OpSchema& schema, ValueId whole, const std::vector<Piece>& pieces) {
  Graph& graph = rewriter.graph();
  std::vector<int64_t> sizes;
  std::vector<ValueId> outputs;
  for (const Piece& piece : pieces) {
    sizes.push_back(piece.end - piece.begin);
    outputs.push_back(graph.node(piece.slice).outputs[0]);
  }
  // In the place of the slice that came first.
  NodeId place = pieces[0].slice;
  for (const Piece& piece : pieces) place = std::min(place, piece.slice);
  const ValueId lengths = rewriter.add_integers(graph.value(whole).name + "/parts", sizes);
  for (const Piece& piece : pieces) rewriter.erase(piece.slice);
  Node node{.op = &schema, .version = kVersion, .name = "", .inputs = {whole, lengths}, .outputs = outputs};
  node.attributes.set("axis", pieces[0].axis);
  node.fused_from = "Slices";
  rewriter.add(std::move(node), place);
}

}  // namespace

bool split_slices(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("", "Split", kVersion);
  if (schema == nullptr) return false;
  Rewriter rewriter(graph);
  std::map<std::pair<ValueId, int64_t>, std::vector<Piece>> by_whole;
  for (const NodeId id : graph.order()) {
    if (const std::optional<Piece> piece = piece_of(graph, id)) {
      by_whole[{graph.node(id).inputs[0], piece->axis}].push_back(*piece);
    }
  }
  for (auto& [key, pieces] : by_whole) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const Piece& piece : pieces) {
      // Neither gaps nor overlaps, and nothing empty.
      if (piece.begin != at || piece.end <= piece.begin) at = -1;
      if (at < 0) break;
      at = piece.end;
    }
    const int64_t extent = graph.value(key.first).type.dims[static_cast<size_t>(key.second)].extent;
    if (pieces.size() >= 2 && at == extent) replace(rewriter, *schema, key.first, pieces);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
