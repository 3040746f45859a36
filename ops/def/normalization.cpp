// Normalization of the last axes: LayerNormalization, RMSNormalization, and com.microsoft's variants that add first.
#include <algorithm>
#include <cmath>

#include "graph/expand.h"
#include "jit/kernels/rows/normalize.h"
#include "ops/copy/copy_elements.h"
#include "ops/int8/int8_lower.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// How the four operators differ: which inputs they have and what they do. Input numbers are -1 where there is none.
struct Variant {
  bool centers = true;
  int skip = -1, scale = 1, bias = 2, skip_bias = -1;
  int mean_output = 1, deviation_output = 2, sum_output = -1;
  float epsilon = 1e-5f;
};

Variant variant_of(const Node& node) {
  if (node.op->name == "RMSNormalization")
    return {.centers = false, .bias = -1, .mean_output = -1, .deviation_output = -1};
  if (node.op->name == "SimplifiedLayerNormalization") {
    return {.centers = false, .bias = -1, .mean_output = -1, .deviation_output = 1};
  }
  if (node.op->name == "SkipLayerNormalization") {
    return {.skip = 1, .scale = 2, .bias = 3, .skip_bias = 4, .sum_output = 3, .epsilon = 1e-12f};
  }
  if (node.op->name == "SkipSimplifiedLayerNormalization") {
    return {.centers = false, .skip = 1, .scale = 2, .bias = -1, .skip_bias = 3, .sum_output = 3, .epsilon = 1e-12f};
  }
  return {};
}

template <class Context>
size_t first_axis(const Context& context, int64_t rank) {
  return static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", -1), rank));
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  const Variant variant = variant_of(context.node);
  if (!is_float(data.dtype)) context.fail("input 0 is " + std::string(name_of(data.dtype)) + ", expected a float type");
  if (!context.has_input(variant.scale)) context.fail("input " + std::to_string(variant.scale) + " (scale) is missing");
  for (const int slot : {variant.skip, variant.skip_bias}) {
    if (slot < 0 || !context.has_input(slot) || context.input(slot).dtype == data.dtype) continue;
    context.fail("input " + std::to_string(slot) + " is " + std::string(name_of(context.input(slot).dtype)) +
                 ", the data is " + std::string(name_of(data.dtype)));
  }
  context.set_output(0, data);
  const auto stash = static_cast<DType>(context.node.attributes.get_int("stash_type", 1));
  TensorType statistics = data;
  if (bits_of(data.dtype) < 32) statistics.dtype = is_float(stash) ? stash : DType::f32;
  if (data.has_rank) {
    for (size_t i = first_axis(context, data.rank()); i < data.dims.size(); ++i) statistics.dims[i] = known_dim(1);
    for (const int slot : {variant.scale, variant.bias}) {
      if (slot < 0 || !context.has_input(slot)) continue;
      const TensorType& type = context.input(slot);
      if (type.has_rank && type.rank() > data.rank())
        context.fail("input " + std::to_string(slot) + " has a higher rank than the data");
      for (size_t i = 0; type.has_rank && i < type.dims.size(); ++i) {
        const Dim &own = type.dims[i], &wanted = data.dims[data.dims.size() - type.dims.size() + i];
        if (own.known() && own.extent != 1 && wanted.known() && own.extent != wanted.extent) {
          context.fail("input " + std::to_string(slot) + " has extent " + std::to_string(own.extent) +
                       ", the data has " + std::to_string(wanted.extent));
        }
      }
    }
  }
  if (variant.mean_output > 0) context.set_output(variant.mean_output, statistics);
  if (variant.deviation_output > 0) context.set_output(variant.deviation_output, statistics);
  if (variant.sum_output > 0) context.set_output(variant.sum_output, data);
}

