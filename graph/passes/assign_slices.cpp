// ScatterND that writes a block, x[a:b, ..., c:d] = updates, as exporters spell an assignment to a slice: with the
// place of each element as a list of indices, many times as large as the data. It is the data's parts around the block
// beside the updates.
#include <algorithm>

#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

using Ints = std::vector<int64_t>;

constexpr int kConcatVersion = 13;

std::optional<Ints> extents_of(const TensorType& type) {
  return type.is_static() ? std::optional(type.extents()) : std::nullopt;
}

// Indices of one axis over a grid: start + (the place along `axis` of the grid); axis -1: start everywhere.
struct Range {
  int64_t start = 0, axis = -1;
};

// Every `step`-th element from `first` on, as a grid of these extents; extents of 1 repeat.
std::optional<Range> range_of(const std::vector<int64_t>& elements, size_t first, size_t step, const Ints& extents) {
  if (elements.empty()) return std::nullopt;
  Range range{elements[first], -1};
  std::vector<size_t> strides(extents.size(), step);
  for (size_t axis = extents.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * static_cast<size_t>(extents[axis]);
  }
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (extents[axis] < 2 || elements[first + strides[axis]] == range.start) continue;
    if (range.axis >= 0) return std::nullopt;
    range.axis = static_cast<int64_t>(axis);
  }
  Ints place(extents.size(), 0);
  for (size_t at = first; at < elements.size(); at += step) {
    const int64_t expected = range.start + (range.axis < 0 ? 0 : place[static_cast<size_t>(range.axis)]);
    if (elements[at] != expected) return std::nullopt;
    for (size_t axis = place.size(); axis-- > 0 && ++place[axis] == extents[axis];) place[axis] = 0;
  }
  return range;
}

// A tuple of indices for each place of a grid.
struct Grid {
  Ints extents;
  std::vector<Range> ranges;  // by axis of the data
  bool is_constant = true;    // else made in each run
};

std::optional<Grid> constant_grid(const Graph& graph, ValueId indices) {
  const auto elements = integers_of(graph, indices);
  const auto extents = extents_of(graph.value(indices).type);
  if (!elements || !extents || extents->empty()) return std::nullopt;
  Grid grid{{extents->begin(), extents->end() - 1}, {}};
  const auto depth = static_cast<size_t>(extents->back());
  for (size_t i = 0; i < depth; ++i) {
    const auto range = range_of(*elements, i, depth, grid.extents);
    if (!range) return std::nullopt;
    grid.ranges.push_back(*range);
  }
  return grid;
}

// The constant that was spread over the grid, an axis of one place behind it.
std::optional<Range> spread_range(const Rewriter& rewriter, const Graph& graph, ValueId part, const Ints& grid) {
  for (const char* op : {"Unsqueeze", "Reshape"}) {
    const NodeId unsqueeze = rewriter.producer_if(part, op);
    if (unsqueeze == NodeId::none) continue;
    const ValueId whole = graph.node(unsqueeze).inputs[0];
    const NodeId expand = rewriter.producer_if(whole, "Expand");
    if (expand == NodeId::none || extents_of(graph.value(whole).type) != grid) return std::nullopt;
    const ValueId once = graph.node(expand).inputs[0];
    const auto elements = integers_of(graph, once);
    auto extents = extents_of(graph.value(once).type);
    if (!elements || !extents || extents->size() > grid.size()) return std::nullopt;
    extents->insert(extents->begin(), grid.size() - extents->size(), 1);
    return range_of(*elements, 0, 1, *extents);
  }
  const auto known = constant_grid(graph, part);
  return known && known->ranges.size() == 1 ? std::optional(known->ranges[0]) : std::nullopt;
}

std::optional<Grid> grid_of(const Rewriter& rewriter, const Graph& graph, ValueId indices) {
  const NodeId concat = rewriter.producer_if(indices, "Concat");
  if (concat == NodeId::none) return constant_grid(graph, indices);
  const auto extents = extents_of(graph.value(indices).type);
  const Node& node = graph.node(concat);
  if (!extents || extents->empty()) return std::nullopt;
  const int64_t axis = node.attributes.get_int("axis", 0), last = static_cast<int64_t>(extents->size()) - 1;
  if (axis != -1 && axis != last) return std::nullopt;
  Grid grid{{extents->begin(), extents->end() - 1}, {}, false};
  Ints each = *extents;
  each.back() = 1;
  for (const ValueId part : node.inputs) {
    if (extents_of(graph.value(part).type) != each) return std::nullopt;
    const auto range = spread_range(rewriter, graph, part, grid.extents);
    if (!range) return std::nullopt;
    grid.ranges.push_back(*range);
  }
  return grid;
}

// By axis of the data, from `begin` on; axes that no index names are whole.
struct Block {
  Ints begin, extents;
};

// Every place of the block once, in the order of the updates.
std::optional<Block> block_of(const Grid& grid, const Ints& data) {
  if (grid.ranges.size() > data.size()) return std::nullopt;
  Block block{Ints(data.size(), 0), data};
  int64_t next = 0;  // axis of the grid
  const auto pass_to = [&](int64_t end) {
    for (; next < end; ++next) {
      if (grid.extents[static_cast<size_t>(next)] != 1) return false;
    }
    return true;
  };
  for (size_t axis = 0; axis < grid.ranges.size(); ++axis) {
    const Range& range = grid.ranges[axis];
    int64_t &begin = block.begin[axis], &extent = block.extents[axis];
    begin = range.start < 0 ? range.start + data[axis] : range.start;
    extent = 1;
    if (range.axis >= 0) {
      if (range.axis < next || !pass_to(range.axis)) return std::nullopt;
      extent = grid.extents[static_cast<size_t>(next++)];
    }
    // Indices out of bounds are the operator's to report.
    if (begin < 0 || extent < 1 || extent > data[axis] || begin > data[axis] - extent) return std::nullopt;
    if (range.start < 0 && range.start + extent > 0) return std::nullopt;
  }
  return pass_to(static_cast<int64_t>(grid.extents.size())) ? std::optional(block) : std::nullopt;
}

