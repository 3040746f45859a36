// Normalization by channels: BatchNormalization, InstanceNormalization, GroupNormalization.
#include <algorithm>
#include <cmath>
#include <memory>

#include "jit/kernels/rows/affine_rows.h"
#include "jit/kernels/rows/normalize.h"
#include "ops/copy/copy_elements.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// [N, C, spatial...] as three extents.
struct Planes {
  int64_t batch = 1, channels = 1, spatial = 1;
};
Planes planes_of(const Dims& dims) {
  Planes planes{dims[0], dims.size() > 1 ? dims[1] : 1, 1};
  for (size_t i = 2; i < dims.size(); ++i) planes.spatial *= dims[i];
  return planes;
}

template <class Context>
double epsilon_of(const Context& context) {
  return static_cast<double>(context.node.attributes.get_float("epsilon", 1e-5f));
}

void check_float(InferContext& context) {
  const DType dtype = context.input(0).dtype;
  if (!is_float(dtype)) context.fail("input 0 is " + std::string(name_of(dtype)) + ", expected a float type");
}

// Fails unless input `slot` is one-dimensional with an element for each channel, where both are known.
void check_per_channel(InferContext& context, int slot) {
  const TensorType& data = context.input(0);
  if (!context.has_input(slot)) context.fail("input " + std::to_string(slot) + " is missing");
  const TensorType& type = context.input(slot);
  if (!data.has_rank || !type.has_rank || data.rank() < 2) return;
  const Dim& channels = data.dims[1];
  if (type.rank() != 1 || (type.dims[0].known() && channels.known() && type.dims[0].extent != channels.extent)) {
    context.fail("input " + std::to_string(slot) + " is " + to_string(type) + ", expected one element for each of " +
                 (channels.known() ? std::to_string(channels.extent) : "the") + " channels");
  }
}

// ---- BatchNormalization

bool is_spatial(const Node& node) { return node.attributes.get_int("spatial", 1) != 0; }
bool is_training(const Node& node) { return node.op->since >= 14 && node.attributes.get_int("training_mode", 0) != 0; }

void infer_batch(InferContext& context) {
  check_float(context);
  const TensorType& data = context.input(0);
  if (data.has_rank && data.rank() < 1) context.fail("input 0 is a scalar");
  for (int slot = 1; slot < 5; ++slot) {
    if (is_spatial(context.node)) check_per_channel(context, slot);
  }
  context.set_output(0, data);
  for (int i = 1; i < context.output_count(); ++i) context.set_output(i, context.input(i % 2 == 1 ? 3 : 4));
}

void reference_batch(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  if (data.rank() == 0) context.fail("input 0 is a scalar");
  Planes planes = planes_of(data.dims());
  if (!is_spatial(context.node)) planes = {planes.batch, planes.channels * planes.spatial, 1};
  std::vector<double> parameters[4];
  for (size_t i = 0; i < 4; ++i) {
    parameters[i] = reals_of(context.inputs[i + 1]);
    if (static_cast<int64_t>(parameters[i].size()) != planes.channels) {
      context.fail("input " + std::to_string(i + 1) + " has " + std::to_string(parameters[i].size()) +
                   " elements for " + std::to_string(planes.channels) + " channels");
    }
  }
  const std::vector<double>&scale = parameters[0], &shift = parameters[1], &mean = parameters[2],
        &variance = parameters[3];
  std::vector<double> x = reals_of(data), now_mean = mean, now_variance = variance;
  const auto each = [&](auto visit) {
    for (size_t i = 0; i < x.size(); ++i)
      visit(static_cast<size_t>(static_cast<int64_t>(i) / planes.spatial % planes.channels), x[i]);
  };
  if (is_training(context.node)) {
    const auto count = static_cast<double>(planes.batch * planes.spatial);
    std::fill(now_mean.begin(), now_mean.end(), 0.0);
    std::fill(now_variance.begin(), now_variance.end(), 0.0);
    each([&](size_t c, double value) { now_mean[c] += value / count; });
    each([&](size_t c, double value) { now_variance[c] += (value - now_mean[c]) * (value - now_mean[c]) / count; });
  }
  const double epsilon = epsilon_of(context);
  each([&](size_t c, double& value) {
    value = (value - now_mean[c]) / std::sqrt(now_variance[c] + epsilon) * scale[c] + shift[c];
  });
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), x);
  const auto momentum = static_cast<double>(context.node.attributes.get_float("momentum", 0.9f));
  for (size_t i = 1; i < context.outputs.size(); ++i) {
    const size_t slot = i % 2 == 1 ? 3 : 4;
    std::vector<double> running = slot == 3 ? mean : variance;
    const std::vector<double>& now = slot == 3 ? now_mean : now_variance;
    for (size_t c = 0; c < running.size(); ++c) running[c] = running[c] * momentum + now[c] * (1 - momentum);
    const Tensor& like = context.inputs[slot];
    context.outputs[i] = tensor_of_reals(context, like.dtype(), like.dims(), running);
  }
}

