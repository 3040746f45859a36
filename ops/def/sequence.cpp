// Sequences of tensors. Items keep shapes of their own, and what a model declares of them is only a claim, so that no
// extent of an item is known before it is taken out.
#include <algorithm>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/box.h"

namespace lathe::ops {
namespace {

using Items = std::vector<AnyValue>;

// ---- Types

TensorType sequence_type(const TensorType& item) { return TensorType::sequence_of(item.without_shape()); }

// What the items of input `i` are; undefined when that is not known.
TensorType item_type(const InferContext& context, int i) {
  const TensorType& type = context.input(i);
  if (!type.is_object())
    context.fail("input " + std::to_string(i) + " is " + to_string(type) + ", expected a sequence");
  if (type.container == nullptr) return {};
  if (type.container->kind != ContainerType::Kind::sequence) {
    context.fail("input " + std::to_string(i) + " is " + to_string(type) + ", expected a sequence");
  }
  return type.container->element.without_shape();
}

void require_item(const InferContext& context, const TensorType& item, const TensorType& given) {
  if (may_agree(item, given)) return;
  context.fail("a sequence of " + to_string(item) + " cannot hold " + to_string(given.without_shape()));
}

// ---- Values

const Items& items_of(const ReferenceContext& context, const AnyValue& value, size_t input) {
  if (!value.is_sequence())
    context.fail("input " + std::to_string(input) + " is " + value.kind() + ", expected a sequence");
  return value.items();
}

void require_item(const ReferenceContext& context, const Items& items, const Tensor& item) {
  if (is_boxed(item)) context.fail("an item is " + unbox(item).kind() + ", expected a tensor");
  if (items.empty() || !items[0].is_tensor() || items[0].tensor().dtype() == item.dtype()) return;
  context.fail("a sequence of " + std::string(name_of(items[0].tensor().dtype())) + " cannot hold " +
               std::string(name_of(item.dtype())));
}

// Input `input`, counted from the front; `count`: positions that there are.
size_t position_of(const ReferenceContext& context, size_t input, size_t items, size_t count) {
  const int64_t given = integer_scalar(context, context.inputs[input], "the position");
  const auto length = static_cast<int64_t>(items);
  const int64_t position = given < 0 ? given + length : given;
  if (position < 0 || position >= static_cast<int64_t>(count)) {
    context.fail("position " + std::to_string(given) + " is out of range for a sequence of " + std::to_string(items));
  }
  return static_cast<size_t>(position);
}

// ---- SequenceConstruct, SequenceEmpty

void infer_construct(InferContext& context) {
  TensorType item;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    if (context.input(i).is_object()) context.fail("input " + std::to_string(i) + " is no tensor");
    require_item(context, item, context.input(i));
    item = context.input(i).without_shape();
  }
  context.set_output(0, sequence_type(item));
}

void run_construct(ReferenceContext& context) {
  Items items;
  for (const Tensor& input : context.inputs) {
    require_item(context, items, input);
    items.emplace_back(input);
  }
  context.outputs[0] = box(AnyValue::sequence(std::move(items)));
}

void infer_empty(InferContext& context) {
  const int64_t dtype = context.node.attributes.get_int("dtype", static_cast<int64_t>(DType::f32));
  if (dtype <= 0 || dtype >= kDTypeCount) context.fail("attribute dtype is " + std::to_string(dtype));
  context.set_output(0, sequence_type(TensorType::unranked(static_cast<DType>(dtype))));
}

void run_empty(ReferenceContext& context) { context.outputs[0] = box(AnyValue::sequence({})); }

// ---- SequenceAt, SequenceInsert, SequenceErase, SequenceLength

void infer_at(InferContext& context) { context.set_output(0, item_type(context, 0)); }

void run_at(ReferenceContext& context) {
  const AnyValue sequence = unbox(context.inputs[0]);
  const Items& items = items_of(context, sequence, 0);
  context.outputs[0] = box(items[position_of(context, 1, items.size(), items.size())]);
}

void infer_insert(InferContext& context) {
  const TensorType item = item_type(context, 0);
  if (!context.has_input(1)) return context.set_output(0, context.input(0));
  if (context.input(1).is_object()) context.fail("input 1 is no tensor");
  require_item(context, item, context.input(1));
  context.set_output(0, sequence_type(context.input(1)));
}

void run_insert(ReferenceContext& context) {
  const AnyValue sequence = unbox(context.inputs[0]);
  Items items = items_of(context, sequence, 0);
  require_item(context, items, context.inputs[1]);
  const size_t at = context.has_input(2) ? position_of(context, 2, items.size(), items.size() + 1) : items.size();
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(at), context.inputs[1]);
  context.outputs[0] = box(AnyValue::sequence(std::move(items)));
}

void infer_erase(InferContext& context) { context.set_output(0, sequence_type(item_type(context, 0))); }

