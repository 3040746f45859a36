// Scan: a body run over slices of its scan inputs. Version 8 has a batch axis and sequence lengths of its own.
#include <algorithm>

#include "ops/body_types.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

struct ScanShape {
  const Graph* body;
  size_t states, scan_inputs, scan_outputs;
  std::vector<int64_t> input_axes, output_axes;  // as given; 0 where absent
  std::vector<int64_t> input_directions, output_directions;
};

template <class Context>
std::vector<int64_t> per_operand(const Context& context, const char* name, size_t count) {
  std::vector<int64_t> values = context.node.attributes.get_ints(name);
  if (!values.empty() && values.size() != count) {
    context.fail(std::string("attribute '") + name + "' has " + std::to_string(values.size()) + " elements, expected " +
                 std::to_string(count));
  }
  values.resize(count, 0);
  return values;
}

// `operands`: states and scan inputs, without the sequence lengths of version 8.
template <class Context>
ScanShape scan_shape(const Context& context, size_t operands, size_t outputs) {
  const auto body = context.node.attributes.get_graph("body");
  if (body == nullptr) context.fail("attribute 'body' is missing");
  const int64_t scan_inputs = context.node.attributes.get_int("num_scan_inputs", 0);
  if (scan_inputs < 1 || scan_inputs > static_cast<int64_t>(operands)) {
    context.fail("num_scan_inputs is " + std::to_string(scan_inputs) + ", with " + std::to_string(operands) +
                 " inputs");
  }
  ScanShape shape{};
  shape.body = body.get();
  shape.scan_inputs = static_cast<size_t>(scan_inputs);
  shape.states = operands - shape.scan_inputs;
  if (outputs < shape.states || body->outputs.size() != outputs ||
      body->inputs.size() != operands + static_cast<size_t>(context.node.captures)) {
    context.fail("has " + std::to_string(operands) + " inputs and " + std::to_string(outputs) +
                 " outputs; its body has " + std::to_string(body->inputs.size()) + " and " +
                 std::to_string(body->outputs.size()));
  }
  shape.scan_outputs = outputs - shape.states;
  const bool is_batched = context.node.op->since < 9;
  shape.input_axes = per_operand(context, "scan_input_axes", shape.scan_inputs);
  shape.output_axes = per_operand(context, "scan_output_axes", shape.scan_outputs);
  shape.input_directions = per_operand(context, is_batched ? "directions" : "scan_input_directions", shape.scan_inputs);
  shape.output_directions = per_operand(context, "scan_output_directions", shape.scan_outputs);
  return shape;
}

// ---- Inference

TensorType known_rank(const TensorType& type) {  // no symbol of the body may leak out of it
  TensorType result = type;
  for (Dim& dim : result.dims) dim.symbol.clear();
  return result;
}

void infer_scan(InferContext& context) {
  const bool is_batched = context.node.op->since < 9;
  const int first = is_batched ? 1 : 0;
  const ScanShape shape = scan_shape(context, static_cast<size_t>(std::max(0, context.input_count() - first)),
                                     static_cast<size_t>(context.output_count()));
  const auto operand = [&](size_t i) -> TensorType {
    const TensorType& type = context.input(static_cast<int>(i) + first);
    return is_batched ? without_axis(type, 0) : type;
  };
  Dim batch, length;
  std::vector<TensorType> states, inputs(shape.states);
  for (size_t i = 0; i < shape.states; ++i) states.push_back(operand(i));
  for (size_t i = 0; i < shape.scan_inputs; ++i) {
    const TensorType type = operand(shape.states + i);
    if (type.has_rank) {
      const int64_t axis = axis_within(context, shape.input_axes[i], type.rank());
      const Dim& extent = type.dims[static_cast<size_t>(axis)];
      if (!length.known() && (extent.known() || length.symbol.empty())) length = extent;
    }
    const TensorType& whole = context.input(static_cast<int>(shape.states + i) + first);
    if (is_batched && whole.has_rank && whole.rank() > 0) batch = whole.dims[0];
    inputs.push_back(without_axis(type, shape.input_axes[i]));
  }
  const std::vector<TensorType> results = infer_iterated(context, *shape.body, std::move(inputs), 0, 0, states);
  for (size_t i = 0; i < results.size(); ++i) {
    TensorType type =
        i < shape.states ? states[i] : with_axis(known_rank(results[i]), shape.output_axes[i - shape.states], length);
    context.set_output(static_cast<int>(i), is_batched ? with_axis(type, 0, batch) : type);
  }
}

