// FlexAttention of ai.onnx.preview: attention whose scores and probabilities pass through bodies.
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// In the order of Q's and K's axes.
struct FlexShape {
  int64_t batch, query_heads, heads, queries, keys, size, value_size;
};

FlexShape shape_of(const ReferenceContext& context) {
  const Dims &q = context.inputs[0].dims(), &k = context.inputs[1].dims(), &v = context.inputs[2].dims();
  const bool has_ranks = q.size() == 4 && k.size() == 4 && v.size() == 4;
  if (!has_ranks || k[0] != q[0] || v[0] != q[0] || k[3] != q[3] || v[1] != k[1] || v[2] != k[2] || k[1] < 1 ||
      q[1] % k[1] != 0) {
    context.fail("Q is " + to_string(q) + ", K " + to_string(k) + ", V " + to_string(v));
  }
  return {q[0], q[1], k[1], q[2], k[2], q[3], v[3]};
}

DType softmax_type(const ReferenceContext& context) {
  const bool is_double = context.inputs[0].dtype() == DType::f64;
  const int64_t precision =
      context.node.attributes.get_int("softmax_precision", static_cast<int64_t>(is_double ? DType::f64 : DType::f32));
  const auto dtype = static_cast<DType>(precision);
  if (dtype != DType::f32 && dtype != DType::f64 && dtype != DType::f16 && dtype != DType::bf16) {
    context.fail("attribute 'softmax_precision' is " + std::to_string(precision));
  }
  return dtype;
}

// The tensor through a body; itself when the node has no such body.
Tensor modified(const ReferenceContext& context, const char* name, Tensor tensor) {
  const std::shared_ptr<const Graph> body = context.node.attributes.get_graph(name);
  if (!body) return tensor;
  std::vector<Tensor> inputs{tensor};
  inputs.insert(inputs.end(), context.captures.begin(), context.captures.end());
  std::vector<Tensor> results = context.run_body(*body, inputs);
  if (results.size() != 1 || results[0].dims() != tensor.dims() || results[0].dtype() != tensor.dtype()) {
    context.fail(std::string("the body '") + name + "' does not give what it takes");
  }
  return results[0];
}

Tensor scores_of(const ReferenceContext& context, const FlexShape& shape, DType dtype) {
  const DType own = context.inputs[0].dtype();
  const Attributes& attributes = context.node.attributes;
  const double whole =
      attributes.has("scale") ? attributes.get_float("scale", 0) : 1 / std::sqrt(static_cast<double>(shape.size));
  if (whole < 0) context.fail("attribute 'scale' is negative");
  // Both factors carry the root of the scale, rounded to their type.
  const double scale = rounded_to(own, std::sqrt(whole));
  std::vector<double> q = reals_of(context.inputs[0]), k = reals_of(context.inputs[1]);
  for (std::vector<double>* factors : {&q, &k}) {
    for (double& value : *factors) value = rounded_to(own, value * scale);
  }
  Tensor scores = make_output(context, dtype, {shape.batch, shape.query_heads, shape.queries, shape.keys});
  const int64_t group = shape.query_heads / shape.heads;
  int64_t at = 0;
  for (IndexWalk index(scores.dims()); !index.done(); index.next(), ++at) {
    const auto& i = index.index();
    const double* query = q.data() + ((i[0] * shape.query_heads + i[1]) * shape.queries + i[2]) * shape.size;
    const double* key = k.data() + ((i[0] * shape.heads + i[1] / group) * shape.keys + i[3]) * shape.size;
    double dot = 0;
    for (int64_t d = 0; d < shape.size; ++d) dot += query[d] * key[d];
    store_real(scores, at, rounded_to(own, dot));
  }
  return scores;
}

// Along the last axis.
Tensor softmax_of(const ReferenceContext& context, const Tensor& scores) {
  std::vector<double> values = reals_of(scores);
  const auto keys = static_cast<size_t>(scores.dims().back());
  for (size_t row = 0; keys > 0 && row < values.size() / keys; ++row) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * keys), end = begin + scores.dims().back();
    const double largest = *std::max_element(begin, end);
    double sum = 0;
    for (auto value = begin; value != end; ++value) {
      *value = rounded_to(scores.dtype(), std::exp(rounded_to(scores.dtype(), *value - largest)));
      sum += *value;
    }
    std::transform(begin, end, begin, [&](double value) { return value / sum; });
  }
  return tensor_of_reals(context, scores.dtype(), scores.dims(), values);
}

void run_flex_attention(ReferenceContext& context) {
  const FlexShape shape = shape_of(context);
  const DType dtype = softmax_type(context);
  const Tensor scores = modified(context, "score_mod", scores_of(context, shape, dtype));
  const Tensor probabilities = modified(context, "prob_mod", softmax_of(context, scores));
  const std::vector<double> p = reals_of(probabilities), v = reals_of(context.inputs[2]);
  Tensor result = make_output(context, context.inputs[0].dtype(),
                              {shape.batch, shape.query_heads, shape.queries, shape.value_size});
  const int64_t group = shape.query_heads / shape.heads;
  int64_t at = 0;
  for (IndexWalk index(result.dims()); !index.done(); index.next(), ++at) {
    const auto& i = index.index();
    const double* weights = p.data() + ((i[0] * shape.query_heads + i[1]) * shape.queries + i[2]) * shape.keys;
    const double* values = v.data() + (i[0] * shape.heads + i[1] / group) * shape.keys * shape.value_size + i[3];
    double sum = 0;
    for (int64_t key = 0; key < shape.keys; ++key) sum += weights[key] * values[key * shape.value_size];
    store_real(result, at, sum);
  }
  context.outputs[0] = std::move(result);
}

void infer_flex_attention(InferContext& context) {
  const TensorType &q = context.input(0), &v = context.input(2);
  TensorType result = ranked(q.dtype, 4);
  for (int i = 0; i < 3; ++i) {
    if (context.input(i).has_rank && context.input(i).rank() != 4) {
      context.fail("input " + std::to_string(i) + " has rank " + std::to_string(context.input(i).rank()) +
                   ", expected 4");
    }
  }
  if (q.has_rank) std::copy(q.dims.begin(), q.dims.begin() + 3, result.dims.begin());
  if (v.has_rank) result.dims[3] = v.dims[3];
  context.set_output(0, std::move(result));
}

}  // namespace

std::vector<OpDef> flex_attention_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "FlexAttention",
                      .domain = "ai.onnx.preview",
                      .min_inputs = 3,
                      .max_inputs = 3,
                      .attributes = {{"prob_mod", Kind::graph},
                                     {"scale", Kind::real},
                                     {"score_mod", Kind::graph},
                                     {"softmax_precision", Kind::integer}},
                      .infer = infer_flex_attention,
                      .reference = run_flex_attention}}};
}

}  // namespace lathe::ops
