#include "ops/conv/window_fold.h"

#include <immintrin.h>

#include <algorithm>
#include <array>

#include "jit/kernels/copy/transpose.h"
#include "jit/kernels/pointwise/pointwise.h"
#include "ops/conv/conv_lower.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kVector = 16;      // elements that a loop takes at a time
constexpr int64_t kMostTaps = 16;    // of an axis, that meet in one output
constexpr int64_t kMostStride = 16;  // along a row

// Output o is place (o + pad) % stride of a window, and of those `stride` places further on in the windows before it.
struct FoldAxis {
  int64_t in, out, window, stride, pad;

  int64_t taps() const { return divide_up(window, stride); }
  int64_t step_of(int64_t o) const { return (o + pad) / stride; }
  int64_t place_of(int64_t o) const { return (o + pad) % stride; }
};

// Of a segment of a row: the planes of the pixels that reach it, and its lines, every stride-th of its elements.
struct FoldMemory {
  FoldMemory(const FoldAxis& x, int64_t outputs)
      : before(x.taps() - 1),
        line(round_up(divide_up(outputs, x.stride), kVector)),
        plane(round_up(before + x.step_of(x.stride - 1) - x.step_of(0) + line, kVector)) {}

  int64_t before, line, plane;  // elements
};

struct WindowFold {
  FoldAxis y, x;
  int64_t outputs;  // of a segment: whole strides
  FoldMemory memory;
  int64_t batch, channels, lanes, blocks;
  Kernel<TransposeFn> to_planes;
  Kernel<void(const PointwiseArgs*)> epilogue = {};  // null: none
  BufferId products = BufferId::none, target = BufferId::none, own = BufferId::none;
  std::vector<BufferId> operands = {};  // of the epilogue: scalars
  std::vector<float> bias = {};         // by channel

  int64_t planes() const { return blocks * lanes; }
  int64_t row_elements() const { return planes() * memory.plane; }
  int64_t segments() const { return divide_up(x.out, outputs); }
  int64_t own_elements() const { return y.taps() * row_elements() + x.stride * memory.line; }
  double bytes() const {
    return 4.0 * static_cast<double>(batch) * static_cast<double>(y.in * x.in * planes() + channels * y.out * x.out);
  }
  void operator()(const StepArgs& args) const;

 private:
  // A row of pixels that reaches an output row, by the window's row `tap`.
  struct Source {
    const float* planes;
    int64_t tap;
  };
  struct Sources {
    std::array<Source, kMostTaps> of;
    int64_t count = 0;
  };
  void take_row(const float* from, int64_t first_pixel, float* row) const;
  void turn_pixels(const float* from, int64_t pixels, float* planes) const;
  void sum_line(const Sources& sources, int64_t channel, int64_t phase, float* line) const;
  void join_lines(const float* lines, int64_t count, float* out) const;
  void finish(const StepArgs& args, int64_t count, float* out) const;
};

// From `first_pixel` on, of all blocks, which are a picture apart; zeros where there are no pixels.
void WindowFold::take_row(const float* from, int64_t first_pixel, float* row) const {
  const int64_t begin = std::clamp<int64_t>(first_pixel, 0, x.in);
  const int64_t end = std::clamp<int64_t>(first_pixel + memory.plane, begin, x.in);
  const int64_t left = std::clamp<int64_t>(begin - first_pixel, 0, memory.plane), right = left + end - begin;
  for (int64_t block = 0; block < blocks; ++block, row += lanes * memory.plane) {
    turn_pixels(from + (block * y.in * x.in + begin) * lanes, end - begin, row + left);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      float* plane = row + lane * memory.plane;
      std::fill(plane, plane + left, 0.0F);
      std::fill(plane + right, plane + memory.plane, 0.0F);
    }
  }
}

void WindowFold::turn_pixels(const float* from, int64_t pixels, float* planes) const {
  if (pixels >= lanes) return to_planes(from, planes, lanes * 4, memory.plane * 4, pixels, lanes);
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t lane = 0; lane < lanes; ++lane) planes[lane * memory.plane + pixel] = from[pixel * lanes + lane];
  }
}