// ---- Reference

// `type` must be one of whole bytes. Element i of `axis`, without that axis.
Tensor slice_of(const ReferenceContext& context, const Tensor& tensor, int64_t axis, int64_t i) {
  const AxisSplit split = split_at(tensor.dims(), axis);
  Dims dims = tensor.dims();
  dims.erase(dims.begin() + axis);
  const Tensor spread = spread_elements(tensor);
  Tensor result = make_output(context, spread.dtype(), dims);
  const ElementCopy copy(spread.dtype());
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    copy(spread, (outer * split.extent + i) * split.inner, result, outer * split.inner, split.inner);
  }
  return pack_elements(result, tensor.dtype());
}

// The inverse: `slices` along a new `axis`. Undefined slices leave zeros.
Tensor joined(const ReferenceContext& context, const std::vector<Tensor>& slices, int64_t axis, int64_t extent) {
  const Tensor& first = slices[0];
  axis = axis_within(context, axis, first.rank() + 1);
  Dims dims = first.dims();
  dims.insert(dims.begin() + axis, extent);
  Tensor result = make_output(context, spread_elements(first).dtype(), dims);
  const AxisSplit split = split_at(dims, axis);
  const ElementCopy copy(result.dtype());
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].dims() != first.dims() || slices[i].dtype() != first.dtype()) {
      context.fail("a scan output changes its shape between iterations: " + to_string(first.dims()) + ", " +
                   to_string(slices[i].dims()));
    }
    const Tensor spread = spread_elements(slices[i]);
    for (int64_t outer = 0; outer < split.outer; ++outer) {
      copy(spread, outer * split.inner, result, (outer * extent + static_cast<int64_t>(i)) * split.inner, split.inner);
    }
  }
  return pack_elements(result, first.dtype());
}

Tensor no_slices(const ReferenceContext& context, const ScanShape& shape, size_t scan_output, int64_t extent) {
  const TensorType& element = shape.body->value(shape.body->outputs[shape.states + scan_output]).type;
  if (element.dtype == DType::undefined) context.fail("a scan output of no iterations has no known type");
  Dims dims;
  for (const Dim& dim : element.dims) dims.push_back(dim.known() ? dim.extent : 0);
  dims.insert(dims.begin() + axis_within(context, shape.output_axes[scan_output], element.rank() + 1), extent);
  return make_output(context, element.dtype, dims);
}

// One sequence: `operands` are states and scan inputs without a batch axis. Runs the first `length` slices; the scan
// outputs have `padded_length`.
std::vector<Tensor> run_sequence(const ReferenceContext& context, const ScanShape& shape, std::vector<Tensor> operands,
                                 int64_t length, int64_t padded_length) {
  std::vector<std::vector<Tensor>> slices(shape.scan_outputs);
  std::vector<Tensor> states(operands.begin(), operands.begin() + static_cast<ptrdiff_t>(shape.states));
  for (int64_t t = 0; t < length; ++t) {
    std::vector<Tensor> inputs = states;
    for (size_t i = 0; i < shape.scan_inputs; ++i) {
      const Tensor& whole = operands[shape.states + i];
      const int64_t axis = axis_within(context, shape.input_axes[i], whole.rank());
      inputs.push_back(slice_of(context, whole, axis, shape.input_directions[i] == 0 ? t : length - 1 - t));
    }
    inputs.insert(inputs.end(), context.captures.begin(), context.captures.end());
    std::vector<Tensor> results = context.run_body(*shape.body, inputs);
    for (size_t i = 0; i < shape.states; ++i) states[i] = results[i];
    for (size_t i = 0; i < shape.scan_outputs; ++i) slices[i].push_back(std::move(results[shape.states + i]));
  }
  std::vector<Tensor> outputs = std::move(states);
  for (size_t i = 0; i < shape.scan_outputs; ++i) {
    if (shape.output_directions[i] != 0) std::reverse(slices[i].begin(), slices[i].end());
    outputs.push_back(slices[i].empty() ? no_slices(context, shape, i, padded_length)
                                        : joined(context, slices[i], shape.output_axes[i], padded_length));
  }
  return outputs;
}

