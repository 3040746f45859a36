// Puts together LayerNormalization where an exporter spelled it out:
//   d = x - mean(x);  y = d / sqrt(mean(d * d) + epsilon) * gain + bias
// or another form of it (norm_parts.h), over the last axis; or over the channels of pictures, between two Transposes:
// rows are normalized by one step, and a Transpose next to a convolution is what a reorder does anyway.
#include <algorithm>
#include <numeric>

#include "graph/passes/norm_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"
#include "src/base/axis_order.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 17;
constexpr int64_t kFewestChannels = 16;  // shorter rows cost more than several passes over planes

// What is normalized: `columns` elements along one of `rank` axes.
struct Axis {
  int64_t axis = 0;
  int64_t columns = 0;
  int rank = 0;

  bool is_last() const { return axis == rank - 1; }
};

// As a list of one number for each column; none where it is not.
ValueId as_row(Rewriter& rewriter, ValueId id, const Axis& along) {
  const TensorType& type = rewriter.graph().value(id).type;
  if (type.dtype != DType::f32 || !type.is_static()) return ValueId::none;
  if (along.is_last() && type.rank() == 1 && type.dims[0].extent == along.columns) return id;
  const Tensor tensor = constant_of(rewriter.graph(), id);
  // [1, 1, C], or [C, 1, 1] of channels, is as good when it is a constant.
  const int64_t place = along.axis - (along.rank - type.rank());
  if (!tensor.defined() || place < 0 || type.rank() > along.rank || tensor.size() != along.columns ||
      tensor.dims()[static_cast<size_t>(place)] != along.columns) {
    return ValueId::none;
  }
  return rewriter.add_constant(rewriter.graph().value(id).name, tensor.reshaped({along.columns}));
}

// The 1-D gain or bias of a Mul or Add that alone reads `id`; none when there is no such node.
ValueId row_operand(Rewriter& rewriter, ValueId id, std::string_view op, const Axis& along, NodeId& user) {
  Graph& graph = rewriter.graph();
  user = rewriter.only_user(id);
  if (user == NodeId::none || !is_op(graph.node(user), op) || graph.node(user).epilogue) return ValueId::none;
  const Node& node = graph.node(user);
  const ValueId other = node.inputs[node.inputs[0] == id ? 1 : 0];
  if (other == id) return ValueId::none;
  return as_row(rewriter, other, along);
}

Tensor ones(int64_t count) {
  Tensor tensor(DType::f32, {count});
  for (int64_t i = 0; i < count; ++i) tensor.mutable_data<float>()[i] = 1;
  return tensor;
}

struct Tail {
  ValueId result, gain = ValueId::none, bias = ValueId::none;
  NodeId mul = NodeId::none, add = NodeId::none;
};

Tail tail_behind(Rewriter& rewriter, ValueId normalized, const Axis& along) {
  Tail tail{normalized};
  NodeId user = NodeId::none;
  tail.gain = row_operand(rewriter, normalized, "Mul", along, user);
  if (tail.gain == ValueId::none) return tail;
  tail.mul = user;
  tail.result = rewriter.graph().node(user).outputs[0];
  tail.bias = row_operand(rewriter, tail.result, "Add", along, user);
  if (tail.bias == ValueId::none) return tail;
  tail.add = user;
  tail.result = rewriter.graph().node(user).outputs[0];
  return tail;
}

// The axis that is normalized; nullopt: there are several, or no step for it.
std::optional<Axis> axis_of(const TensorType& type, const std::vector<int64_t>& axes) {
  if (type.dtype != DType::f32 || !type.has_rank || axes.size() != 1 || axes[0] < 0 || axes[0] >= type.rank()) {
    return std::nullopt;
  }
  const Dim& dim = type.dims[static_cast<size_t>(axes[0])];
  if (!dim.known()) return std::nullopt;
  const Axis along{axes[0], dim.extent, type.rank()};
  const bool is_channels = along.axis == 1 && along.columns >= kFewestChannels;
  return along.is_last() || is_channels ? std::optional(along) : std::nullopt;
}

bool fuse(Rewriter& rewriter, const OpLookup& ops, const OpSchema& norm, NodeId id) {
  Graph& graph = rewriter.graph();
  const std::optional<NormParts> found = norm_parts(rewriter, graph, id);
  if (!found) return false;
  const std::string name = graph.node(id).name;
  const std::optional<Axis> along = axis_of(graph.value(found->x).type, found->axes);
  if (!along) return false;

  Tail tail{found->result};
  if (found->has_affine) {
    tail.gain = as_row(rewriter, found->gain, *along);
    tail.bias = as_row(rewriter, found->bias, *along);
    if (tail.gain == ValueId::none || tail.bias == ValueId::none) return false;
  } else {
    tail = tail_behind(rewriter, found->result, *along);
  }
  if (tail.gain == ValueId::none) tail.gain = rewriter.add_constant(name + "/gain", ones(along->columns));
  // What stands before the anchor may have other readers: remove-dead takes it when it has none.
  for (const NodeId replaced : {id, tail.mul, tail.add}) {
    if (replaced != NodeId::none) rewriter.erase(replaced);
  }
  Rearranger rearranger(rewriter, ops, id);
  ValueId x = found->x, result = tail.result;
  std::vector<int64_t> order(static_cast<size_t>(along->rank));
  std::iota(order.begin(), order.end(), 0);
  if (!along->is_last()) {
    std::rotate(order.begin() + along->axis, order.begin() + along->axis + 1, order.end());
    x = rearranger.transposed(x, order);
    result = rewriter.add_value(graph.value(tail.result).name, graph.value(x).type);
  }
  Node node{.op = &norm, .version = kVersion, .name = "", .inputs = {x, tail.gain}, .outputs = {result}};
  if (tail.bias != ValueId::none) node.inputs.push_back(tail.bias);
  node.attributes.set("axis", int64_t{-1});
  node.attributes.set("epsilon", found->epsilon);
  rewriter.add(std::move(node), id);
  if (!along->is_last()) rearranger.transposed(result, inverse_order(order), tail.result);
  return true;
}

}  // namespace

bool fuse_layer_norm(Graph& graph, const PassContext& context) {
  const OpSchema* norm = context.ops.find("", "LayerNormalization", kVersion);
  if (norm == nullptr) return false;
  Rewriter rewriter(graph);
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (rewriter.is_live(id)) changed = fuse(rewriter, context.ops, *norm, id) || changed;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