// Outputs phase, phase + stride, ... of a segment.
[[gnu::target("avx2")]] void WindowFold::sum_line(const Sources& sources, int64_t channel, int64_t phase,
                                                  float* line) const {
  std::array<const float*, kMostTaps * kMostTaps> terms;
  size_t count = 0;
  for (int64_t i = 0; i < sources.count; ++i) {
    const Source& source = sources.of[static_cast<size_t>(i)];
    for (int64_t place = x.place_of(phase), at = memory.before + x.step_of(phase) - x.step_of(0); place < x.window;
         place += x.stride, --at) {
      terms[count++] = source.planes + ((channel * y.window + source.tap) * x.window + place) * memory.plane + at;
    }
  }
  const __m256 begin = _mm256_set1_ps(bias[static_cast<size_t>(channel)]);
  for (int64_t i = 0; i < memory.line; i += kVector) {
    __m256 low = begin, high = begin;
    for (size_t k = 0; k < count; ++k) {
      low = _mm256_add_ps(low, _mm256_loadu_ps(terms[k] + i));
      high = _mm256_add_ps(high, _mm256_loadu_ps(terms[k] + i + 8));
    }
    _mm256_storeu_ps(line + i, low);
    _mm256_storeu_ps(line + i + 8, high);
  }
}

[[gnu::target("avx2")]] void WindowFold::join_lines(const float* lines, int64_t count, float* out) const {
  int64_t done = 0;
  if (x.stride == 2) {
    for (; done + 16 <= count; done += 16) {
      const __m256 even = _mm256_loadu_ps(lines + done / 2), odd = _mm256_loadu_ps(lines + memory.line + done / 2);
      const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
      _mm256_storeu_ps(out + done, _mm256_permute2f128_ps(low, high, 0x20));
      _mm256_storeu_ps(out + done + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }
  }
  for (int64_t first = 0; first < x.stride; ++first) {
    const float* line = lines + first * memory.line;
    for (int64_t i = done / x.stride, at = i * x.stride + first; at < count; ++i, at += x.stride) out[at] = line[i];
  }
}

void WindowFold::finish(const StepArgs& args, int64_t count, float* out) const {
  if (!epilogue) return;
  constexpr size_t kMost = ConvEpilogue::kMaxOperands + 1;
  std::array<const void*, kMost> inputs{out};
  constexpr std::array<int64_t, kMost> kNoRows{};
  for (size_t i = 0; i < operands.size(); ++i) inputs[i + 1] = args.at<const void>(operands[i]);
  const PointwiseArgs call{inputs.data(), kNoRows.data(), out, 0, count, 1, nullptr};
  epilogue(&call);
}

// A share is some segments of rows. Rows of pixels that several of them need are kept as planes.
void WindowFold::operator()(const StepArgs& args) const {
  auto* rows = args.own<float>(own);
  float* lines = rows + y.taps() * row_elements();
  std::array<int64_t, kMostTaps> kept;  // which row of which segment lies in each place
  kept.fill(-1);
  const Range range = split_evenly(batch * segments() * y.out, args.share, args.shares);
  for (int64_t item = range.begin; item < range.end; ++item) {
    const int64_t part = item / y.out, image = part / segments(), o = item % y.out;
    const int64_t first = part % segments() * outputs, count = std::min(outputs, x.out - first);
    Sources sources;
    for (int64_t tap = y.place_of(o), at = y.step_of(o); tap < y.window; tap += y.stride, --at) {
      if (at < 0 || at >= y.in) continue;
      const int64_t place = at % y.taps(), number = part * y.in + at;
      float* planes = rows + place * row_elements();
      if (kept[static_cast<size_t>(place)] != number) {
        take_row(args.at<const float>(products) + (image * blocks * y.in + at) * x.in * lanes,
                 x.step_of(first) - memory.before, planes);
        kept[static_cast<size_t>(place)] = number;
      }
      sources.of[static_cast<size_t>(sources.count++)] = {planes, tap};
    }
    for (int64_t channel = 0; channel < channels; ++channel) {
      float* out = args.at<float>(target) + ((image * channels + channel) * y.out + o) * x.out + first;
      for (int64_t phase = 0; phase < x.stride; ++phase) sum_line(sources, channel, phase, lines + phase * memory.line);
      join_lines(lines, count, out);
      finish(args, count, out);
    }
  }
}

// Along a row for axis 1; a line is a picture of one row.
FoldAxis axis_of(const ConvNode& conv, size_t axis) {
  const Window& window = conv.window;
  if (window.axes() == 1 && axis == 0) return {1, 1, 1, 1, 0};
  axis = std::min(axis, window.axes() - 1);
  return {conv.sizes.in[axis], conv.sizes.out[axis], window.kernel[axis], window.strides[axis],
          window.pads_begin[axis]};
}

// Results of the pointwise convolution cost as many multiply-adds as it has channels, and some for turning and adding
// them; directly, each output is alone in a block of channels.
bool pays(const ConvSizes& sizes, int64_t window, int64_t lanes) {
  constexpr int64_t kWorkOfResult = 24;
  return round_up(sizes.out_channels * window, lanes) * (sizes.in_channels + kWorkOfResult) <
         round_up(sizes.out_channels, lanes) * window * sizes.in_channels;
}

bool fits(const LowerContext& context, const ConvNode& conv) {
  const ConvSizes& sizes = conv.sizes;
  const Dims& dilations = conv.window.dilations;
  if (sizes.groups != 1 || !has_float_types(context) ||
      std::any_of(dilations.begin(), dilations.end(), [](int64_t dilation) { return dilation != 1; }))
    return false;
  const FoldAxis y = axis_of(conv, 0), x = axis_of(conv, 1);
  const int64_t lanes = vector_lanes(context.target.isa);
  return y.pad >= 0 && x.pad >= 0 && y.taps() <= kMostTaps && x.taps() <= kMostTaps && x.stride <= kMostStride &&
         pays(sizes, y.window * x.window, lanes) && can_shuffle_pixels(context, {sizes.out_channels, 1, 1});
}

// Segments as long as a core's own cache holds all that they need, but no shorter than is worth a beginning.
void choose_segments(WindowFold& fold) {
  constexpr int64_t kOwnBytes = 384 << 10, kShortest = 64;
  while (fold.own_elements() * 4 > kOwnBytes && fold.outputs > kShortest * fold.x.stride) {
    fold.outputs = round_up(divide_up(fold.outputs, int64_t{2}), fold.x.stride);
    fold.memory = FoldMemory(fold.x, fold.outputs);
  }
}

// Applied to finished rows. False: not float32, or no code.
bool bind_epilogue(const LowerContext& context, WindowFold& fold) {
  if (!context.node.epilogue) return true;
  PointwisePlan plan{.isa = context.target.isa, .expression = context.node.epilogue->expression};
  const auto is_float = [](DType dtype) { return dtype == DType::f32; };
  const std::vector<DType>& inputs = plan.expression.inputs;
  if (!is_float(plan.expression.output) || !std::all_of(inputs.begin(), inputs.end(), is_float)) return false;
  for (const ValueId id : context.epilogue_inputs()) {
    if (!is_float(context.type(id).dtype)) return false;
    fold.operands.push_back(context.buffer(id));
  }
  if (fold.operands.size() > ConvEpilogue::kMaxOperands || inputs.size() != fold.operands.size() + 1) return false;
  plan.access.assign(inputs.size(), PointwiseAccess::scalar);
  plan.access[0] = PointwiseAccess::contiguous;
  try {
    fold.epilogue = pointwise_kernel(plan);
  } catch (const JitError&) {
    return false;
  }
  return true;
}

}  // namespace

