// If and Loop. Their bodies are Graphs whose inputs end with the captured values.
#include <optional>

#include "lathe/error.h"
#include "ops/body_types.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/box.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

template <class Context>
const Graph& body_of(const Context& context, const char* name) {
  const Attribute* found = context.node.attributes.find(name);
  const auto* body = found != nullptr ? std::get_if<std::shared_ptr<const Graph>>(found) : nullptr;
  if (body == nullptr || *body == nullptr) context.fail(std::string("attribute '") + name + "' is missing");
  return **body;
}

// ---- If

void infer_if(InferContext& context) {
  const Graph &then_body = body_of(context, "then_branch"), &else_body = body_of(context, "else_branch");
  const auto outputs = static_cast<size_t>(context.output_count());
  if (then_body.outputs.size() != outputs || else_body.outputs.size() != outputs) {
    context.fail("has " + std::to_string(outputs) + " outputs, its branches give " +
                 std::to_string(then_body.outputs.size()) + " and " + std::to_string(else_body.outputs.size()));
  }
  const std::vector<TensorType> then_types = context.infer_body(then_body, {});
  const std::vector<TensorType> else_types = context.infer_body(else_body, {});
  const Tensor condition = context.constant(0);
  for (size_t i = 0; i < outputs; ++i) {
    const TensorType &a = then_types[i], &b = else_types[i];
    if (!may_agree(a, b)) {
      context.fail("output " + std::to_string(i) + " is " + to_string(a.without_shape()) + " in one branch and " +
                   to_string(b.without_shape()) + " in the other");
    }
    const bool is_decided = condition.defined() && condition.size() == 1 && condition.dtype() == DType::boolean;
    const TensorType type = !is_decided ? common_type(a, b) : *condition.data<bool>() ? a : b;
    context.set_output(static_cast<int>(i), type);
  }
}

void run_if(ReferenceContext& context) {
  const bool condition = integer_scalar(context, context.inputs[0], "input 0 (cond)") != 0;
  const Graph& body = body_of(context, condition ? "then_branch" : "else_branch");
  std::vector<Tensor> results = context.run_body(body, context.captures);
  if (results.size() != context.outputs.size()) context.fail("its branch gives another number of outputs");
  for (size_t i = 0; i < results.size(); ++i) context.outputs[i] = std::move(results[i]);
}

// ---- Loop

// The formal inputs of the body: iteration, condition, states, captures; its outputs: condition, states, scans.
struct LoopShape {
  size_t states, scans;
};
template <class Context>
LoopShape loop_shape(const Context& context, const Graph& body, size_t inputs, size_t outputs, size_t captures) {
  const size_t states = inputs > 2 ? inputs - 2 : 0;
  if (body.inputs.size() != states + 2 + captures || body.outputs.size() != outputs + 1 || outputs < states) {
    context.fail("has " + std::to_string(states) + " states and " + std::to_string(outputs) +
                 " outputs; its body has " + std::to_string(body.inputs.size()) + " inputs and " +
                 std::to_string(body.outputs.size()) + " outputs");
  }
  return {states, outputs - states};
}

void infer_loop(InferContext& context) {
  const Graph& body = body_of(context, "body");
  const LoopShape shape =
      loop_shape(context, body, static_cast<size_t>(context.input_count()), static_cast<size_t>(context.output_count()),
                 static_cast<size_t>(context.node.captures));
  std::vector<TensorType> inputs{TensorType::of(DType::i64, {}), TensorType::of(DType::boolean, {})}, states;
  for (size_t i = 0; i < shape.states; ++i) states.push_back(context.input(static_cast<int>(i) + 2));
  inputs.resize(2 + shape.states);
  const std::vector<TensorType> results = infer_iterated(context, body, std::move(inputs), 2, 1, states);
  for (size_t i = 0; i < shape.states; ++i) context.set_output(static_cast<int>(i), states[i]);
  for (size_t i = 0; i < shape.scans; ++i) {
    context.set_output(static_cast<int>(shape.states + i), with_axis(results[1 + shape.states + i], 0, Dim()));
  }
}