// The element of a tensor that broadcasts to `dims`, for each element.
std::vector<double> broadcast_reals(const ReferenceContext& context, const Tensor& tensor, const Dims& dims) {
  const std::vector<double> values = reals_of(tensor);
  std::vector<int64_t> strides(dims.size(), 0);
  const std::vector<int64_t> own = strides_of(tensor.dims());
  if (tensor.dims().size() > dims.size()) context.fail("an input has a higher rank than the data");
  const size_t skip = dims.size() - tensor.dims().size();
  for (size_t i = skip; i < dims.size(); ++i) {
    const int64_t extent = tensor.dims()[i - skip];
    if (extent != 1 && extent != dims[i])
      context.fail("an input of " + to_string(tensor.dims()) + " does not broadcast to " + to_string(dims));
    strides[i] = extent == 1 ? 0 : own[i - skip];
  }
  std::vector<double> result;
  for (IndexWalk at(dims); !at.done(); at.next()) {
    int64_t from = 0;
    for (size_t i = 0; i < dims.size(); ++i) from += at.index()[i] * strides[i];
    result.push_back(values[static_cast<size_t>(from)]);
  }
  return result;
}

void reference(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const Variant variant = variant_of(context.node);
  const Dims& dims = data.dims();
  const auto input = [&](int slot) {
    return slot >= 0 && context.has_input(static_cast<size_t>(slot)) ? context.inputs[static_cast<size_t>(slot)]
                                                                     : Tensor();
  };
  std::vector<double> x = reals_of(data);
  for (const int slot : {variant.skip, variant.skip_bias}) {
    if (!input(slot).defined()) continue;
    const std::vector<double> added = broadcast_reals(context, input(slot), dims);
    for (size_t i = 0; i < x.size(); ++i) x[i] += added[i];
  }
  const std::vector<double> sums = x;
  const size_t first = first_axis(context, data.rank());
  Dims statistics = dims;
  int64_t columns = 1;
  for (size_t i = first; i < dims.size(); ++i) {
    columns *= dims[i];
    statistics[i] = 1;
  }
  const int64_t rows = columns == 0 ? 0 : data.size() / columns;
  const auto epsilon = static_cast<double>(context.node.attributes.get_float("epsilon", variant.epsilon));
  std::vector<double> means, deviations;
  for (int64_t row = 0; row < rows; ++row) {
    double* at = x.data() + row * columns;
    double mean = 0, square = 0;
    if (variant.centers) {
      for (int64_t i = 0; i < columns; ++i) mean += at[i];
      mean /= static_cast<double>(columns);
    }
    for (int64_t i = 0; i < columns; ++i) square += (at[i] - mean) * (at[i] - mean);
    const double deviation = 1 / std::sqrt(square / static_cast<double>(columns) + epsilon);
    for (int64_t i = 0; i < columns; ++i) at[i] = (at[i] - mean) * deviation;
    means.push_back(mean);
    deviations.push_back(deviation);
  }
  const std::vector<double> scale = broadcast_reals(context, input(variant.scale), dims);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= scale[i];
  if (input(variant.bias).defined()) {
    const std::vector<double> bias = broadcast_reals(context, input(variant.bias), dims);
    for (size_t i = 0; i < x.size(); ++i) x[i] += bias[i];
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), dims, x);
  const auto stash = static_cast<DType>(context.node.attributes.get_int("stash_type", 1));
  const DType dtype = bits_of(data.dtype()) >= 32 ? data.dtype() : is_float(stash) ? stash : DType::f32;
  const auto set = [&](int slot, DType as, const Dims& shape, const std::vector<double>& values) {
    if (slot <= 0 || static_cast<size_t>(slot) >= context.outputs.size()) return;
    context.outputs[static_cast<size_t>(slot)] = tensor_of_reals(context, as, shape, values);
  };
  if (rows == 0) {
    int64_t count = 1;
    for (const int64_t extent : statistics) count *= extent;
    means.assign(static_cast<size_t>(count), 0.0);
    deviations = means;
  }
  set(variant.mean_output, dtype, statistics, means);
  set(variant.deviation_output, dtype, statistics, deviations);
  set(variant.sum_output, data.dtype(), dims, sums);
}

