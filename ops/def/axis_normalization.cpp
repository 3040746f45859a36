// Normalization along free axes: LpNormalization, MeanVarianceNormalization; and across neighbouring channels: LRN.
#include <algorithm>
#include <cmath>

#include "ops/expansion.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// [N, C, spatial...] as three extents.
struct Planes {
  int64_t batch = 1, channels = 1, spatial = 1;
};
Planes planes_of(const Dims& dims) {
  const AxisSplit split = split_at(dims, 1);
  return {split.outer, split.extent, split.inner};
}

void infer_same(InferContext& context) {
  const DType dtype = context.input(0).dtype;
  if (!is_float(dtype)) context.fail("input 0 is " + std::string(name_of(dtype)) + ", expected a float type");
  context.set_output(0, context.input(0));
}

void infer_lp(InferContext& context) {
  infer_same(context);
  if (context.input(0).has_rank)
    axis_within(context, context.node.attributes.get_int("axis", -1), context.input(0).rank());
  const int64_t p = context.node.attributes.get_int("p", 2);
  if (p != 1 && p != 2) context.fail("p is " + std::to_string(p) + ", expected 1 or 2");
}

void reference_lp(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const AxisSplit split =
      split_at(data.dims(), axis_within(context, context.node.attributes.get_int("axis", -1), data.rank()));
  const bool is_l1 = context.node.attributes.get_int("p", 2) == 1;
  std::vector<double> x = reals_of(data);
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    for (int64_t inner = 0; inner < split.inner; ++inner) {
      double* at = x.data() + outer * split.extent * split.inner + inner;
      double norm = 0;
      for (int64_t i = 0; i < split.extent; ++i) {
        const double value = at[i * split.inner];
        norm += is_l1 ? std::abs(value) : value * value;
      }
      if (!is_l1) norm = std::sqrt(norm);
      for (int64_t i = 0; i < split.extent; ++i) at[i * split.inner] = norm == 0 ? 0 : at[i * split.inner] / norm;
    }
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), x);
}

// The norm of a line of zeros is taken as 1.
bool expand_lp(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank || type.dtype != DType::f32) return false;
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", -1), type.rank());
  const bool is_l1 = context.node.attributes.get_int("p", 2) == 1;
  const ValueId norm = context.add(is_l1 ? "ReduceL1" : "ReduceL2", {context.input(0), context.longs({axis})});
  const ValueId is_zero = context.add("Equal", {norm, add_scalar(context, type.dtype, 0)});
  const ValueId divisor = context.add("Where", {is_zero, add_scalar(context, type.dtype, 1), norm});
  context.set_output(0, context.add("Div", {context.input(0), divisor}));
  return true;
}

void reference_mean_variance(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  std::vector<bool> reduced(data.dims().size(), false);
  for (const int64_t axis : context.node.attributes.get_ints("axes", {0, 2, 3})) {
    reduced[static_cast<size_t>(axis_within(context, axis, data.rank()))] = true;
  }
  std::vector<int64_t> strides(data.dims().size(), 0);
  int64_t kept = 1;
  for (size_t i = strides.size(); i-- > 0;) {
    if (reduced[i]) continue;
    strides[i] = kept;
    kept *= data.dims()[i];
  }
  std::vector<double> x = reals_of(data), mean(static_cast<size_t>(kept), 0.0), variance = mean;
  const double count = kept == 0 ? 1 : static_cast<double>(data.size() / kept);
  const auto each = [&](auto visit) {
    size_t i = 0;
    for (IndexWalk at(data.dims()); !at.done(); at.next(), ++i) {
      int64_t place = 0;
      for (size_t d = 0; d < strides.size(); ++d) place += at.index()[d] * strides[d];
      visit(static_cast<size_t>(place), x[i]);
    }
  };
  each([&](size_t place, double value) { mean[place] += value / count; });
  each([&](size_t place, double value) { variance[place] += (value - mean[place]) * (value - mean[place]) / count; });
  each([&](size_t place, double& value) { value = (value - mean[place]) / (std::sqrt(variance[place]) + 1e-9); });
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), x);
}

bool expand_mean_variance(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  if (!type.has_rank || type.dtype != DType::f32) return false;
  const std::vector<int64_t> given = context.node.attributes.get_ints("axes", {0, 2, 3});
  if (given.empty()) return false;
  std::vector<int64_t> list;
  for (const int64_t axis : given) list.push_back(axis_within(context, axis, type.rank()));
  const Tensor axes = Tensor::from<int64_t>({static_cast<int64_t>(list.size())}, std::span<const int64_t>(list));
  const ValueId mean = context.add("ReduceMean", {context.input(0), context.constant(axes)});
  const ValueId distance = context.add("Sub", {context.input(0), mean});
  const ValueId square = context.add("Mul", {distance, distance});
  const ValueId variance = context.add("ReduceMean", {square, context.constant(axes)});
  const ValueId deviation =
      context.add("Add", {context.add("Sqrt", {variance}), add_scalar(context, type.dtype, 1e-9)});
  context.set_output(0, context.add("Div", {distance, deviation}));
  return true;
}