struct RowScalars {
  std::vector<float> centers, scales, shifts;  // one a channel
};

bool lower_batch(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  if (type.dtype != DType::f32 || type.rank() < 2 || is_training(context.node) || !is_spatial(context.node))
    return false;
  for (int i = 1; i < 5; ++i) {
    if (!context.constant(i).defined() || context.constant(i).dtype() != DType::f32) return false;
    if (context.has_output(i)) return false;
  }
  const Planes planes = planes_of(type.extents());
  if (planes.batch * planes.channels * planes.spatial == 0) return true;
  const double epsilon = epsilon_of(context);
  auto scalars = std::make_shared<RowScalars>();
  for (int64_t c = 0; c < planes.channels; ++c) {
    const double variance = static_cast<double>(context.constant(4).data<float>()[c]);
    scalars->centers.push_back(context.constant(3).data<float>()[c]);
    scalars->scales.push_back(
        static_cast<float>(static_cast<double>(context.constant(1).data<float>()[c]) / std::sqrt(variance + epsilon)));
    scalars->shifts.push_back(context.constant(2).data<float>()[c]);
  }
  const Kernel<AffineFn> kernel = affine_rows_kernel(context.target.isa);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step{.kernel = "affine rows", .reads = {from}, .writes = {to}};
  step.bytes = 8.0 * static_cast<double>(planes.batch * planes.channels * planes.spatial);
  step.flop = step.bytes / 4;
  step.threads = step.bytes > 128e3 ? context.target.threads : 1;
  step.run = [kernel, planes, scalars, from, to](const StepArgs& args) {
    const Range range = split_evenly(planes.channels, args.share, args.shares);
    if (range.begin == range.end) return;
    for (int64_t n = 0; n < planes.batch; ++n) {
      const int64_t first = (n * planes.channels + range.begin) * planes.spatial;
      const AffineArgs call{args.at<const float>(from) + first,
                            args.at<float>(to) + first,
                            range.end - range.begin,
                            planes.spatial,
                            scalars->centers.data() + range.begin,
                            scalars->scales.data() + range.begin,
                            scalars->shifts.data() + range.begin};
      kernel(&call);
    }
  };
  context.add(std::move(step));
  return true;
}

// ---- InstanceNormalization and GroupNormalization: an instance is a group of one channel

bool is_instance(const Node& node) { return node.op->name == "InstanceNormalization"; }
bool scales_by_group(const Node& node) { return !is_instance(node) && node.op->since < 21; }

template <class Context>
int64_t groups_of(const Context& context, int64_t channels) {
  if (is_instance(context.node)) return channels;
  const int64_t groups = context.node.attributes.get_int("num_groups", 0);
  if (groups <= 0 || channels % groups != 0) {
    context.fail("num_groups " + std::to_string(groups) + " does not divide " + std::to_string(channels) + " channels");
  }
  return groups;
}

