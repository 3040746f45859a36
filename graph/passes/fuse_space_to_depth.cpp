// Every s-th row and column, in s * s parts, one behind the other: SpaceToDepth, or, with columns outside of rows, the
// same by Reshape-Transpose-Reshape. One copy instead of s * s + 1.
#include <algorithm>
#include <array>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;

// Pixels [row + i * row_step, column + j * column_step] of `x`, all of them.
struct Lattice {
  ValueId x = ValueId::none;
  std::array<int64_t, 2> first = {0, 0}, step = {1, 1};  // of rows, of columns
};

// Adds what one Slice does; false: more or something else than a lattice of whole pixels.
bool add_slice(const Graph& graph, const Node& node, Lattice& lattice) {
  if (node.version < 10 || node.epilogue) return false;
  const TensorType& type = graph.value(node.inputs[0]).type;
  if (!type.has_rank || type.rank() != 4) return false;
  const auto begins = integers_of(graph, input_or_none(node, 1)), ends = integers_of(graph, input_or_none(node, 2));
  const auto axes = integers_of(graph, input_or_none(node, 3)), steps = integers_of(graph, input_or_none(node, 4));
  if (!begins || !ends || !axes || !steps || axes->size() != steps->size()) return false;
  for (size_t i = 0; i < axes->size(); ++i) {
    const int64_t axis = (*axes)[i] < 0 ? (*axes)[i] + 4 : (*axes)[i], begin = (*begins)[i], step = (*steps)[i];
    if (axis < 2 || axis > 3 || begin < 0 || step < 1) return false;
    const auto at = static_cast<size_t>(axis);
    const int64_t extent = type.dims[at].extent;
    // To the end, so that nothing is cut off but what the step leaves out.
    if (!type.dims[at].known() || begin >= step || extent % step != 0 || (*ends)[i] < extent) return false;
    if (lattice.step[at - 2] != 1) return false;
    lattice.first[at - 2] = begin;
    lattice.step[at - 2] = step;
  }
  return true;
}

std::optional<Lattice> lattice_behind(const Rewriter& rewriter, const Graph& graph, ValueId value) {
  Lattice lattice{value, {0, 0}, {1, 1}};
  for (int depth = 0; depth < 2 && (lattice.step[0] == 1 || lattice.step[1] == 1); ++depth) {
    const NodeId slice = rewriter.producer_if(lattice.x, "Slice");
    if (slice == NodeId::none || !add_slice(graph, graph.node(slice), lattice)) break;
    lattice.x = graph.node(slice).inputs[0];
  }
  if (lattice.step[0] < 2 || lattice.step[0] != lattice.step[1]) return std::nullopt;
  return lattice;
}

struct Match {
  ValueId x = ValueId::none;
  int64_t step = 0;
  bool by_rows = false;  // the parts of one row of each square follow each other
};

std::optional<Match> match(const Rewriter& rewriter, const Graph& graph, const Node& node) {
  if (!is_op(node, "Concat") || node.epilogue || node.outputs[0] == ValueId::none) return std::nullopt;
  const int64_t axis = node.attributes.get_int("axis", 1);
  if (axis != 1 && axis != -3) return std::nullopt;
  std::optional<Match> found;
  bool by_rows = true, by_columns = true;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const auto lattice = lattice_behind(rewriter, graph, node.inputs[i]);
    if (!lattice) return std::nullopt;
    if (!found) found = Match{lattice->x, lattice->step[0]};
    const int64_t step = found->step, part = static_cast<int64_t>(i);
    if (lattice->x != found->x || lattice->step[0] != step) return std::nullopt;
    by_rows = by_rows && lattice->first[0] == part / step && lattice->first[1] == part % step;
    by_columns = by_columns && lattice->first[1] == part / step && lattice->first[0] == part % step;
  }
  if (!found || static_cast<int64_t>(node.inputs.size()) != found->step * found->step) return std::nullopt;
  if (!by_rows && !by_columns) return std::nullopt;
  found->by_rows = by_rows;
  const TensorType& type = graph.value(found->x).type;
  const bool has_pixels =
      std::all_of(type.dims.begin() + 1, type.dims.end(), [](const Dim& dim) { return dim.extent > 0; });
  return has_pixels ? found : std::nullopt;
}

void write(Rewriter& rewriter, const OpLookup& ops, NodeId place, const Match& found, ValueId result) {
  if (found.by_rows) {
    const OpSchema& op = ops.require("", "SpaceToDepth", kVersion);
    Node node{.op = &op, .version = kVersion, .name = "", .inputs = {found.x}, .outputs = {result}};
    node.attributes.set("blocksize", found.step);
    rewriter.add(std::move(node), place);
    return;
  }
  const std::vector<Dim>& dims = rewriter.graph().value(found.x).type.dims;
  const int64_t s = found.step, c = dims[1].extent, h = dims[2].extent / s, w = dims[3].extent / s;
  Rearranger rearranger(rewriter, ops, place);
  const ValueId squares = rearranger.reshaped(found.x, {0, c, h, s, w, s});
  rearranger.reshaped(rearranger.transposed(squares, {0, 5, 3, 1, 2, 4}), {0, s * s * c, h, w}, result);
}

}  // namespace

bool fuse_space_to_depth(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    const std::optional<Match> found = match(rewriter, graph, graph.node(id));
    if (!found) return;
    const ValueId result = graph.node(id).outputs[0];
    rewriter.erase(id);
    write(rewriter, context.ops, id, *found, result);
  });
}

}  // namespace lathe::passes