int64_t length_of(const ReferenceContext& context, const ScanShape& shape, std::span<const Tensor> operands) {
  int64_t length = -1;
  for (size_t i = 0; i < shape.scan_inputs; ++i) {
    const Tensor& whole = operands[shape.states + i];
    const int64_t extent = whole.dims()[static_cast<size_t>(axis_within(context, shape.input_axes[i], whole.rank()))];
    if (length >= 0 && extent != length) {
      context.fail("scan inputs have " + std::to_string(length) + " and " + std::to_string(extent) + " slices");
    }
    length = extent;
  }
  return length;
}

void run_scan(ReferenceContext& context) {
  const ScanShape shape = scan_shape(context, context.inputs.size(), context.outputs.size());
  std::vector<Tensor> operands(context.inputs.begin(), context.inputs.end());
  const int64_t length = length_of(context, shape, operands);
  context.outputs = run_sequence(context, shape, std::move(operands), length, length);
}

void run_batched_scan(ReferenceContext& context) {
  if (context.inputs.empty()) context.fail("has no inputs");
  const std::span<const Tensor> operands = context.inputs.subspan(1);
  const ScanShape shape = scan_shape(context, operands.size(), context.outputs.size());
  for (const Tensor& operand : operands) {
    if (operand.rank() < 1 || operand.dims()[0] != operands.back().dims()[0]) {
      context.fail("operands have different batches");
    }
  }
  const int64_t batch = operands.back().dims()[0];
  std::vector<int64_t> lengths;
  if (context.has_input(0)) lengths = integers_of(context, context.inputs[0], "input 0 (sequence_lens)");
  if (batch == 0) context.fail("the batch is empty");
  if (!lengths.empty() && static_cast<int64_t>(lengths.size()) != batch)
    context.fail("sequence_lens has another batch");
  std::vector<std::vector<Tensor>> results(context.outputs.size());
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<Tensor> one;
    for (const Tensor& operand : operands) one.push_back(slice_of(context, operand, 0, b));
    const int64_t padded = length_of(context, shape, one);
    const int64_t length = lengths.empty() ? padded : lengths[static_cast<size_t>(b)];
    if (length < 0 || length > padded) context.fail("sequence length " + std::to_string(length) + " is out of range");
    std::vector<Tensor> outputs = run_sequence(context, shape, std::move(one), length, padded);
    for (size_t i = 0; i < outputs.size(); ++i) results[i].push_back(std::move(outputs[i]));
  }
  for (size_t i = 0; i < results.size(); ++i) context.outputs[i] = joined(context, results[i], 0, batch);
}

}  // namespace

std::vector<OpDef> scan_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "Scan",
                      .since = 8,
                      .until = 8,
                      .min_inputs = 0,  // the sequence lengths may be absent
                      .max_inputs = -1,
                      .max_outputs = -1,
                      .attributes = {{"body", Kind::graph, true},
                                     {"num_scan_inputs", Kind::integer, true},
                                     {"directions", Kind::integers}},
                      .infer = infer_scan,
                      .reference = run_batched_scan}},
          {.schema = {.name = "Scan",
                      .since = 9,
                      .max_inputs = -1,
                      .max_outputs = -1,
                      .attributes = {{"body", Kind::graph, true},
                                     {"num_scan_inputs", Kind::integer, true},
                                     {"scan_input_axes", Kind::integers},
                                     {"scan_input_directions", Kind::integers},
                                     {"scan_output_axes", Kind::integers},
                                     {"scan_output_directions", Kind::integers}},
                      .infer = infer_scan,
                      .reference = run_scan}}};
}

}  // namespace lathe::ops
