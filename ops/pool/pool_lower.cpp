#include "ops/pool/pool_lower.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "jit/kernels/rows/reduce.h"
#include "ops/conv/conv_axes.h"
#include "ops/pool/pool_windows.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Elements that each output of one axis has, with or without padding.
std::vector<int> counts_of(const Window& window, size_t axis, int64_t in, int64_t out, bool with_padding) {
  std::vector<int> counts;
  const int64_t least = with_padding ? -window.pads_begin[axis] : 0;
  const int64_t end = with_padding ? in + window.pads_end[axis] : in;
  for (int64_t i = 0; i < out; ++i) {
    int count = 0;
    for (int64_t k = 0; k < window.kernel[axis]; ++k) {
      const int64_t position = i * window.strides[axis] + k * window.dilations[axis] - window.pads_begin[axis];
      if (position >= least && position < end) ++count;
    }
    counts.push_back(count);
  }
  return counts;
}

// Planes are pooled without a window sliding.
bool covers_plane(const Window& window, const Dims& in) {
  for (size_t i = 0; i < window.axes(); ++i) {
    if (window.kernel[i] != in[i + 2] || window.dilations[i] != 1 || window.pads_begin[i] + window.pads_end[i] != 0) {
      return false;
    }
  }
  return true;
}

Step pool_step(const LowerContext& context, std::string kernel) {
  Step step;
  step.kernel = std::move(kernel);
  step.reads = {context.buffer(context.input(0))};
  step.writes = {context.buffer(context.output(0))};
  step.bytes = static_cast<double>(context.input_type(0).storage_bytes() + context.output_type(0).storage_bytes());
  constexpr double kBytesPerThread = 64 << 10;  // below, waking a thread takes longer
  step.threads = step.bytes < kBytesPerThread ? 1 : context.target.threads;
  return step;
}

void add_global_step(const LowerContext& context, PoolKind kind, int64_t planes, int64_t pixels, int lanes) {
  Step step = pool_step(context, "global pool");
  step.flop = static_cast<double>(planes * pixels * lanes);
  const Kernel<GlobalPool> kernel = make_global_pool(context.target.isa, kind);
  const float scale = 1.0f / static_cast<float>(pixels);
  step.run = [=, from = step.reads[0], to = step.writes[0]](const StepArgs& args) {
    const Range range = split_evenly(static_cast<long>(planes), args.share, args.shares);
    for (long i = range.begin; i < range.end; ++i) {
      kernel(args.at<const float>(from) + i * pixels * lanes, args.at<float>(to) + i * lanes, pixels, scale);
    }
  };
  context.add(std::move(step));
}

// Windows over two axes of `planes` of blocked channels.
struct PoolPart {
  PoolShape shape;
  int64_t planes;
};

// A window over volumes is one over the pixels of each frame, then one over the frames of each pixel: a maximum of
// maxima, and a mean of means, for what a window loses at a border it loses along each axis apart.
std::vector<PoolPart> parts_of(const LowerContext& context, const Window& window, PoolKind kind, int64_t planes) {
  const Dims in = context.input_type(0).extents(), out = context.output_type(0).extents();
  const bool with_padding = context.node.attributes.get_int("count_include_pad", 0) != 0;
  const auto counts = [&](size_t axis) { return counts_of(window, axis, in[axis + 2], out[axis + 2], with_padding); };
  PoolPart part;
  part.shape.dtype = context.input_type(0).dtype;
  part.shape.windows = pool_windows(context);
  part.planes = planes * (window.axes() == 3 ? in[2] : 1);
  if (kind == PoolKind::average) {
    const size_t x = window.axes() - 1;
    part.shape.x_counts = counts(x);
    part.shape.y_counts = x > 0 ? counts(x - 1) : std::vector<int>{1};
  }
  const ConvAxis z = window.axes() == 3 ? pool_axis(window, 0, in, out) : ConvAxis();
  if (is_idle(z)) return {part};
  PoolPart frames;
  frames.shape.dtype = part.shape.dtype;
  frames.shape.windows.lanes = part.shape.windows.lanes;
  frames.shape.windows.y = z;
  ConvAxis& pixels = frames.shape.windows.x;
  pixels.in = pixels.out = pixels.out_extent = out[3] * out[4];
  frames.planes = planes;
  if (kind == PoolKind::average) {
    frames.shape.x_counts.assign(static_cast<size_t>(pixels.out), 1);
    frames.shape.y_counts = counts(0);
  }
  if (is_idle(part.shape.windows.y) && is_idle(part.shape.windows.x)) return {frames};
  return {part, frames};
}

