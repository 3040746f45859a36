// DFT and STFT.
#include <new>
#include <stdexcept>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/fourier/fourier_lines.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

constexpr int64_t kMostPoints = int64_t{1} << 40;
constexpr int kAxisIsInputSince = 20;  // of DFT

template <class Context>
int64_t points_of(const Context& context, const Tensor& tensor, const std::string& what) {
  const int64_t points = integer_scalar(context, tensor, what);
  if (points < 1 || points > kMostPoints) context.fail(what + " is " + std::to_string(points));
  return points;
}

template <class T>
std::shared_ptr<const FourierTransform<T>> transform_of(const Node& node, int64_t length) {
  try {
    return std::make_shared<const FourierTransform<T>>(length);
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  throw Error(ErrorCode::limit, "node '" + node.name + "' (" + std::string(node.op->name) +
                                    "): out of memory: a transform of " + std::to_string(length) + " points");
}

// What both operators are: lines, and how many points each has.
struct Spectra {
  FourierLines<float> lines;  // without a transform
  int64_t length = 0;

  template <class T>
  FourierLines<T> bound(const Node& node) const {
    return {transform_of<T>(node, length),
            lines.direction,
            lines.outer,
            lines.inner,
            lines.in_outer,
            lines.in_inner,
            lines.in_stride,
            lines.in_count,
            lines.in_parts,
            lines.out_outer,
            lines.out_inner,
            lines.out_stride,
            lines.out_count,
            lines.out_parts};
  }
};

// Fills `out`: float32 in float32, all other types in float64.
Tensor transformed(const ReferenceContext& context, const Spectra& spectra, const Tensor& in, const Tensor& window,
                   Tensor out) {
  if (in.dtype() == DType::f32 && (!window.defined() || window.dtype() == DType::f32)) {
    const FourierLines<float> lines = spectra.bound<float>(context.node);
    std::vector<std::complex<float>> memory(static_cast<size_t>(lines.memory_elements()));
    lines.run(in.data<float>(), window.defined() ? window.data<float>() : nullptr, out.mutable_data<float>(),
              {0, lines.units()}, memory.data());
    return out;
  }
  const FourierLines<double> lines = spectra.bound<double>(context.node);
  const std::vector<double> samples = reals_of(in);
  const std::vector<double> factors = window.defined() ? reals_of(window) : std::vector<double>();
  std::vector<double> results(static_cast<size_t>(out.size()));
  std::vector<std::complex<double>> memory(static_cast<size_t>(lines.memory_elements()));
  lines.run(samples.data(), window.defined() ? factors.data() : nullptr, results.data(), {0, lines.units()},
            memory.data());
  return tensor_of_reals(context, out.dtype(), out.dims(), results);
}

// One step; `window` may be none.
bool add_transform_step(LowerContext& context, const Spectra& spectra, ValueId window) {
  const TensorType &in = context.input_type(0), &out = context.output_type(0);
  if (in.dtype != DType::f32 || out.dtype != DType::f32) return false;
  if (window != ValueId::none && context.type(window).dtype != DType::f32) return false;
  FourierLines<float> lines = spectra.bound<float>(context.node);
  const size_t bytes = checked_multiply(static_cast<size_t>(lines.memory_elements()), sizeof(std::complex<float>));
  Step step;
  step.kernel = "fourier " + std::to_string(lines.transform->length());
  step.flop = lines.flop();
  step.threads = worthwhile_threads(step.flop, context.target.threads);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const BufferId scratch = context.thread_scratch(bytes);
  const BufferId factors = window == ValueId::none ? BufferId::none : context.buffer(window);
  step.reads = {from, scratch};
  if (factors != BufferId::none) step.reads.push_back(factors);
  step.writes = {to, scratch};
  step.bytes = static_cast<double>(in.storage_bytes() + out.storage_bytes());
  step.run = [=, lines = std::move(lines), threads = step.threads](const StepArgs& args) {
    const float* window_data = factors == BufferId::none ? nullptr : args.at<const float>(factors);
    lines.run(args.at<const float>(from), window_data, args.at<float>(to),
              split_evenly(lines.units(), args.share, threads), args.own<std::complex<float>>(scratch));
  };
  context.add(std::move(step));
  return true;
}

// ---- DFT

FourierDirection direction_of(const Node& node) {
  if (node.attributes.get_int("inverse", 0) == 0) return FourierDirection::forward;
  return node.attributes.get_int("onesided", 0) != 0 ? FourierDirection::inverse_of_half : FourierDirection::inverse;
}

bool is_onesided(const Node& node, int64_t fallback) { return node.attributes.get_int("onesided", fallback) != 0; }

// The axis from its attribute or input; the last axis holds the parts of a complex number.
template <class Context>
int64_t dft_axis(const Context& context, const Tensor& given, int64_t rank) {
  int64_t axis = context.node.op->since >= kAxisIsInputSince ? -2 : context.node.attributes.get_int("axis", 1);
  if (given.defined()) axis = integer_scalar(context, given, "input 2 (axis)");
  axis = axis_within(context, axis, rank);
  if (axis == rank - 1) context.fail("axis " + std::to_string(axis) + " is that of the complex parts");
  return axis;
}

int64_t default_length(FourierDirection direction, int64_t extent) {
  return direction == FourierDirection::inverse_of_half ? 2 * (extent - 1) : extent;
}

// Points along the axis of the result of a transform of `length` points.
int64_t result_points(const Node& node, int64_t length) {
  return direction_of(node) == FourierDirection::forward && is_onesided(node, 0) ? length / 2 + 1 : length;
}

void infer_dft(InferContext& context) {
  TensorType result = context.input(0);
  result.layout = {};
  if (!result.has_rank) return context.set_output(0, std::move(result));
  const FourierDirection direction = direction_of(context.node);
  if (result.rank() < 2) context.fail("input 0 has rank " + std::to_string(result.rank()) + ", expected at least 2");
  const Dim parts = result.dims.back();
  if (parts.known() && parts.extent != 1 && parts.extent != 2) {
    context.fail("the last axis of input 0 has " + std::to_string(parts.extent) + " parts, expected 1 or 2");
  }
  result.dims.back() = known_dim(direction == FourierDirection::inverse_of_half ? 1 : 2);
  if (context.has_input(2) && !context.constant(2).defined()) {
    std::fill(result.dims.begin(), result.dims.end() - 1, Dim());
    return context.set_output(0, std::move(result));
  }
  Dim& points = result.dims[static_cast<size_t>(dft_axis(context, context.constant(2), result.rank()))];
  if (const Tensor length = context.constant(1); length.defined()) {
    points = known_dim(result_points(context.node, points_of(context, length, "input 1 (dft_length)")));
  } else if (context.has_input(1)) {
    points = Dim();
  } else if (points.known()) {
    points = known_dim(result_points(context.node, default_length(direction, points.extent)));
  } else if (direction == FourierDirection::inverse_of_half || is_onesided(context.node, 0)) {
    points = Dim();
  }
  context.set_output(0, std::move(result));
}

// `length`: points of the transform.
Spectra dft_lines(const Node& node, const Dims& in, int64_t axis, int64_t length) {
  FourierLines<float> lines;
  lines.direction = direction_of(node);
  const AxisSplit split = split_at(in, axis);
  lines.outer = split.outer;
  lines.in_parts = in.back();
  lines.inner = split.inner / std::max<int64_t>(1, lines.in_parts);
  lines.in_count = split.extent;
  lines.in_stride = split.inner;
  lines.in_inner = lines.in_parts;
  lines.in_outer = split.extent * split.inner;
  lines.out_parts = lines.direction == FourierDirection::inverse_of_half ? 1 : 2;
  lines.out_count = result_points(node, length);
  lines.out_stride = lines.inner * lines.out_parts;
  lines.out_inner = lines.out_parts;
  lines.out_outer = lines.out_count * lines.out_stride;
  return {lines, length};
}

void run_dft(ReferenceContext& context) {
  const Tensor& in = context.inputs[0];
  if (in.rank() < 2 || (in.dims().back() != 1 && in.dims().back() != 2)) {
    context.fail("input 0 is " + to_string(in.dims()) + ", expected a last axis of 1 or 2 parts");
  }
  const int64_t axis = dft_axis(context, context.has_input(2) ? context.inputs[2] : Tensor(), in.rank());
  const int64_t extent = in.dims()[static_cast<size_t>(axis)];
  const int64_t length = context.has_input(1) ? points_of(context, context.inputs[1], "input 1 (dft_length)")
                                              : default_length(direction_of(context.node), extent);
  Dims dims = in.dims();
  dims[static_cast<size_t>(axis)] = length < 1 ? 0 : result_points(context.node, length);
  dims.back() = direction_of(context.node) == FourierDirection::inverse_of_half ? 1 : 2;
  Tensor out = make_output(context, in.dtype(), dims);
  if (out.size() > 0) {
    out = transformed(context, dft_lines(context.node, in.dims(), axis, length), in, {}, std::move(out));
  }
  context.outputs[0] = std::move(out);
}

bool lower_dft(LowerContext& context) {
  const Dims in = context.input_type(0).extents();
  if ((context.has_input(1) && !context.constant(1).defined()) ||
      (context.has_input(2) && !context.constant(2).defined())) {
    return false;
  }
  const InferContext names(context.node, {}, {});  // for messages
  const int64_t axis = dft_axis(names, context.constant(2), static_cast<int64_t>(in.size()));
  const int64_t length = context.has_input(1)
                             ? points_of(names, context.constant(1), "input 1 (dft_length)")
                             : default_length(direction_of(context.node), in[static_cast<size_t>(axis)]);
  if (checked_elements(context.output_type(0).extents()) == 0 || length < 1) return true;
  return add_transform_step(context, dft_lines(context.node, in, axis, length), ValueId::none);
}

// ---- STFT

struct Frames {
  int64_t step = 1, length = 0, count = 0;
};

// `signal_length` < 0: unknown, as are counts and lengths that follow from it.
template <class Context>
Frames frames_of(const Context& context, const Tensor& step, const Tensor& length, int64_t window_length,
                 int64_t signal_length) {
  Frames frames;
  frames.step = points_of(context, step, "input 1 (frame_step)");
  frames.length = window_length >= 0 ? window_length : signal_length;
  if (length.defined()) {
    frames.length = points_of(context, length, "input 3 (frame_length)");
    if (window_length >= 0 && window_length != frames.length) {
      context.fail("the window has " + std::to_string(window_length) + " points, a frame " +
                   std::to_string(frames.length));
    }
  }
  const bool is_known = signal_length >= 0 && frames.length >= 0;
  if (is_known && (frames.length < 1 || frames.length > signal_length)) {
    context.fail("a frame of " + std::to_string(frames.length) + " points does not fit the signal of " +
                 std::to_string(signal_length));
  }
  frames.count = is_known ? (signal_length - frames.length) / frames.step + 1 : -1;
  return frames;
}

int64_t bins_of(const Node& node, int64_t length) { return is_onesided(node, 1) ? length / 2 + 1 : length; }

void infer_stft(InferContext& context) {
  const TensorType& signal = context.input(0);
  TensorType result = ranked(signal.dtype, 4);
  result.dims[3] = known_dim(2);
  if (signal.has_rank) {
    if (signal.rank() != 2 && signal.rank() != 3) {
      context.fail("input 0 has rank " + std::to_string(signal.rank()) + ", expected 3");
    }
    result.dims[0] = signal.dims[0];
  }
  const bool is_open = !context.constant(1).defined() || (context.has_input(3) && !context.constant(3).defined()) ||
                       (context.has_input(2) && !context.input(2).has_rank);
  if (!is_open && signal.has_rank) {
    int64_t window = -1;
    if (context.has_input(2)) {
      if (context.input(2).rank() != 1) context.fail("input 2 (window) is no vector");
      window = context.input(2).dims[0].extent;
      if (window < 0) return context.set_output(0, std::move(result));
    }
    const Frames frames = frames_of(context, context.constant(1), context.constant(3), window, signal.dims[1].extent);
    if (frames.count >= 0) result.dims[1] = known_dim(frames.count);
    if (frames.length >= 0) result.dims[2] = known_dim(bins_of(context.node, frames.length));
  }
  context.set_output(0, std::move(result));
}

Spectra stft_lines(const Node& node, const Dims& signal, const Frames& frames) {
  FourierLines<float> lines;
  lines.in_parts = signal.size() == 3 ? signal[2] : 1;
  lines.outer = signal[0];
  lines.inner = frames.count;
  lines.in_count = frames.length;
  lines.in_stride = lines.in_parts;
  lines.in_inner = frames.step * lines.in_parts;
  lines.in_outer = signal[1] * lines.in_parts;
  lines.out_count = bins_of(node, frames.length);
  lines.out_stride = 2;
  lines.out_inner = lines.out_count * 2;
  lines.out_outer = frames.count * lines.out_inner;
  return {lines, frames.length};
}

void run_stft(ReferenceContext& context) {
  const Tensor& signal = context.inputs[0];
  const Dims& dims = signal.dims();
  if (dims.size() < 2 || dims.size() > 3 || (dims.size() == 3 && dims[2] != 1 && dims[2] != 2)) {
    context.fail("input 0 is " + to_string(dims) + ", expected a batch of signals of 1 or 2 parts");
  }
  const Tensor window = context.has_input(2) ? context.inputs[2] : Tensor();
  if (window.defined() && window.rank() != 1) context.fail("input 2 (window) is no vector");
  const Frames frames = frames_of(context, context.inputs[1], context.has_input(3) ? context.inputs[3] : Tensor(),
                                  window.defined() ? window.size() : -1, dims[1]);
  const int64_t bins = bins_of(context.node, frames.length);
  Tensor out = make_output(context, signal.dtype(), {dims[0], frames.count, bins, 2});
  if (out.size() > 0) {
    out = transformed(context, stft_lines(context.node, dims, frames), signal, window, std::move(out));
  }
  context.outputs[0] = std::move(out);
}

bool lower_stft(LowerContext& context) {
  const Dims signal = context.input_type(0).extents();
  if (!context.constant(1).defined() || (context.has_input(3) && !context.constant(3).defined())) return false;
  if (checked_elements(context.output_type(0).extents()) == 0) return true;
  const InferContext names(context.node, {}, {});  // for messages
  const int64_t window = context.has_input(2) ? context.input_type(2).extents()[0] : -1;
  const Frames frames = frames_of(names, context.constant(1), context.constant(3), window, signal[1]);
  return add_transform_step(context, stft_lines(context.node, signal, frames),
                            context.has_input(2) ? context.input(2) : ValueId::none);
}

using Kind = AttributeSpec::Kind;

OpDef dft(int since, int until, int inputs, std::vector<AttributeSpec> attributes) {
  attributes.push_back({"inverse", Kind::integer});
  attributes.push_back({"onesided", Kind::integer});
  return {.schema = {.name = "DFT",
                     .since = since,
                     .until = until,
                     .max_inputs = inputs,
                     .attributes = std::move(attributes),
                     .infer = infer_dft,
                     .reference = run_dft},
          .lower = lower_dft};
}

}  // namespace

std::vector<OpDef> spectrum_ops() {
  return {dft(17, kAxisIsInputSince - 1, 2, {{"axis", Kind::integer}}),
          dft(kAxisIsInputSince, 1 << 20, 3, {}),
          {.schema = {.name = "STFT",
                      .since = 17,
                      .min_inputs = 2,
                      .max_inputs = 4,
                      .attributes = {{"onesided", Kind::integer}},
                      .infer = infer_stft,
                      .reference = run_stft},
           .lower = lower_stft}};
}

}  // namespace lathe::ops