// What a loop that never ran gives as scan output `i`: no rows of the declared shape.
Tensor no_rows(const ReferenceContext& context, const TensorType& element) {
  Dims dims{0};
  for (const Dim& dim : element.dims) dims.push_back(dim.known() ? dim.extent : 0);
  if (element.dtype == DType::undefined) context.fail("a scan output of no iterations has no known type");
  return make_output(context, element.dtype, dims);
}

Tensor stacked(const ReferenceContext& context, const std::vector<Tensor>& rows) {
  if (is_boxed(rows[0])) context.fail("a scan output is " + unbox(rows[0]).kind() + ", expected a tensor");
  Dims dims = rows[0].dims();
  for (const Tensor& row : rows) {
    if (row.dims() != dims || row.dtype() != rows[0].dtype()) {
      context.fail("a scan output changes its shape between iterations: " + to_string(dims) + ", " +
                   to_string(row.dims()));
    }
  }
  dims.insert(dims.begin(), static_cast<int64_t>(rows.size()));
  const Tensor first = spread_elements(rows[0]);
  Tensor result = make_output(context, first.dtype(), dims);
  const ElementCopy copy(first.dtype());
  for (size_t i = 0; i < rows.size(); ++i) {
    copy(spread_elements(rows[i]), 0, result, static_cast<int64_t>(i) * first.size(), first.size());
  }
  return pack_elements(result, rows[0].dtype());
}

void run_loop(ReferenceContext& context) {
  const Graph& body = body_of(context, "body");
  const LoopShape shape =
      loop_shape(context, body, context.inputs.size(), context.outputs.size(), context.captures.size());
  std::optional<int64_t> trips;
  if (context.has_input(0)) trips = integer_scalar(context, context.inputs[0], "input 0 (M)");
  bool condition = !context.has_input(1) || integer_scalar(context, context.inputs[1], "input 1 (cond)") != 0;
  std::vector<Tensor> states;
  for (size_t i = 0; i < shape.states; ++i) states.push_back(context.inputs[i + 2]);
  std::vector<std::vector<Tensor>> rows(shape.scans);
  size_t kept_bytes = 0;
  for (int64_t iteration = 0; condition && (!trips || iteration < *trips); ++iteration) {
    if (iteration >= context.limits.loop_iterations) {
      throw Error(ErrorCode::limit, "node '" + context.node.name + "' (Loop): more than " +
                                        std::to_string(context.limits.loop_iterations) + " iterations");
    }
    std::vector<Tensor> inputs{Tensor::scalar(iteration), Tensor::scalar(condition)};
    inputs.insert(inputs.end(), states.begin(), states.end());
    inputs.insert(inputs.end(), context.captures.begin(), context.captures.end());
    std::vector<Tensor> results = context.run_body(body, inputs);
    condition = integer_scalar(context, results[0], "the body's condition") != 0;
    for (size_t i = 0; i < shape.states; ++i) states[i] = std::move(results[1 + i]);
    for (size_t i = 0; i < shape.scans; ++i) {
      kept_bytes = checked_add(kept_bytes, results[1 + shape.states + i].bytes());
      rows[i].push_back(std::move(results[1 + shape.states + i]));
    }
    if (kept_bytes > context.limits.tensor_bytes) {
      throw Error(ErrorCode::limit, "node '" + context.node.name + "' (Loop): its scan outputs pass the limit");
    }
  }
  for (size_t i = 0; i < shape.states; ++i) context.outputs[i] = states[i];
  for (size_t i = 0; i < shape.scans; ++i) {
    const TensorType& element = body.value(body.outputs[1 + shape.states + i]).type;
    context.outputs[shape.states + i] = rows[i].empty() ? no_rows(context, element) : stacked(context, rows[i]);
  }
}

}  // namespace

std::vector<OpDef> control_flow_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "If",
                      .min_outputs = 1,
                      .max_outputs = -1,
                      .attributes = {{"then_branch", Kind::graph, true}, {"else_branch", Kind::graph, true}},
                      .infer = infer_if,
                      .reference = run_if}},
          {.schema = {.name = "Loop",
                      .min_inputs = 0,  // both M and the condition may be absent
                      .max_inputs = -1,
                      .min_outputs = 0,
                      .max_outputs = -1,
                      .attributes = {{"body", Kind::graph, true}},
                      .infer = infer_loop,
                      .reference = run_loop,
                      .takes_objects = true}}};
}

}  // namespace lathe::ops