void infer_group(InferContext& context) {
  check_float(context);
  const TensorType& data = context.input(0);
  if (data.has_rank && data.rank() < 2)
    context.fail("input 0 has rank " + std::to_string(data.rank()) + ", expected 2 or more");
  for (const int slot : {1, 2}) {
    if (!scales_by_group(context.node)) {
      check_per_channel(context, slot);
      continue;
    }
    const TensorType& type = context.input(slot);
    const int64_t groups = context.node.attributes.get_int("num_groups", 0);
    if (type.has_rank && (type.rank() != 1 || (type.dims[0].known() && type.dims[0].extent != groups))) {
      context.fail("input " + std::to_string(slot) + " is " + to_string(type) +
                   ", expected one element for each group");
    }
  }
  if (data.has_rank && data.dims[1].known()) groups_of(context, data.dims[1].extent);
  context.set_output(0, data);
}

void reference_group(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  if (data.rank() < 2) context.fail("input 0 has rank " + std::to_string(data.rank()));
  const Planes planes = planes_of(data.dims());
  const int64_t groups = planes.channels == 0 ? 1 : groups_of(context, planes.channels);
  const int64_t group_channels = planes.channels / groups, columns = group_channels * planes.spatial;
  const int64_t per_scale = scales_by_group(context.node) ? group_channels : 1;
  const std::vector<double> scale = reals_of(context.inputs[1]), shift = reals_of(context.inputs[2]);
  if (static_cast<int64_t>(scale.size()) * per_scale != planes.channels || scale.size() != shift.size()) {
    context.fail("scale and bias have " + std::to_string(scale.size()) + " and " + std::to_string(shift.size()) +
                 " elements");
  }
  std::vector<double> x = reals_of(data);
  const double epsilon = epsilon_of(context);
  for (int64_t row = 0; row < (columns == 0 ? 0 : planes.batch * groups); ++row) {
    double* at = x.data() + row * columns;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < columns; ++i) mean += at[i] / static_cast<double>(columns);
    for (int64_t i = 0; i < columns; ++i) variance += (at[i] - mean) * (at[i] - mean) / static_cast<double>(columns);
    for (int64_t i = 0; i < columns; ++i) {
      const auto c = static_cast<size_t>((row % groups * group_channels + i / planes.spatial) / per_scale);
      at[i] = (at[i] - mean) / std::sqrt(variance + epsilon) * scale[c] + shift[c];
    }
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), x);
}

// Statistics of a group, then its channels, while the group is in cache.
struct GroupRun {
  Kernel<NormalizeFn> statistics;
  Kernel<AffineFn> affine;
  Planes planes;
  int64_t groups = 1, per_scale = 1;
  float epsilon = 0;

  // Groups of one channel are dense rows, of which the kernels take several while they are in the nearest cache.
  void run_channels(Range rows, const float* from, float* to, const float* gain, const float* bias) const {
    constexpr int64_t kChunk = 32, kNearElements = 4096;
    const int64_t most = std::clamp<int64_t>(kNearElements / planes.spatial, 1, kChunk);
    float means[kChunk], scales[kChunk], shifts[kChunk];
    for (int64_t row = rows.begin; row < rows.end; row += most) {
      const int64_t count = std::min<int64_t>(most, rows.end - row), at = row * planes.spatial;
      const NormalizeArgs call{.from = from + at,
                               .to = nullptr,
                               .rows = count,
                               .columns = planes.spatial,
                               .means = means,
                               .deviations = scales,
                               .epsilon = epsilon,
                               .column_share = 1.0f / static_cast<float>(planes.spatial)};
      statistics(&call);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = (row + i) % groups / per_scale;
        scales[i] *= gain[c];
        shifts[i] = bias[c];
      }
      const AffineArgs affine_rows{from + at, to + at, count, planes.spatial, means, scales, shifts};
      affine(&affine_rows);
    }
  }

  void run_group(int64_t row, const float* from, float* to, const float* gain, const float* bias) const {
    constexpr int64_t kChunk = 64;  // channels whose scalars lie on the stack
    const int64_t channels = planes.channels / groups, columns = channels * planes.spatial;
    float mean = 0, deviation = 0;
    const NormalizeArgs call{.from = from + row * columns,
                             .to = nullptr,
                             .rows = 1,
                             .columns = columns,
                             .means = &mean,
                             .deviations = &deviation,
                             .epsilon = epsilon,
                             .column_share = 1.0f / static_cast<float>(columns)};
    statistics(&call);
    float centers[kChunk], scales[kChunk], shifts[kChunk];
    for (int64_t first = 0; first < channels; first += kChunk) {
      const int64_t count = std::min(kChunk, channels - first);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = (row % groups * channels + first + i) / per_scale;
        centers[i] = mean;
        scales[i] = deviation * gain[c];
        shifts[i] = bias[c];
      }
      const int64_t at = row * columns + first * planes.spatial;
      const AffineArgs rows{from + at, to + at, count, planes.spatial, centers, scales, shifts};
      affine(&rows);
    }
  }
};

