// Each pixel repeated in rows and columns, by Expand or Tile of axes put between (as exporters without a Resize write
// it), becomes a Resize to the nearest: one copy, in blocked layouts too.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;

struct Upsampling {
  ValueId x = ValueId::none;
  int64_t rows = 1, columns = 1;
  NodeId repeat = NodeId::none;
};

bool has_extents(const TensorType& type, const std::vector<int64_t>& pixels) {
  if (!type.has_rank || type.rank() != static_cast<int>(pixels.size()) + 2) return false;
  for (size_t i = 0; i < pixels.size(); ++i) {
    if (type.dims[i + 2].extent != pixels[i]) return false;
  }
  return true;
}

// [n, c, h, w] -> [n, c, h, 1, w, 1] -> [n, c, h, rows, w, columns] -> [n, c, h * rows, w * columns]; `id`: the last
// one.
std::optional<Upsampling> match(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!is_op(node, "Reshape") || node.epilogue || node.outputs[0] == ValueId::none) return std::nullopt;
  NodeId repeat = rewriter.producer_if(node.inputs[0], "Expand");
  if (repeat == NodeId::none) repeat = rewriter.producer_if(node.inputs[0], "Tile");
  if (repeat == NodeId::none || rewriter.only_user(node.inputs[0]) != id) return std::nullopt;
  const ValueId apart = graph.node(repeat).inputs[0];
  NodeId first = rewriter.producer_if(apart, "Reshape");
  if (first == NodeId::none) first = rewriter.producer_if(apart, "Unsqueeze");
  if (first == NodeId::none) return std::nullopt;
  const ValueId x = graph.node(first).inputs[0];
  const TensorType &type = graph.value(x).type, &wide = graph.value(node.inputs[0]).type,
                   &result = graph.value(node.outputs[0]).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() != 4 || !type.dims[2].known() || !type.dims[3].known())
    return std::nullopt;
  const int64_t height = type.dims[2].extent, width = type.dims[3].extent;
  if (!has_extents(graph.value(apart).type, {height, 1, width, 1}) || !wide.has_rank || wide.rank() != 6)
    return std::nullopt;
  const int64_t rows = wide.dims[3].extent, columns = wide.dims[5].extent;
  if (rows < 1 || columns < 1 || height < 1 || width < 1) return std::nullopt;
  if (!has_extents(wide, {height, rows, width, columns})) return std::nullopt;
  if (!has_extents(result, {height * rows, width * columns})) return std::nullopt;
  // Images and channels are the same all the way.
  for (size_t axis = 0; axis < 2; ++axis) {
    for (const TensorType* each : {&graph.value(apart).type, &wide, &result}) {
      if (!same_dim(each->dims[axis], type.dims[axis])) return std::nullopt;
    }
  }
  return Upsampling{x, rows, columns, repeat};
}

}  // namespace

bool fuse_upsample(Graph& graph, const PassContext& context) {
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    const auto found = match(rewriter, graph, id);
    if (!found) return;
    Node node;
    node.op = &context.ops.require("", "Resize", kVersion);
    node.version = kVersion;
    const float scales[] = {1, 1, static_cast<float>(found->rows), static_cast<float>(found->columns)};
    const ValueId factors = rewriter.add_constant(graph.node(id).name + "/scales",
                                                  Tensor::from<float>({4}, std::span<const float>(scales)));
    node.inputs = {found->x, ValueId::none, factors};
    node.outputs = {graph.node(id).outputs[0]};
    node.attributes.set("mode", std::string("nearest"));
    node.attributes.set("coordinate_transformation_mode", std::string("asymmetric"));
    node.attributes.set("nearest_mode", std::string("floor"));
    rewriter.erase(id);
    rewriter.erase(found->repeat);
    rewriter.add(std::move(node), id);
  });
}

}  // namespace lathe::passes