// A skip that broadcasts (one row for the whole batch) is added by a loop of its own: the kernel reads it row by row.
bool expand_skip(ExpandContext& context) {
  const Variant variant = variant_of(context.node);
  const TensorType x = context.input_type(0), skip = context.input_type(variant.skip);
  const bool is_same = !x.has_rank || !skip.has_rank || x.dims == skip.dims || skip.rank() > x.rank();
  const bool may_be_same = x.rank() == skip.rank() && !skip.is_static();
  if (is_same || may_be_same || context.has_output(1) || context.has_output(2)) return false;
  ValueId sum = context.add("Add", {context.input(0), context.input(variant.skip)});
  if (context.has_input(variant.skip_bias)) sum = context.add("Add", {sum, context.input(variant.skip_bias)});
  const float epsilon = context.node.attributes.get_float("epsilon", variant.epsilon);
  std::vector<ValueId> inputs{sum, context.input(variant.scale)};
  if (variant.centers) inputs.push_back(context.input(variant.bias));
  context.set_output(0, context.add(variant.centers ? "LayerNormalization" : "RMSNormalization", std::move(inputs),
                                    {{"axis", int64_t{-1}}, {"epsilon", epsilon}}));
  context.set_output(variant.sum_output, sum);
  return true;
}

struct RowBuffers {
  BufferId from, to, scale = BufferId::none, bias = BufferId::none, skip = BufferId::none, skip_bias = BufferId::none,
                     sum = BufferId::none, means = BufferId::none, deviations = BufferId::none;
};

// Numbers of a call.
struct RowNumbers {
  int64_t rows, columns;
  int64_t bytes;  // of an element of the result
  float epsilon, factor;
};

void run(const Kernel<NormalizeFn>& kernel, const RowBuffers& buffers, const RowNumbers& numbers,
         const StepArgs& args) {
  const auto [rows, columns, bytes, epsilon, factor] = numbers;
  const Range range = split_evenly(rows, args.share, args.shares);
  if (range.begin == range.end) return;
  const int64_t first = range.begin * columns;
  const auto at = [&](BufferId id, int64_t offset) {
    return id == BufferId::none ? nullptr : args.at<float>(id) + offset;
  };
  const NormalizeArgs call{.from = at(buffers.from, first),
                           .to = args.at<char>(buffers.to) + first * bytes,
                           .rows = range.end - range.begin,
                           .columns = columns,
                           .scale = at(buffers.scale, 0),
                           .bias = at(buffers.bias, 0),
                           .skip = at(buffers.skip, first),
                           .skip_bias = at(buffers.skip_bias, 0),
                           .sum = at(buffers.sum == BufferId::none ? buffers.to : buffers.sum, first),
                           .means = at(buffers.means, range.begin),
                           .deviations = at(buffers.deviations, range.begin),
                           .epsilon = epsilon,
                           .column_share = 1.0f / static_cast<float>(columns),
                           .factor = factor};
  kernel(&call);
}

