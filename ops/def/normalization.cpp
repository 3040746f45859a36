// Normalization of the last axes: LayerNormalization, RMSNormalization, and com.microsoft's variants that add first.
#include <algorithm>
#include <cmath>
#include <functional>

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

// Of mean and deviation: float64 data, too, have them in the type of the first stage.
DType statistics_type(DType data, const Node& node) {
  if (data == DType::f32) return data;
  const auto stash = static_cast<DType>(node.attributes.get_int("stash_type", 1));
  return is_float(stash) ? stash : DType::f32;
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
  TensorType statistics = data;
  statistics.dtype = statistics_type(data.dtype, context.node);
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

struct Statistics {
  std::vector<double> means, deviations;  // of each row; the latter as 1 / the root of the variance
};

Statistics normalize_rows(std::vector<double>& x, int64_t rows, int64_t columns, bool centers, double epsilon) {
  Statistics result;
  for (int64_t row = 0; row < rows; ++row) {
    double* at = x.data() + row * columns;
    double mean = 0, square = 0;
    if (centers) {
      for (int64_t i = 0; i < columns; ++i) mean += at[i];
      mean /= static_cast<double>(columns);
    }
    for (int64_t i = 0; i < columns; ++i) square += (at[i] - mean) * (at[i] - mean);
    const double deviation = 1 / std::sqrt(square / static_cast<double>(columns) + epsilon);
    for (int64_t i = 0; i < columns; ++i) at[i] = (at[i] - mean) * deviation;
    result.means.push_back(mean);
    result.deviations.push_back(deviation);
  }
  return result;
}

void reference(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const Variant variant = variant_of(context.node);
  const Dims& dims = data.dims();
  std::vector<double> x = reals_of(data);
  // op(element, what `slot` has there), if it is given.
  const auto each = [&](int slot, auto op) {
    if (slot < 0 || !context.has_input(static_cast<size_t>(slot))) return;
    const std::vector<double> other = broadcast_reals(context, context.inputs[static_cast<size_t>(slot)], dims);
    for (size_t i = 0; i < x.size(); ++i) x[i] = op(x[i], other[i]);
  };
  each(variant.skip, std::plus<double>());
  each(variant.skip_bias, std::plus<double>());
  const std::vector<double> sums = x;
  const size_t first = first_axis(context, data.rank());
  Dims of_rows = dims;
  std::fill(of_rows.begin() + static_cast<std::ptrdiff_t>(first), of_rows.end(), 1);
  int64_t columns = 1, count = 1;
  for (size_t i = first; i < dims.size(); ++i) columns *= dims[i];
  for (const int64_t extent : of_rows) count *= extent;
  const int64_t rows = columns == 0 ? 0 : count;
  const auto epsilon = static_cast<double>(context.node.attributes.get_float("epsilon", variant.epsilon));
  Statistics statistics = normalize_rows(x, rows, columns, variant.centers, epsilon);
  statistics.means.resize(static_cast<size_t>(count));
  statistics.deviations.resize(static_cast<size_t>(count));
  each(variant.scale, std::multiplies<double>());
  each(variant.bias, std::plus<double>());
  context.outputs[0] = tensor_of_reals(context, data.dtype(), dims, x);
  const DType dtype = statistics_type(data.dtype(), context.node);
  const auto set = [&](int slot, DType as, const Dims& shape, const std::vector<double>& values) {
    if (slot <= 0 || static_cast<size_t>(slot) >= context.outputs.size()) return;
    context.outputs[static_cast<size_t>(slot)] = tensor_of_reals(context, as, shape, values);
  };
  set(variant.mean_output, dtype, of_rows, statistics.means);
  set(variant.deviation_output, dtype, of_rows, statistics.deviations);
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
  int64_t rows = 1, columns = 1;
  int64_t bytes = 4;  // of an element of the result
  float epsilon = 0, factor = 1;
};

void normalize(const Kernel<NormalizeFn>& kernel, const RowBuffers& buffers, const RowNumbers& numbers,
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

class Lowering {
 public:
  explicit Lowering(LowerContext& context)
      : context_(context),
        variant_(variant_of(context.node)),
        dims_(context.input_type(0).extents()),
        buffers_{context.buffer(context.input(0)), context.buffer(context.output(0))} {
    plan_.isa = context.target.isa;
    plan_.centers = variant_.centers;
    plan_.joins_passes = context.target.accuracy == Accuracy::fast;
    const size_t first = first_axis(InferContext(context.node, {}, {}), context.input_type(0).rank());
    for (size_t i = 0; i < dims_.size(); ++i) (i < first ? numbers_.rows : numbers_.columns) *= dims_[i];
    numbers_.epsilon = context.node.attributes.get_float("epsilon", variant_.epsilon);
    step_.reads = {buffers_.from};
    step_.writes = {buffers_.to};
  }

  bool run() {
    if (context_.input_type(0).dtype != DType::f32) return false;
    if (elements() == 0) return numbers_.columns != 0;
    if (!take(variant_.scale, numbers_.columns, plan_.has_scale, buffers_.scale) ||
        !take(variant_.bias, numbers_.columns, plan_.has_bias, buffers_.bias) ||
        !take(variant_.skip, elements(), plan_.adds_skip, buffers_.skip) ||
        !take(variant_.skip_bias, numbers_.columns, plan_.adds_bias, buffers_.skip_bias)) {
      return false;
    }
    if (plan_.adds_skip) give(variant_.sum_output, buffers_.sum);
    if (!store_bytes()) return false;
    give_statistics();
    add_step();
    return true;
  }

 private:
  int64_t elements() const { return numbers_.rows * numbers_.columns; }

  // An input of exactly `count` elements; false: it is there, with another extent.
  bool take(int slot, int64_t count, bool& flag, BufferId& id) {
    if (slot < 0 || !context_.has_input(slot)) return true;
    const Dims extents = context_.input_type(slot).extents();
    int64_t own = 1;
    for (const int64_t extent : extents) own *= extent;
    if (own != count || context_.input_type(slot).dtype != DType::f32) return false;
    // The same count with a 1 in the middle of the normalized axes would broadcast, not match.
    if (count == numbers_.columns && !extents.empty() && extents.back() != dims_.back()) return false;
    flag = true;
    id = context_.buffer(context_.input(slot));
    step_.reads.push_back(id);
    return true;
  }

  void give(int slot, BufferId& id) {
    if (slot < 0 || !context_.has_output(slot)) return;
    id = context_.buffer(context_.output(slot));
    step_.writes.push_back(id);
  }

  // What the kernel writes for itself alone.
  void give_scratch(BufferId& id, const Dims& dims) {
    if (id != BufferId::none) return;
    id = context_.scratch(checked_bytes(DType::f32, dims));
    step_.reads.push_back(id);
    step_.writes.push_back(id);
  }

  // False: the epilogue is no rounding to bytes.
  bool store_bytes() {
    const auto& epilogue = context_.node.epilogue;
    if (!epilogue) return true;
    const auto stored = as_requantization(epilogue->expression);
    if (!stored) return false;
    plan_.store = stored->store;
    plan_.store.is_bounded = false;
    numbers_.factor = stored->factor;
    numbers_.bytes = 1;
    if (plan_.adds_skip) give_scratch(buffers_.sum, {numbers_.rows, numbers_.columns});
    return true;
  }

  void give_statistics() {
    give(variant_.mean_output, buffers_.means);
    give(variant_.deviation_output, buffers_.deviations);
    plan_.writes_statistics = buffers_.means != BufferId::none || buffers_.deviations != BufferId::none;
    if (!plan_.writes_statistics) return;
    give_scratch(buffers_.means, {numbers_.rows});
    give_scratch(buffers_.deviations, {numbers_.rows});
  }

  void add_step() {
    step_.kernel = to_string(plan_);
    const auto count = static_cast<double>(elements());
    step_.flop = 8 * count;
    step_.bytes = static_cast<double>((plan_.adds_skip ? 8 : 4) + numbers_.bytes) * count;
    step_.threads = step_.bytes > 128e3 && numbers_.rows > 1 ? context_.target.threads : 1;
    step_.run = [kernel = normalize_kernel(plan_), buffers = buffers_, numbers = numbers_](const StepArgs& args) {
      normalize(kernel, buffers, numbers, args);
    };
    context_.add(std::move(step_));
  }

  LowerContext& context_;
  const Variant variant_;
  const Dims dims_;
  NormalizePlan plan_;
  RowBuffers buffers_;
  RowNumbers numbers_;
  Step step_;
};

bool lower(LowerContext& context) { return Lowering(context).run(); }

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