// Copies of parts take less time than writing elements one by one, unless the block is a small part of the data, or
// a few elements wide; and far less than to make the indices.
bool is_worth_it(const Block& block, const Ints& data, bool are_constant) {
  const double smallest_part = are_constant ? 1.0 / 16 : 1.0 / 256;
  constexpr int64_t kShortestRun = 16;
  double part = 1;
  int64_t run = 1;
  bool is_whole = true;
  for (size_t axis = data.size(); axis-- > 0;) {
    if (data[axis] == 0) return false;
    part *= static_cast<double>(block.extents[axis]) / static_cast<double>(data[axis]);
    if (is_whole) run *= block.extents[axis];
    is_whole = is_whole && block.extents[axis] == data[axis];
  }
  return is_whole || (part >= smallest_part && run >= kShortestRun);
}

class Assigner {
 public:
  Assigner(Rewriter& rewriter, const OpLookup& ops, NodeId id)
      : rewriter_(rewriter), graph_(rewriter.graph()), ops_(ops), id_(id) {}

  void try_node() {
    if (!is_op(graph_.node(id_), "ScatterND")) return;
    const Node node = graph_.node(id_);  // NOLINT(performance-unnecessary-copy-initialization): erased below
    if (node.epilogue || node.outputs[0] == ValueId::none) return;
    if (node.attributes.get_string("reduction", "none") != "none") return;
    const auto data = extents_of(graph_.value(node.inputs[0]).type);
    const auto grid = data ? grid_of(rewriter_, graph_, node.inputs[1]) : std::nullopt;
    const auto block = grid ? block_of(*grid, *data) : std::nullopt;
    if (!block || !(is_worth_it(*block, *data, grid->is_constant) || is_read_in_part(node.outputs[0]))) return;
    // Else the operator says what is wrong with the updates.
    Ints expected = grid->extents;
    expected.insert(expected.end(), data->begin() + static_cast<std::ptrdiff_t>(grid->ranges.size()), data->end());
    if (extents_of(graph_.value(node.inputs[2]).type) != expected) return;
    data_ = node.inputs[0];
    ValueId result = node.inputs[2];
    std::vector<size_t> axes;  // that the block does not fill, inner ones first
    for (size_t axis = data->size(); axis-- > 0;) {
      if (block->extents[axis] != (*data)[axis]) axes.push_back(axis);
    }
    rewriter_.erase(id_);
    Rearranger rearranger(rewriter_, ops_, id_);
    result = rearranger.reshaped(result, block->extents, axes.empty() ? node.outputs[0] : ValueId::none);
    for (const size_t axis : axes) {
      const bool is_last = axis == axes.back();
      result = between(result, axis, *block, *data, is_last ? node.outputs[0] : ValueId::none);
    }
  }

 private:
  // Readers of a few rows or columns come to the parts through a Concat, not through a ScatterND: little of the data
  // is left to be made.
  bool is_read_in_part(ValueId result) const {
    const auto reads_part = [&](NodeId user) {
      const Node& node = graph_.node(user);
      return is_one_of(node, {"Slice", "Gather"}) && node.inputs[0] == result;
    };
    return !rewriter_.is_output(result) && rewriter_.is_used(result) && rewriter_.all_users(result, reads_part);
  }

  // The data's parts before and behind the block along an axis, beside `inner`: whole along the axes behind this one,
  // within the block along those before it.
  ValueId between(ValueId inner, size_t axis, const Block& block, const Ints& data, ValueId result) {
    const int64_t begin = block.begin[axis], end = begin + block.extents[axis];
    std::vector<ValueId> parts;
    if (begin > 0) parts.push_back(part(axis, 0, begin, block));
    parts.push_back(inner);
    if (end < data[axis]) parts.push_back(part(axis, end, data[axis], block));
    if (result == ValueId::none) result = added(graph_.value(inner).type, axis, data[axis]);
    Node concat = made_node(ops_, "Concat", kConcatVersion, std::move(parts), result);
    concat.attributes.set("axis", static_cast<int64_t>(axis));
    rewriter_.add(std::move(concat), id_);
    return result;
  }

  ValueId part(size_t axis, int64_t begin, int64_t end, const Block& block) {
    std::vector<Rearranger::Piece> pieces;
    const std::vector<Dim>& dims = graph_.value(data_).type.dims;
    for (size_t i = 0; i <= axis; ++i) {
      const int64_t from = i == axis ? begin : block.begin[i], to = i == axis ? end : from + block.extents[i];
      if (from != 0 || to != dims[i].extent) pieces.push_back({static_cast<int64_t>(i), from, to});
    }
    return Rearranger(rewriter_, ops_, id_).sliced(data_, pieces);
  }

  ValueId added(TensorType type, size_t axis, int64_t extent) {
    type.dims[axis] = {extent, ""};
    return rewriter_.add_value(graph_.value(data_).name, std::move(type));
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
  const NodeId id_;
  ValueId data_ = ValueId::none;
};

}  // namespace

bool assign_slices(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { Assigner(rewriter, context.ops, id).try_node(); });
}

}  // namespace lathe::passes