void add_window_step(const LowerContext& context, PoolKind kind, const PoolPart& part, BufferId from, BufferId to,
                     const PoolKernels& kernels) {
  const ConvShape& windows = part.shape.windows;
  Step step = pool_step(context, kind == PoolKind::max ? "max pool" : "average pool");
  step.reads = {from};
  step.writes = {to};
  const int64_t pixel_bytes = windows.lanes * bits_of(part.shape.dtype) / 8;
  const int64_t in_plane = windows.y.in * windows.x.in * pixel_bytes;
  const int64_t out_pixels = windows.y.out * windows.x.out, out_plane = out_pixels * pixel_bytes;
  step.flop = static_cast<double>(part.planes * out_pixels * windows.lanes) * windows.taps();
  const TensorType& in_type = context.input_type(0);
  const bool is_one_picture = in_type.extents()[0] == 1 && in_type.rank() <= 4;
  constexpr long kRowsOfShare = 4;  // fewer would differ much in number
  step.run = [=, planes = part.planes](const StepArgs& args) {
    const auto strips = static_cast<long>(kernels.strips().size());
    // Of a picture's many rows the same in all planes: those that this thread wrote before and will read again.
    const bool by_rows = is_one_picture && strips >= kRowsOfShare * args.shares;
    const Range rows = by_rows ? split_evenly(strips, args.share, args.shares) : Range{0, strips};
    const long each = rows.end - rows.begin, count = static_cast<long>(planes) * each;
    const Range range = by_rows ? Range{0, count} : split_evenly(count, args.share, args.shares);
    const auto* source = args.at<const char>(from);
    auto* target = args.at<char>(to);
    for (long i = range.begin; i < range.end; ++i) {
      const PoolStrip& strip = kernels.strips()[static_cast<size_t>(rows.begin + i % each)];
      const int64_t plane = i / each;
      kernels.entry(strip.entry)(source + plane * in_plane + strip.source, target + plane * out_plane + strip.target);
    }
  };
  context.add(std::move(step));
}

// False: a kernel cannot be emitted.
bool add_window_steps(const LowerContext& context, PoolKind kind, const std::vector<PoolPart>& parts) {
  std::vector<PoolKernels> kernels;
  try {
    for (const PoolPart& part : parts) kernels.push_back(PoolKernels::make(context.target.isa, kind, part.shape));
  } catch (const JitError&) {
    return false;
  }
  BufferId from = context.buffer(context.input(0));
  for (size_t i = 0; i < parts.size(); ++i) {
    const ConvShape& windows = parts[i].shape.windows;
    const bool is_last = i + 1 == parts.size();
    const BufferId to = is_last ? context.buffer(context.output(0))
                                : context.scratch(checked_bytes(parts[i].shape.dtype, {parts[i].planes, windows.y.out,
                                                                                       windows.x.out, windows.lanes}));
    add_window_step(context, kind, parts[i], from, to, kernels[i]);
    from = to;
  }
  return true;
}

// Whole planes of a plain picture are dense rows.
bool lower_plain_global(LowerContext& context, PoolKind kind) {
  const TensorType &in_type = context.input_type(0), &out_type = context.output_type(0);
  const Dims in = in_type.extents();
  const bool is_plain = in_type.layout == Layout{} && out_type.layout == Layout{} && !context.has_output(1);
  if (!is_plain || in_type.dtype != DType::f32 || in_type.storage_bytes() == 0 || out_type.storage_bytes() == 0)
    return false;
  if (!covers_plane(read_pool(context.node, in), in)) return false;
  const int64_t planes = in[0] * in[1];
  const int64_t pixels = std::accumulate(in.begin() + 2, in.end(), int64_t{1}, std::multiplies<>());
  const bool is_mean = kind == PoolKind::average;
  const ReducePlan plan{context.target.isa, is_mean ? ReduceOp::sum : ReduceOp::maximum,
                        is_mean ? ReduceFinish::scale : ReduceFinish::none, false};
  Step step = pool_step(context, "global pool, " + to_string(plan));
  step.flop = static_cast<double>(planes * pixels);
  step.run = [=, kernel = reduce_kernel(plan), from = step.reads[0], to = step.writes[0]](const StepArgs& args) {
    const Range own = split_evenly(static_cast<long>(planes), args.share, args.shares);
    if (own.begin == own.end) return;
    const ReduceArgs call{args.at<const float>(from) + own.begin * pixels,
                          args.at<float>(to) + own.begin,
                          own.end - own.begin,
                          pixels,
                          0,
                          1.0f / static_cast<float>(pixels)};
    kernel(&call);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

bool lower_pool(LowerContext& context, PoolKind kind) {
  if (lower_plain_global(context, kind)) return true;
  const TensorType &in_type = context.input_type(0), &out_type = context.output_type(0);
  const int lanes = vector_lanes(context.target.isa);
  const bool has_bytes = kind == PoolKind::max && is_byte(in_type.dtype);
  if ((in_type.dtype != DType::f32 && !has_bytes) || in_type.layout.channel_block != lanes ||
      out_type.layout != in_type.layout || context.has_output(1) || in_type.rank() > 5 ||
      out_type.storage_bytes() == 0 || in_type.storage_bytes() == 0) {
    return false;
  }
  const Dims in = in_type.extents();
  const Window window = read_pool(context.node, in);
  const int64_t planes = in[0] * divide_up(in[1], lanes);
  if (covers_plane(window, in) && !has_bytes) {
    int64_t pixels = 1;
    for (const int64_t extent : window.kernel) pixels *= extent;
    add_global_step(context, kind, planes, pixels, lanes);
    return true;
  }
  return add_window_steps(context, kind, parts_of(context, window, kind, planes));
}

}  // namespace lathe