bool lower_group(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  if (type.dtype != DType::f32 || context.input_type(1).dtype != DType::f32) return false;
  GroupRun group{normalize_kernel({.isa = context.target.isa,
                                   .writes_rows = false,
                                   .writes_statistics = true,
                                   .joins_passes = context.target.accuracy == Accuracy::fast}),
                 affine_rows_kernel(context.target.isa), planes_of(type.extents())};
  const int64_t count = group.planes.batch * group.planes.channels * group.planes.spatial;
  if (count == 0) return true;
  const InferContext messages(context.node, {}, {});
  group.groups = groups_of(messages, group.planes.channels);
  if (scales_by_group(context.node)) group.per_scale = group.planes.channels / group.groups;
  group.epsilon = context.node.attributes.get_float("epsilon", 1e-5f);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const BufferId gain = context.buffer(context.input(1)), bias = context.buffer(context.input(2));
  Step step{.kernel = "normalize groups", .reads = {from, gain, bias}, .writes = {to}};
  step.bytes = 8.0 * static_cast<double>(count);
  step.flop = 8.0 * static_cast<double>(count);
  step.threads = step.bytes > 128e3 ? context.target.threads : 1;
  step.run = [group, from, to, gain, bias](const StepArgs& args) {
    const Range rows = split_evenly(group.planes.batch * group.groups, args.share, args.shares);
    if (group.groups == group.planes.channels) {
      return group.run_channels(rows, args.at<const float>(from), args.at<float>(to), args.at<const float>(gain),
                                args.at<const float>(bias));
    }
    for (long row = rows.begin; row < rows.end; ++row) {
      group.run_group(row, args.at<const float>(from), args.at<float>(to), args.at<const float>(gain),
                      args.at<const float>(bias));
    }
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> channel_normalization_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema, LowerFn* lower) {
    defs.push_back({.schema = std::move(schema), .lower = lower});
  };
  for (const int since : {1, 14}) {
    add({.name = "BatchNormalization",
         .since = since,
         .until = since == 1 ? 13 : 1 << 20,
         .min_inputs = 5,
         .max_inputs = 5,
         .max_outputs = since == 1 ? 5 : 3,
         .attributes = {{"epsilon", Kind::real},
                        {"momentum", Kind::real},
                        {"spatial", Kind::integer},
                        {"is_test", Kind::integer},
                        {"consumed_inputs", Kind::integers},
                        {"training_mode", Kind::integer}},
         .infer = infer_batch,
         .reference = reference_batch},
        lower_batch);
  }
  add({.name = "InstanceNormalization",
       .min_inputs = 3,
       .max_inputs = 3,
       .attributes = {{"epsilon", Kind::real}, {"consumed_inputs", Kind::integers}},
       .infer = infer_group,
       .reference = reference_group},
      lower_group);
  for (const int since : {18, 21}) {
    add({.name = "GroupNormalization",
         .since = since,
         .until = since == 18 ? 20 : 1 << 20,
         .min_inputs = 3,
         .max_inputs = 3,
         .attributes = {{"epsilon", Kind::real}, {"num_groups", Kind::integer, true}, {"stash_type", Kind::integer}},
         .infer = infer_group,
         .reference = reference_group},
        lower_group);
  }
  return defs;
}

}  // namespace lathe::ops