bool lower(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const Variant variant = variant_of(context.node);
  if (type.dtype != DType::f32) return false;
  const Dims dims = type.extents();
  const InferContext messages(context.node, {}, {});
  int64_t columns = 1, rows = 1;
  for (size_t i = 0; i < dims.size(); ++i) (i < first_axis(messages, type.rank()) ? rows : columns) *= dims[i];
  if (rows * columns == 0) return columns != 0;
  NormalizePlan plan{
      .isa = context.target.isa, .centers = variant.centers, .joins_passes = context.target.accuracy == Accuracy::fast};
  RowBuffers buffers{context.buffer(context.input(0)), context.buffer(context.output(0))};
  Step step;
  // Takes an input of exactly `count` elements; false: it is there, with another extent.
  const auto take = [&](int slot, int64_t count, bool& flag, BufferId& id) {
    if (slot < 0 || !context.has_input(slot)) return true;
    int64_t own = 1;
    const Dims extents = context.input_type(slot).extents();
    for (const int64_t extent : extents) own *= extent;
    if (own != count || context.input_type(slot).dtype != DType::f32) return false;
    // The same count with a 1 in the middle of the normalized axes would broadcast, not match.
    if (count == columns && extents.size() > 0 && extents.back() != dims.back()) return false;
    flag = true;
    id = context.buffer(context.input(slot));
    step.reads.push_back(id);
    return true;
  };
  step.reads = {buffers.from};
  step.writes = {buffers.to};
  if (!take(variant.scale, columns, plan.has_scale, buffers.scale) ||
      !take(variant.bias, columns, plan.has_bias, buffers.bias) ||
      !take(variant.skip, rows * columns, plan.adds_skip, buffers.skip) ||
      !take(variant.skip_bias, columns, plan.adds_bias, buffers.skip_bias)) {
    return false;
  }
  const auto give = [&](int slot, BufferId& id) {
    if (slot < 0 || !context.has_output(slot)) return false;
    id = context.buffer(context.output(slot));
    step.writes.push_back(id);
    return true;
  };
  if (plan.adds_skip) give(variant.sum_output, buffers.sum);
  RowNumbers numbers{rows, columns, 4, context.node.attributes.get_float("epsilon", variant.epsilon), 1};
  if (const auto& epilogue = context.node.epilogue) {
    const auto stored = as_requantization(epilogue->expression);
    if (!stored) return false;
    plan.store = stored->store;
    plan.store.is_bounded = false;
    numbers.factor = stored->factor;
    numbers.bytes = 1;
    if (plan.adds_skip && buffers.sum == BufferId::none) {
      buffers.sum = context.scratch(checked_bytes(DType::f32, {rows, columns}));
      step.reads.push_back(buffers.sum);
      step.writes.push_back(buffers.sum);
    }
  }
  const bool has_means = give(variant.mean_output, buffers.means);
  const bool has_deviations = give(variant.deviation_output, buffers.deviations);
  plan.writes_statistics = has_means || has_deviations;
  if (plan.writes_statistics) {
    const auto bytes = static_cast<size_t>(rows) * sizeof(float);
    for (BufferId* id : {&buffers.means, &buffers.deviations}) {
      if (*id != BufferId::none) continue;
      *id = context.scratch(bytes);
      step.reads.push_back(*id);
      step.writes.push_back(*id);
    }
  }
  const Kernel<NormalizeFn> kernel = normalize_kernel(plan);
  step.kernel = to_string(plan);
  const auto elements = static_cast<double>(rows * columns);
  step.flop = 8 * elements;
  step.bytes = static_cast<double>((plan.adds_skip ? 8 : 4) + numbers.bytes) * elements;
  step.threads = step.bytes > 128e3 && rows > 1 ? context.target.threads : 1;
  step.run = [kernel, buffers, numbers](const StepArgs& args) { run(kernel, buffers, numbers, args); };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> normalization_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> attributes = {
      {"axis", Kind::integer}, {"epsilon", Kind::real}, {"stash_type", Kind::integer}};
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) {
    schema.attributes = attributes;
    schema.infer = infer;
    schema.reference = reference;
    defs.push_back({.schema = std::move(schema), .lower = lower});
  };
  // ONNX Runtime writes this one and SimplifiedLayerNormalization into models of any opset.
  add({.name = "LayerNormalization", .since = 1, .min_inputs = 2, .max_inputs = 3, .max_outputs = 3});
  add({.name = "RMSNormalization", .since = 23, .min_inputs = 2, .max_inputs = 2});
  add({.name = "SimplifiedLayerNormalization", .since = 1, .min_inputs = 2, .max_inputs = 2, .max_outputs = 2});
  add({.name = "SkipLayerNormalization",
       .domain = "com.microsoft",
       .min_inputs = 3,
       .max_inputs = 5,
       .max_outputs = 4,
       .expand = expand_skip});
  add({.name = "SkipSimplifiedLayerNormalization",
       .domain = "com.microsoft",
       .min_inputs = 3,
       .max_inputs = 4,
       .max_outputs = 4,
       .expand = expand_skip});
  return defs;
}

}  // namespace lathe::ops
