// Slices that cut a value into parts without gaps become one Split, whose parts are views where they can be, in blocked
// layouts too.
#include <algorithm>
#include <map>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "graph/passes/slice_piece.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;

void replace(Rewriter& rewriter, const OpSchema& schema, ValueId whole, const std::vector<SlicePiece>& pieces) {
  Graph& graph = rewriter.graph();
  std::vector<int64_t> sizes;
  std::vector<ValueId> outputs;
  for (const SlicePiece& piece : pieces) {
    sizes.push_back(piece.end - piece.begin);
    outputs.push_back(graph.node(piece.slice).outputs[0]);
  }
  // In the place of the slice that came first.
  NodeId place = pieces[0].slice;
  for (const SlicePiece& piece : pieces) place = std::min(place, piece.slice);
  const ValueId lengths = rewriter.add_integers(graph.value(whole).name + "/parts", sizes);
  for (const SlicePiece& piece : pieces) rewriter.erase(piece.slice);
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
  std::map<std::pair<ValueId, int64_t>, std::vector<SlicePiece>> by_whole;
  for (const NodeId id : graph.order()) {
    if (const std::optional<SlicePiece> piece = slice_piece(graph, id)) {
      by_whole[{graph.node(id).inputs[0], piece->axis}].push_back(*piece);
    }
  }
  for (auto& [key, pieces] : by_whole) {
    std::sort(pieces.begin(), pieces.end(), [](const SlicePiece& a, const SlicePiece& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const SlicePiece& piece : pieces) {
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