void run_erase(ReferenceContext& context) {
  const AnyValue sequence = unbox(context.inputs[0]);
  Items items = items_of(context, sequence, 0);
  if (items.empty()) context.fail("the sequence is empty");
  const size_t at = context.has_input(1) ? position_of(context, 1, items.size(), items.size()) : items.size() - 1;
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
  context.outputs[0] = box(AnyValue::sequence(std::move(items)));
}

void infer_length(InferContext& context) {
  item_type(context, 0);
  context.set_output(0, TensorType::of(DType::i64, {}));
}

void run_length(ReferenceContext& context) {
  const AnyValue sequence = unbox(context.inputs[0]);
  context.outputs[0] = Tensor::scalar(static_cast<int64_t>(items_of(context, sequence, 0).size()));
}

// ---- SplitToSequence

// Rows [begin, end) of `axis`.
Tensor part_of(const ReferenceContext& context, const Tensor& tensor, int64_t axis, int64_t begin, int64_t end) {
  const Tensor from = spread_elements(tensor);
  const AxisSplit split = split_at(tensor.dims(), axis);
  Dims dims = tensor.dims();
  dims[static_cast<size_t>(axis)] = end - begin;
  Tensor part = make_output(context, from.dtype(), dims);
  const ElementCopy copy(from.dtype());
  const int64_t row = (end - begin) * split.inner;
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    copy(from, (outer * split.extent + begin) * split.inner, part, outer * row, row);
  }
  return pack_elements(part, tensor.dtype());
}

// An axis may be long and hold no elements at all.
constexpr int64_t kMostParts = 1 << 24;

// Extents of the parts of an axis of `extent`.
std::vector<int64_t> parts_of(const ReferenceContext& context, int64_t extent) {
  int64_t size = 1;
  if (context.has_input(1)) {
    const Tensor& split = context.inputs[1];
    if (split.rank() > 0) {
      std::vector<int64_t> parts = integers_of(context, split, "input 1 (split)");
      int64_t left = extent;
      for (const int64_t part : parts) {
        if (part < 0 || part > left) context.fail("input 1 (split) does not add up to " + std::to_string(extent));
        left -= part;
      }
      if (left != 0) context.fail("input 1 (split) does not add up to " + std::to_string(extent));
      return parts;
    }
    size = integer_scalar(context, split, "input 1 (split)");
    if (size <= 0) context.fail("input 1 (split) is " + std::to_string(size) + ", expected a positive number");
  }
  if (extent / size > kMostParts) {
    throw Error(ErrorCode::limit,
                describe(context.node) + ": splits into more than " + std::to_string(kMostParts) + " parts");
  }
  std::vector<int64_t> parts(static_cast<size_t>(extent / size), size);
  if (extent % size != 0) parts.push_back(extent % size);
  return parts;
}

void infer_split(InferContext& context) {
  if (context.input(0).is_object()) context.fail("input 0 is no tensor");
  context.set_output(0, sequence_type(context.input(0)));
}

void run_split(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
  const bool keeps_axis = context.has_input(1) || context.node.attributes.get_int("keepdims", 1) != 0;
  Items items;
  int64_t begin = 0;
  for (const int64_t extent : parts_of(context, data.dims()[static_cast<size_t>(axis)])) {
    Tensor part = part_of(context, data, axis, begin, begin + extent);
    begin += extent;
    if (!keeps_axis) {
      Dims dims = part.dims();
      dims.erase(dims.begin() + axis);
      part = part.reshaped(dims);
    }
    items.emplace_back(std::move(part));
  }
  context.outputs[0] = box(AnyValue::sequence(std::move(items)));
}

// ---- ConcatFromSequence

void infer_concat(InferContext& context) { context.set_output(0, item_type(context, 0)); }

// The items with an axis of their own inserted, if that is wanted, and checked to fit together.
std::vector<Tensor> joinable(const ReferenceContext& context, const Items& items, int64_t axis, bool is_new_axis) {
  std::vector<Tensor> tensors;
  for (const AnyValue& item : items) {
    Tensor tensor = item.tensor();
    Dims dims = tensor.dims();
    if (is_new_axis) dims.insert(dims.begin() + axis, 1);
    tensor = tensor.reshaped(dims);
    const Dims& first = tensors.empty() ? dims : tensors[0].dims();
    for (size_t d = 0; d < std::max(dims.size(), first.size()); ++d) {
      if (dims.size() == first.size() && (dims[d] == first[d] || static_cast<int64_t>(d) == axis)) continue;
      context.fail("items of shapes " + to_string(first) + " and " + to_string(dims) + " cannot be joined");
    }
    if (!tensors.empty() && tensor.dtype() != tensors[0].dtype()) context.fail("its items differ in type");
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void run_concat(ReferenceContext& context) {
  const AnyValue sequence = unbox(context.inputs[0]);
  const Items& items = items_of(context, sequence, 0);
  if (items.empty()) context.fail("the sequence is empty");
  const bool is_new_axis = context.node.attributes.get_int("new_axis", 0) != 0;
  const int64_t rank = items[0].tensor().rank() + (is_new_axis ? 1 : 0);
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), rank);
  const std::vector<Tensor> tensors = joinable(context, items, axis, is_new_axis);
  Dims dims = tensors[0].dims();
  dims[static_cast<size_t>(axis)] = 0;
  for (const Tensor& tensor : tensors) dims[static_cast<size_t>(axis)] += tensor.dims()[static_cast<size_t>(axis)];
  const DType dtype = tensors[0].dtype();
  Tensor whole = make_output(context, spread_elements(tensors[0]).dtype(), dims);
  const AxisSplit split = split_at(dims, axis);
  const ElementCopy copy(whole.dtype());
  int64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    const Tensor from = spread_elements(tensor);
    const int64_t row = tensor.dims()[static_cast<size_t>(axis)] * split.inner;
    for (int64_t outer = 0; outer < split.outer; ++outer) {
      copy(from, outer * row, whole, outer * split.extent * split.inner + begin, row);
    }
    begin += row;
  }
  context.outputs[0] = pack_elements(whole, dtype);
}