// Across channels: x / (bias + alpha / size * sum of squares of the `size` nearest channels) ^ beta.
struct LocalResponse {
  int64_t before = 0, after = 0;  // channels of the window
  double alpha_share = 0, beta = 0, bias = 1;
};
template <class Context>
LocalResponse response_of(const Context& context) {
  const Attributes& attributes = context.node.attributes;
  const int64_t size = attributes.get_int("size", 1);
  if (size <= 0) context.fail("size " + std::to_string(size) + " is not positive");
  return {(size - 1) / 2, size - 1 - (size - 1) / 2,
          static_cast<double>(attributes.get_float("alpha", 0.0001f)) / static_cast<double>(size),
          static_cast<double>(attributes.get_float("beta", 0.75f)),
          static_cast<double>(attributes.get_float("bias", 1.0f))};
}

void infer_response(InferContext& context) {
  infer_same(context);
  if (context.input(0).has_rank && context.input(0).rank() < 2) context.fail("input 0 has no channels");
  response_of(context);
}

template <class T>
void respond(const LocalResponse& response, const Planes& planes, const T* from, T* to, T* squares, Range range) {
  const auto beta = static_cast<T>(response.beta), alpha = static_cast<T>(response.alpha_share),
             bias = static_cast<T>(response.bias);
  for (int64_t n = 0; n < planes.batch; ++n) {
    for (int64_t c = range.begin; c < range.end; ++c) {
      const int64_t low = std::max<int64_t>(0, c - response.before),
                    high = std::min(planes.channels - 1, c + response.after);
      std::fill_n(squares, planes.spatial, T(0));
      for (int64_t k = low; k <= high; ++k) {
        const T* plane = from + (n * planes.channels + k) * planes.spatial;
        for (int64_t i = 0; i < planes.spatial; ++i) squares[i] += plane[i] * plane[i];
      }
      const int64_t first = (n * planes.channels + c) * planes.spatial;
      for (int64_t i = 0; i < planes.spatial; ++i) {
        const T base = bias + alpha * squares[i];
        // 0.75 is what models use: two square roots.
        const T power = beta == T(0.75) ? std::sqrt(base) * std::sqrt(std::sqrt(base)) : std::pow(base, beta);
        to[first + i] = from[first + i] / power;
      }
    }
  }
}

void reference_response(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  if (data.rank() < 2) context.fail("input 0 has no channels");
  const Planes planes = planes_of(data.dims());
  const std::vector<double> x = reals_of(data);
  std::vector<double> result(x.size()), squares(static_cast<size_t>(planes.spatial));
  respond(response_of(context), planes, x.data(), result.data(), squares.data(), {0, planes.channels});
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), result);
}

bool lower_response(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  if (type.dtype != DType::f32) return false;
  const Planes planes = planes_of(type.extents());
  if (planes.batch * planes.channels * planes.spatial == 0) return true;
  const LocalResponse response = response_of(InferContext(context.node, {}, {}));
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const auto plane_bytes = static_cast<size_t>(planes.spatial) * sizeof(float);
  const BufferId squares = context.thread_scratch(plane_bytes);
  Step step{.kernel = "local response", .reads = {from, squares}, .writes = {to, squares}};
  step.bytes = 8.0 * static_cast<double>(planes.batch * planes.channels * planes.spatial);
  step.threads = step.bytes > 64e3 ? context.target.threads : 1;
  step.run = [response, planes, from, to, squares](const StepArgs& args) {
    respond(response, planes, args.at<const float>(from), args.at<float>(to), args.own<float>(squares),
            split_evenly(planes.channels, args.share, args.shares));
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> axis_normalization_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "LpNormalization",
                      .attributes = {{"axis", Kind::integer}, {"p", Kind::integer}},
                      .infer = infer_lp,
                      .reference = reference_lp,
                      .expand = expand_lp}},
          {.schema = {.name = "MeanVarianceNormalization",
                      .since = 9,
                      .attributes = {{"axes", Kind::integers}},
                      .infer = infer_same,
                      .reference = reference_mean_variance,
                      .expand = expand_mean_variance}},
          {.schema = {.name = "LRN",
                      .attributes = {{"alpha", Kind::real},
                                     {"beta", Kind::real},
                                     {"bias", Kind::real},
                                     {"size", Kind::integer, true}},
                      .infer = infer_response,
                      .reference = reference_response},
           .lower = lower_response}};
}

}  // namespace lathe::ops
