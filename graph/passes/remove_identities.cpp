// Nodes that change nothing, and pairs of them that undo or swallow one another.
#include <algorithm>
#include <array>
#include <cstring>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "src/base/axis_order.h"

namespace lathe::passes {
namespace {

constexpr int kReshapeVersion = 14;

// A Transpose that only moves axes of one element each is a reshape.
bool moves_ones_only(const Graph& graph, const Node& node) {
  if (!is_one_of(node, {"Transpose"})) return false;
  const TensorType& type = graph.value(node.inputs[0]).type;
  if (!type.has_rank) return false;
  int64_t last = -1;
  for (const int64_t axis : order_of(graph, node)) {
    if (type.dims[static_cast<size_t>(axis)].extent == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

bool is_other_output_used(const Rewriter& rewriter, const Node& node) {
  return std::any_of(node.outputs.begin() + 1, node.outputs.end(),
                     [&](ValueId id) { return id != ValueId::none && rewriter.is_used(id); });
}

bool is_inference_dropout(const Rewriter& rewriter, Graph& graph, const Node& node) {
  if (is_other_output_used(rewriter, node)) return false;
  if (node.version < 7) return node.attributes.get_int("is_test", 0) != 0;
  const ValueId training = input_or_none(node, 2);
  if (training == ValueId::none) return true;
  const Tensor flag = constant_of(graph, training);
  return flag.dtype() == DType::boolean && flag.size() == 1 && !*flag.data<bool>();
}

// As same_shape, where the number of elements is equal too: then one extent follows from the others.
bool same_shape_of_same_elements(const TensorType& a, const TensorType& b) {
  if (!a.has_rank || !b.has_rank || a.rank() != b.rank()) return false;
  int different = 0;
  for (size_t i = 0; i < a.dims.size(); ++i) {
    if (a.dims[i].extent == 0 || b.dims[i].extent == 0) return false;
    if (same_dim(a.dims[i], b.dims[i])) continue;
    // An unknown extent that may be zero says nothing about its neighbours.
    if (a.dims[i].known() && b.dims[i].known()) return false;
    ++different;
  }
  const auto may_be_zero = [](const Dim& dim) { return !dim.known(); };
  if (different == 1) return std::count_if(a.dims.begin(), a.dims.end(), may_be_zero) <= 1;
  return different == 0;
}

bool all_equal(const std::optional<std::vector<int64_t>>& numbers, int64_t value) {
  return numbers && std::all_of(numbers->begin(), numbers->end(), [value](int64_t each) { return each == value; });
}

bool is_whole_slice(const Graph& graph, const Node& node) {
  const ValueId steps = input_or_none(node, 4);
  if (steps != ValueId::none) {
    const auto known = integers_of(graph, steps);
    if (!known || std::any_of(known->begin(), known->end(), [](int64_t step) { return step < 0; })) return false;
  }
  return true;
}

bool is_empty_pad(const Graph& graph, const Node& node) {
  if (node.version < 11) return all_equal(node.attributes.get_ints("pads"), 0) && node.attributes.has("pads");
  return all_equal(integers_of(graph, input_or_none(node, 1)), 0);
}

// Every window is one pixel.
bool is_pool_of_one(const Rewriter& rewriter, const Node& node) {
  if (!is_one_of(node, {"MaxPool", "AveragePool"}) || is_other_output_used(rewriter, node)) return false;
  return all_equal(node.attributes.get_ints("kernel_shape"), 1) && node.attributes.has("kernel_shape") &&
         all_equal(node.attributes.get_ints("strides"), 1) && all_equal(node.attributes.get_ints("pads"), 0);
}

// A Resize to the extents that are there, whose pixels lie where they lie.
bool is_empty_resize(const Graph& graph, const Node& node) {
  if (!is_one_of(node, {"Resize"}) || node.version < 11 || node.attributes.has("axes")) return false;
  const std::string coordinates = node.attributes.get_string("coordinate_transformation_mode", "half_pixel");
  if (coordinates != "half_pixel" && coordinates != "align_corners" && coordinates != "asymmetric" &&
      coordinates != "pytorch_half_pixel")
    return false;
  const Tensor scales = constant_of(graph, input_or_none(node, 2));
  if (scales.dtype() == DType::f32 && scales.size() > 0) {
    const auto elements = scales.elements<float>();
    return std::all_of(elements.begin(), elements.end(), [](float scale) { return scale == 1; });
  }
  const auto sizes = integers_of(graph, input_or_none(node, 3));
  return sizes && !sizes->empty();
}

// x + 0, x - 0, x * 1, x / 1: the slot of x, or -1.
int neutral_operand(const Graph& graph, const Node& node) {
  const bool is_sum = is_one_of(node, {"Add", "Sub"}), is_product = is_one_of(node, {"Mul", "Div"});
  if ((!is_sum && !is_product) || node.version < 7) return -1;
  const bool commutes = is_one_of(node, {"Add", "Mul"});
  for (size_t slot = 0; slot < (commutes ? 2u : 1u); ++slot) {
    const ValueId x = node.inputs[slot], other = node.inputs[1 - slot];
    const std::optional<float> value = scalar_of(graph, other);
    if (!value || *value != (is_sum ? 0.f : 1.f)) continue;
    if (broadcasts_into(graph.value(other).type, graph.value(x).type)) return static_cast<int>(slot);
  }
  return -1;
}

// Where, if it always chooses the same operand: its slot, or -1.
int chosen_operand(const Graph& graph, const Node& node) {
  if (!is_one_of(node, {"Where"})) return -1;
  const Tensor condition = constant_of(graph, node.inputs[0]);
  if (condition.dtype() != DType::boolean || condition.size() != 1) return -1;
  const size_t slot = *condition.data<bool>() ? 1 : 2;
  const TensorType& chosen = graph.value(node.inputs[slot]).type;
  const bool gives_shape = broadcasts_into(graph.value(node.inputs[0]).type, chosen) &&
                           broadcasts_into(graph.value(node.inputs[3 - slot]).type, chosen);
  return gives_shape ? static_cast<int>(slot) : -1;
}

// The value that output 0 always equals, or none.
ValueId equal_input(const Rewriter& rewriter, Graph& graph, const Node& node) {
  if (node.epilogue || node.inputs.empty() || node.outputs.empty() || node.outputs[0] == ValueId::none ||
      node.inputs[0] == ValueId::none) {
    return ValueId::none;
  }
  const ValueId x = node.inputs[0];
  const TensorType &from = graph.value(x).type, &to = graph.value(node.outputs[0]).type;
  const bool is_same = [&] {
    if (is_one_of(node, {"Identity"})) return true;
    if (is_one_of(node, {"Dropout"})) return is_inference_dropout(rewriter, graph, node);
    if (is_one_of(node, {"Cast", "CastLike"})) return from.dtype != DType::undefined && from.dtype == to.dtype;
    if (is_one_of(node, {"Concat", "Sum", "Max", "Min", "Mean"})) return node.inputs.size() == 1;
    if (is_one_of(node, {"Transpose"})) return from.has_rank && is_same_order(order_of(graph, node));
    if (is_reshape(node)) return same_shape_of_same_elements(from, to);
    if (is_one_of(node, {"Expand"})) return same_shape(from, to);
    if (is_one_of(node, {"Tile"})) return node.version >= 6 && all_equal(integers_of(graph, input_or_none(node, 1)), 1);
    if (is_one_of(node, {"Slice"})) return same_shape(from, to) && is_whole_slice(graph, node);
    if (is_one_of(node, {"Pad"})) return is_empty_pad(graph, node);
    if (is_one_of(node, {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"})) {
      return same_shape(from, to) && from.dtype == to.dtype;  // each of one element
    }
    if (is_pool_of_one(rewriter, node) || is_empty_resize(graph, node)) return same_shape(from, to);
    return false;
  }();
  if (is_same) return x;
  const int slot = std::max(neutral_operand(graph, node), chosen_operand(graph, node));
  return slot < 0 ? ValueId::none : node.inputs[static_cast<size_t>(slot)];
}

// Transpose(Transpose(x)).
bool merge_transposes(Rewriter& rewriter, NodeId id) {
  Graph& graph = rewriter.graph();
  Node& node = graph.node(id);
  if (!is_one_of(node, {"Transpose"}) || node.epilogue) return false;
  const NodeId before = rewriter.producer_if(node.inputs[0], "Transpose");
  if (before == NodeId::none) return false;
  const std::vector<int64_t> first = order_of(graph, graph.node(before)), second = order_of(graph, node);
  if (first.size() != second.size() || first.empty()) return false;
  node.attributes.set("perm", permuted(first, second));
  rewriter.set_input(id, 0, graph.node(before).inputs[0]);
  return true;
}

// Numbers of the first type are numbers of the second, all of them.
bool holds_all_of(DType wide, DType narrow) {
  const auto is_one = [](DType dtype, std::initializer_list<DType> all) {
    return std::find(all.begin(), all.end(), dtype) != all.end();
  };
  switch (narrow) {
    case DType::boolean:
    case DType::u8:
    case DType::i8:
      return is_one(wide, {DType::i32, DType::i64, DType::f32, DType::f64});
    case DType::i32:
      return is_one(wide, {DType::i64, DType::f64});
    case DType::f16:
    case DType::bf16:
      return is_one(wide, {DType::f32, DType::f64});
    case DType::f32:
      return wide == DType::f64;
    default:
      return false;
  }
}

// Cast(Cast(x)), where the first one lost nothing.
bool merge_casts(Rewriter& rewriter, NodeId id) {
  const Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!is_one_of(node, {"Cast"}) || node.epilogue) return false;
  const NodeId before = rewriter.producer_if(node.inputs[0], "Cast");
  if (before == NodeId::none) return false;
  const ValueId x = graph.node(before).inputs[0];
  const DType last = graph.value(node.outputs[0]).type.dtype;
  const bool is_plain = holds_all_of(DType::f64, last) || last == DType::f64 || last == DType::i64;
  if (!is_plain || !holds_all_of(graph.value(node.inputs[0]).type.dtype, graph.value(x).type.dtype)) return false;
  rewriter.set_input(id, 0, x);
  return true;
}

bool is_same_constant(const Graph& graph, ValueId a, ValueId b) {
  if (a == b) return true;
  const Tensor one = constant_of(graph, a), other = constant_of(graph, b);
  return one.defined() && other.defined() && one.dtype() == other.dtype() && one.size() == 1 && other.size() == 1 &&
         std::memcmp(one.raw(), other.raw(), one.bytes()) == 0;
}

// QuantizeLinear(DequantizeLinear(bytes)) by one scale and zero point: dividing by the scale that it was multiplied by,
// a byte comes back.
bool merge_quantization(Rewriter& rewriter, NodeId id) {
  const Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (!is_one_of(node, {"QuantizeLinear"}) || node.epilogue || node.outputs[0] == ValueId::none) return false;
  const NodeId before = rewriter.producer_if(node.inputs[0], "DequantizeLinear");
  if (before == NodeId::none) return false;
  const Node& first = graph.node(before);
  const DType dtype = graph.value(first.inputs[0]).type.dtype;
  if ((dtype != DType::u8 && dtype != DType::i8) || graph.value(node.outputs[0]).type.dtype != dtype) return false;
  // Below this one, products with a byte may lose digits.
  constexpr float kSmallest = 1e-30f;
  const Tensor scale = constant_of(graph, node.inputs[1]);
  if (scale.dtype() != DType::f32 || scale.size() != 1 || !(*scale.data<float>() >= kSmallest)) return false;
  if (!is_same_constant(graph, node.inputs[1], first.inputs[1])) return false;
  if (!is_same_constant(graph, input_or_none(node, 2), input_or_none(first, 2))) return false;
  const ValueId result = node.outputs[0];
  if (!rewriter.replace(result, first.inputs[0])) return false;
  rewriter.erase(id);
  return true;
}

// The shape that a Reshape of `source` to the type is told; nullopt: it cannot be.
std::optional<std::vector<int64_t>> shape_for(const TensorType& source, const TensorType& type) {
  if (!type.has_rank || !source.has_rank) return std::nullopt;
  std::vector<int64_t> shape;
  for (size_t axis = 0; axis < type.dims.size(); ++axis) {
    const Dim& dim = type.dims[axis];
    // A zero means "as the input has it", which keeps a symbol, too.
    if (dim.extent == 0) return std::nullopt;
    if (!dim.known() && !(axis < source.dims.size() && same_dim(dim, source.dims[axis]))) return std::nullopt;
    shape.push_back(dim.known() ? dim.extent : 0);
  }
  return shape;
}

// A reshape behind a reshape: the first one does not matter.
bool merge_reshapes(Rewriter& rewriter, const PassContext& context, NodeId id) {
  Graph& graph = rewriter.graph();
  const Node& node = graph.node(id);
  if (node.epilogue || node.inputs.empty() || node.inputs[0] == ValueId::none || node.outputs[0] == ValueId::none) {
    return false;
  }
  const NodeId before = graph.value(node.inputs[0]).producer;
  if (before == NodeId::none || !rewriter.is_live(before) || graph.node(before).epilogue) return false;
  if (!is_reshape(node) && !is_reshape(graph.node(before))) return false;
  if (!is_reshape(node) && !moves_ones_only(graph, node)) return false;
  if (!is_reshape(graph.node(before)) && !moves_ones_only(graph, graph.node(before))) return false;
  const ValueId source = graph.node(before).inputs[0], result = node.outputs[0];
  if (same_shape(graph.value(source).type, graph.value(result).type) && rewriter.replace(result, source)) {
    rewriter.erase(id);
    return true;
  }
  const auto shape = shape_for(graph.value(source).type, graph.value(result).type);
  const OpSchema* schema = context.ops.find("", "Reshape", kReshapeVersion);
  if (!shape || schema == nullptr) return false;
  const ValueId target = rewriter.add_integers(graph.value(result).name + "/shape", *shape);
  const std::string name = node.name;
  rewriter.erase(id);
  rewriter.add(
      {.op = schema, .version = kReshapeVersion, .name = name, .inputs = {source, target}, .outputs = {result}}, id);
  return true;
}

}  // namespace

bool remove_identities(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  bool changed = false;
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    changed = merge_transposes(rewriter, id) || merge_casts(rewriter, id) || changed;
    if (merge_quantization(rewriter, id)) {
      changed = true;
      continue;
    }
    const Node& node = graph.node(id);
    const ValueId same = equal_input(rewriter, graph, node);
    if (same != ValueId::none) {
      const ValueId result = node.outputs[0];
      if (rewriter.replace(result, same)) {
        rewriter.erase(id);
        changed = true;
      }
      continue;
    }
    changed = merge_reshapes(rewriter, context, id) || changed;
  }
  rewriter.finish();
  return changed;
}

}  // namespace lathe::passes