// ---- SequenceMap

template <class Context>
const Graph& map_body(const Context& context, size_t inputs, size_t outputs) {
  const auto body = context.node.attributes.get_graph("body");
  if (body == nullptr) context.fail("attribute 'body' is missing");
  if (body->inputs.size() != inputs + static_cast<size_t>(context.node.captures) || body->outputs.size() != outputs) {
    context.fail("has " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
                 " outputs; its body has " + std::to_string(body->inputs.size()) + " and " +
                 std::to_string(body->outputs.size()));
  }
  return *body;  // the node keeps it alive
}

void infer_map(InferContext& context) {
  const Graph& body =
      map_body(context, static_cast<size_t>(context.input_count()), static_cast<size_t>(context.output_count()));
  std::vector<TensorType> inputs{item_type(context, 0)};
  for (int i = 1; i < context.input_count(); ++i) {
    inputs.push_back(context.input(i).is_object() ? item_type(context, i) : context.input(i));
  }
  const std::vector<TensorType> results = context.infer_body(body, inputs);
  for (size_t i = 0; i < results.size(); ++i) context.set_output(static_cast<int>(i), sequence_type(results[i]));
}

void run_map(ReferenceContext& context) {
  const Graph& body = map_body(context, context.inputs.size(), context.outputs.size());
  std::vector<AnyValue> operands;
  for (const Tensor& input : context.inputs) operands.push_back(unbox(input));
  const size_t length = items_of(context, operands[0], 0).size();
  for (size_t i = 1; i < operands.size(); ++i) {
    if (operands[i].is_sequence() && operands[i].items().size() != length) {
      context.fail("input " + std::to_string(i) + " has " + std::to_string(operands[i].items().size()) +
                   " items, input 0 has " + std::to_string(length));
    }
  }
  std::vector<Items> made(context.outputs.size());
  for (size_t at = 0; at < length; ++at) {
    std::vector<Tensor> inputs;
    for (const AnyValue& operand : operands)
      inputs.push_back(box(operand.is_sequence() ? operand.items()[at] : operand));
    inputs.insert(inputs.end(), context.captures.begin(), context.captures.end());
    const std::vector<Tensor> results = context.run_body(body, inputs);
    for (size_t i = 0; i < made.size(); ++i) {
      require_item(context, made[i], results[i]);
      made[i].emplace_back(results[i]);
    }
  }
  for (size_t i = 0; i < made.size(); ++i) context.outputs[i] = box(AnyValue::sequence(std::move(made[i])));
}

}  // namespace

std::vector<OpDef> sequence_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) {
    schema.since = schema.name == "SequenceMap" ? 17 : 11;
    schema.takes_objects = true;
    defs.push_back({.schema = std::move(schema)});
  };
  add({.name = "SequenceConstruct", .max_inputs = -1, .infer = infer_construct, .reference = run_construct});
  add({.name = "SequenceEmpty",
       .min_inputs = 0,
       .max_inputs = 0,
       .attributes = {{"dtype", Kind::integer}},
       .infer = infer_empty,
       .reference = run_empty});
  add({.name = "SequenceAt", .min_inputs = 2, .max_inputs = 2, .infer = infer_at, .reference = run_at});
  add({.name = "SequenceInsert", .min_inputs = 2, .max_inputs = 3, .infer = infer_insert, .reference = run_insert});
  add({.name = "SequenceErase", .max_inputs = 2, .infer = infer_erase, .reference = run_erase});
  add({.name = "SequenceLength", .infer = infer_length, .reference = run_length});
  add({.name = "SplitToSequence",
       .max_inputs = 2,
       .attributes = {{"axis", Kind::integer}, {"keepdims", Kind::integer}},
       .infer = infer_split,
       .reference = run_split});
  add({.name = "ConcatFromSequence",
       .attributes = {{"axis", Kind::integer, true}, {"new_axis", Kind::integer}},
       .infer = infer_concat,
       .reference = run_concat});
  add({.name = "SequenceMap",
       .max_inputs = -1,
       .max_outputs = -1,
       .attributes = {{"body", Kind::graph, true}},
       .infer = infer_map,
       .reference = run_map});
  return defs;
}

}  // namespace lathe::ops