bool lower_folded(LowerContext& context, const ConvNode& conv) {
  if (!fits(context, conv)) return false;
  const ConvSizes& sizes = conv.sizes;
  const FoldAxis y = axis_of(conv, 0), x = axis_of(conv, 1);
  const int lanes = vector_lanes(context.target.isa);
  const Isa isa = has_avx512(context.target.isa) ? Isa::avx512 : Isa::avx2;
  const int64_t results = sizes.out_channels * y.window * x.window;
  const int64_t outputs = round_up(x.out, x.stride);
  WindowFold fold{y,
                  x,
                  outputs,
                  FoldMemory(x, outputs),
                  sizes.batch,
                  sizes.out_channels,
                  lanes,
                  divide_up(results, int64_t{lanes}),
                  transpose_kernel(plan_transpose(isa, lanes, lanes))};
  choose_segments(fold);
  constexpr int64_t kMostOwnBytes = 2 << 20;
  if (fold.own_elements() * 4 > kMostOwnBytes || !bind_epilogue(context, fold)) return false;
  fold.bias.assign(static_cast<size_t>(sizes.out_channels), 0.0F);
  if (context.has_input(2)) std::copy_n(context.constant(2).data<float>(), sizes.out_channels, fold.bias.begin());
  ConvProblem problem;
  problem.batch = sizes.batch;
  problem.in_channels = sizes.in_channels;
  problem.out_channels = results;
  problem.is_transposed = true;
  ConvShape shape;
  shape.y.in = shape.y.out = shape.y.out_extent = y.in;
  shape.x.in = shape.x.out = shape.x.out_extent = x.in;
  problem.phases = {shape};
  const std::optional<BufferId> products = lower_bare_conv(context, std::move(problem));
  if (!products) return false;
  fold.products = *products;
  fold.target = context.buffer(context.output(0));
  fold.own = context.thread_scratch(checked_bytes(DType::f32, {fold.own_elements()}));
  Step step{.kernel = "fold windows", .reads = {fold.products, fold.own}, .writes = {fold.target, fold.own}};
  step.reads.insert(step.reads.end(), fold.operands.begin(), fold.operands.end());
  step.bytes = fold.bytes();
  step.threads = worthwhile_readers(step.bytes, context.target.threads);
  step.run = std::move(fold);
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
