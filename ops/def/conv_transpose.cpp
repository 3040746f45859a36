// ConvTranspose: each output is gathered from the inputs that reach it, phase by phase of the stride.
#include <algorithm>
#include <limits>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_node.h"
#include "ops/conv/conv_spread.h"
#include "ops/conv/window_fold.h"
#include "ops/expansion.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  const TensorType &in = context.input(0), &weights = context.input(1);
  if (!in.has_rank) return context.set_output(0, TensorType::unranked(in.dtype));
  TensorType type{in.dtype, true, std::vector<Dim>(in.dims.size()), {}};
  if (!type.dims.empty()) type.dims[0] = in.dims[0];
  if (weights.is_static() && in.dims.size() > 1 && in.dims[1].known()) {
    Dims extents;
    for (const Dim& dim : in.dims) extents.push_back(dim.extent);
    const ConvNode conv = named(context, [&] { return read_conv_transpose(context.node, extents, weights.extents()); });
    type.dims[1].extent = conv.sizes.out_channels;
    for (size_t i = 2; i < type.dims.size(); ++i) type.dims[i].extent = conv.sizes.out[i - 2];
  }
  context.set_output(0, std::move(type));
}

void reference(ReferenceContext& context) {
  const Tensor &in = context.inputs[0], &weights = context.inputs[1];
  const ConvNode conv = named(context, [&] { return read_conv_transpose(context.node, in.dims(), weights.dims()); });
  const ConvSizes& sizes = conv.sizes;
  const std::vector<double> values = reals_of(in), filters = reals_of(weights);
  Dims dims = {sizes.batch, sizes.out_channels};
  dims.insert(dims.end(), sizes.out.begin(), sizes.out.end());
  Tensor out(in.dtype(), dims);
  std::vector<double> sums(static_cast<size_t>(out.size()), 0.0);
  int64_t in_pixels = 1, out_pixels = 1, taps = 1;
  for (size_t i = 0; i < sizes.in.size(); ++i) {
    in_pixels *= sizes.in[i];
    out_pixels *= sizes.out[i];
    taps *= conv.window.kernel[i];
  }
  if (context.has_input(2)) {
    const std::vector<double> bias = reals_of(context.inputs[2]);
    if (static_cast<int64_t>(bias.size()) != sizes.out_channels)
      context.fail("the bias does not fit the output channels");
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = bias[i / static_cast<size_t>(out_pixels) % static_cast<size_t>(sizes.out_channels)];
    }
  }
  const int64_t in_each = sizes.in_channels / sizes.groups, out_each = sizes.out_channels / sizes.groups;
  for (int64_t pixel = 0; pixel < in_pixels; ++pixel) {
    for (int64_t tap = 0; tap < taps; ++tap) {
      int64_t rest_pixel = pixel, rest_tap = tap, at = 0, step = 1;
      bool is_inside = true;
      for (size_t i = sizes.in.size(); i-- > 0;) {
        const int64_t position = rest_pixel % sizes.in[i] * conv.window.strides[i] +
                                 rest_tap % conv.window.kernel[i] * conv.window.dilations[i] -
                                 conv.window.pads_begin[i];
        is_inside = is_inside && position >= 0 && position < sizes.out[i];
        at += position * step;
        step *= sizes.out[i];
        rest_pixel /= sizes.in[i];
        rest_tap /= conv.window.kernel[i];
      }
      if (!is_inside) continue;
      for (int64_t image = 0; image < sizes.batch; ++image) {
        for (int64_t i = 0; i < sizes.in_channels; ++i) {
          const double value = values[static_cast<size_t>((image * sizes.in_channels + i) * in_pixels + pixel)];
          const int64_t first = image * sizes.out_channels + i / in_each * out_each;
          for (int64_t o = 0; o < out_each; ++o) {
            sums[static_cast<size_t>((first + o) * out_pixels + at)] +=
                value * filters[static_cast<size_t>((i * out_each + o) * taps + tap)];
          }
        }
      }
    }
  }
  for (int64_t i = 0; i < out.size(); ++i) store_real(out, i, sums[static_cast<size_t>(i)]);
  context.outputs[0] = std::move(out);
}

bool accepts_blocked(const Node&, std::span<const TensorType> inputs, int) {
  if (inputs.size() < 2 || inputs[0].dtype != DType::f32 || inputs[1].dtype != DType::f32) return false;
  return inputs[0].rank() == 3 || inputs[0].rank() == 4;
}

// Windows that lie side by side and cover the output.
bool has_separate_windows(const ConvNode& conv) {
  const Window& window = conv.window;
  for (size_t axis = 0; axis < window.axes(); ++axis) {
    if (window.kernel[axis] != window.strides[axis] || window.dilations[axis] != 1 || window.pads_begin[axis] != 0 ||
        conv.sizes.out[axis] != conv.sizes.in[axis] * window.kernel[axis]) {
      return false;
    }
  }
  return conv.sizes.groups == 1;
}

// [in][out][window] is the weight of a pointwise convolution to out * window channels as it lies. Requires: separate
// windows.
bool lower_shuffled(LowerContext& context, const ConvNode& conv) {
  const ConvSizes& sizes = conv.sizes;
  const size_t x = conv.window.axes() - 1;
  const PixelShuffle shuffle{sizes.out_channels, x == 1 ? conv.window.kernel[0] : 1, conv.window.kernel[x]};
  if (!can_shuffle_pixels(context, shuffle)) return false;
  ConvProblem problem;
  problem.batch = sizes.batch;
  problem.in_channels = sizes.in_channels;
  problem.out_channels = sizes.out_channels * shuffle.y * shuffle.x;
  problem.is_transposed = true;
  ConvShape shape;
  shape.x.in = shape.x.out = shape.x.out_extent = sizes.in[x];
  if (x == 1) shape.y.in = shape.y.out = shape.y.out_extent = sizes.in[0];
  problem.phases = {shape};
  return lower_conv(context, std::move(problem), shuffle);
}

bool lower(LowerContext& context) {
  const Dims in = context.input_type(0).extents(), weights = context.input_type(1).extents();
  if (in.size() != 3 && in.size() != 4) return false;
  const ConvNode conv = read_conv_transpose(context.node, in, weights);
  if (has_separate_windows(conv) && (lower_spread(context, conv) || lower_shuffled(context, conv))) return true;
  if (lower_folded(context, conv)) return true;
  const ConvSizes& sizes = conv.sizes;
  ConvProblem problem;
  problem.batch = sizes.batch;
  problem.in_channels = sizes.in_channels;
  problem.out_channels = sizes.out_channels;
  problem.groups = sizes.groups;
  problem.is_transposed = true;
  const size_t x = conv.window.axes() - 1;
  problem.window_x = conv.window.kernel[x];
  if (x == 1) problem.window_y = conv.window.kernel[0];
  // More phases than this would not be worth their code.
  if (conv.window.strides[x] * (x == 1 ? conv.window.strides[0] : 1) > 64) return false;
  std::vector<ConvAxis> y_phases(1);
  if (x == 1) y_phases = conv_transpose_axes(conv.window, 0, sizes.in[0], sizes.out[0]);
  for (const ConvAxis& y : y_phases) {
    for (const ConvAxis& x_phase : conv_transpose_axes(conv.window, x, sizes.in[x], sizes.out[x])) {
      ConvShape shape;
      shape.y = y;
      shape.x = x_phase;
      problem.phases.push_back(shape);
    }
  }
  return lower_conv(context, std::move(problem));
}

// Weights [in][out / groups][window] as a convolution takes them: [out][in / groups][window], the window turned round.
ValueId turned_weights(ExpandContext& context, const ConvNode& conv) {
  const ConvSizes& sizes = conv.sizes;
  const Dims& k = conv.window.kernel;
  const int64_t in = sizes.in_channels / sizes.groups, out = sizes.out_channels / sizes.groups;
  ValueId w = context.add("Reshape", {context.input(1), context.longs({sizes.groups, in, out, k[0], k[1], k[2]})});
  w = add_transposed(context, w, {0, 2, 1, 3, 4, 5});
  w = context.add("Reshape", {w, context.longs({sizes.out_channels, in, k[0], k[1], k[2]})});
  constexpr int64_t kBefore = std::numeric_limits<int64_t>::min();
  return context.add("Slice", {w, context.longs({-1, -1, -1}), context.longs({kBefore, kBefore, kBefore}),
                               context.longs({2, 3, 4}), context.longs({-1, -1, -1})});
}

// The pixels `stride` apart, zeros between and behind them.
ValueId among_zeros(ExpandContext& context, const ConvNode& conv) {
  const Dims &in = conv.sizes.in, &s = conv.window.strides;
  if (s == Dims{1, 1, 1}) return context.input(0);
  ValueId x = context.add("Reshape", {context.input(0), context.longs({0, 0, in[0], 1, in[1], 1, in[2], 1})});
  x = context.add("Pad", {x, context.longs({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, s[0] - 1, 0, s[1] - 1, 0, s[2] - 1})});
  return context.add("Reshape", {x, context.longs({0, 0, in[0] * s[0], in[1] * s[1], in[2] * s[2]})});
}

// The places of a window that are equal modulo the stride are the outputs of one convolution, whose channels are
// [channel][place within a stride]: output s q + r takes in[q - j] times w[r + s j].
struct StrideSteps {
  Dims taps;   // j, along each axis
  Dims steps;  // q
};

StrideSteps stride_steps(const ConvNode& conv) {
  StrideSteps result;
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t stride = conv.window.strides[axis];
    result.taps.push_back((conv.window.kernel[axis] + stride - 1) / stride);
    result.steps.push_back((conv.sizes.out[axis] + conv.window.pads_begin[axis] - 1) / stride + 1);
  }
  return result;
}

ValueId weights_by_place(ExpandContext& context, const ConvNode& conv, const Dims& taps) {
  const ConvSizes& sizes = conv.sizes;
  const Dims &k = conv.window.kernel, &s = conv.window.strides;
  const int64_t in = sizes.in_channels, out = sizes.out_channels;
  ValueId w = context.input(1);
  const Dims missing = {taps[0] * s[0] - k[0], taps[1] * s[1] - k[1], taps[2] * s[2] - k[2]};
  if (missing != Dims{0, 0, 0})
    w = context.add("Pad", {w, context.longs({0, 0, 0, 0, 0, 0, 0, missing[0], missing[1], missing[2]})});
  w = context.add("Reshape", {w, context.longs({in, out, taps[0], s[0], taps[1], s[1], taps[2], s[2]})});
  w = add_transposed(context, w, {1, 3, 5, 7, 0, 2, 4, 6});
  w = context.add("Reshape", {w, context.longs({out * s[0] * s[1] * s[2], in, taps[0], taps[1], taps[2]})});
  constexpr int64_t kBefore = std::numeric_limits<int64_t>::min();
  return context.add("Slice", {w, context.longs({-1, -1, -1}), context.longs({kBefore, kBefore, kBefore}),
                               context.longs({2, 3, 4}), context.longs({-1, -1, -1})});
}

ValueId add_by_place(ExpandContext& context, const ConvNode& conv) {
  const ConvSizes& sizes = conv.sizes;
  const Dims &s = conv.window.strides, &pads = conv.window.pads_begin;
  const StrideSteps steps = stride_steps(conv);
  Dims all;  // steps that the convolution makes: some more where the output ends before the input does
  std::vector<int64_t> around;
  for (size_t axis = 0; axis < 3; ++axis) {
    around.push_back(steps.taps[axis] - 1);
    all.push_back(std::max(steps.steps[axis], sizes.in[axis]));
  }
  for (size_t axis = 0; axis < 3; ++axis) around.push_back(all[axis] - sizes.in[axis]);
  Attributes attributes;
  attributes.set("pads", around);
  ValueId y =
      context.add("Conv", {context.input(0), weights_by_place(context, conv, steps.taps)}, std::move(attributes));
  y = context.add("Reshape", {y, context.longs({-1, sizes.out_channels, s[0], s[1], s[2], all[0], all[1], all[2]})});
  y = add_transposed(context, y, {0, 1, 5, 2, 6, 3, 7, 4});
  y = context.add("Reshape", {y, context.longs({-1, sizes.out_channels, all[0] * s[0], all[1] * s[1], all[2] * s[2]})});
  y = context.add("Slice", {y, context.longs({pads[0], pads[1], pads[2]}),
                            context.longs({pads[0] + sizes.out[0], pads[1] + sizes.out[1], pads[2] + sizes.out[2]}),
                            context.longs({2, 3, 4})});
  if (!context.has_input(2)) return y;
  return context.add("Add", {y, context.add("Reshape", {context.input(2), context.longs({-1, 1, 1, 1})})});
}

// One group, a window without holes, and few enough places for their channels not to be mostly code.
bool goes_by_place(const ConvNode& conv) {
  constexpr int64_t kMostPlaces = 64;
  const Dims& s = conv.window.strides;
  const int64_t places = s[0] * s[1] * s[2];
  return conv.sizes.groups == 1 && conv.window.dilations == Dims{1, 1, 1} && places > 1 && places <= kMostPlaces &&
         std::all_of(conv.sizes.out.begin(), conv.sizes.out.end(), [](int64_t extent) { return extent > 0; }) &&
         std::all_of(conv.window.pads_begin.begin(), conv.window.pads_begin.end(), [](int64_t p) { return p >= 0; });
}

// Windows side by side: a convolution of single pixels to all places of the window, which are then spread.
ValueId add_spread(ExpandContext& context, const ConvNode& conv) {
  const ConvSizes& sizes = conv.sizes;
  const Dims &in = sizes.in, &k = conv.window.kernel;
  const int64_t places = k[0] * k[1] * k[2];
  ValueId w =
      context.add("Reshape", {context.input(1), context.longs({sizes.in_channels, sizes.out_channels * places})});
  w = add_transposed(context, w, {1, 0});
  w = context.add("Reshape", {w, context.longs({sizes.out_channels * places, sizes.in_channels, 1, 1, 1})});
  ValueId y = context.add("Conv", {context.input(0), w});
  y = context.add("Reshape", {y, context.longs({-1, sizes.out_channels, k[0], k[1], k[2], in[0], in[1], in[2]})});
  y = add_transposed(context, y, {0, 1, 5, 2, 6, 3, 7, 4});
  y = context.add("Reshape", {y, context.longs({-1, sizes.out_channels, sizes.out[0], sizes.out[1], sizes.out[2]})});
  if (!context.has_input(2)) return y;
  return context.add("Add", {y, context.add("Reshape", {context.input(2), context.longs({-1, 1, 1, 1})})});
}

// Volumes: by a convolution to all places within a stride, or over the input's pixels among zeros.
bool expand(ExpandContext& context) {
  if (context.input_type(0).dtype != DType::f32) return false;
  const std::optional<ConvNode> conv = known_conv_transpose(context.node, context.input_type(0), context.input_type(1));
  if (!conv || conv->window.axes() != 3) return false;
  if (has_separate_windows(*conv)) {
    context.set_output(0, add_spread(context, *conv));
    return true;
  }
  if (goes_by_place(*conv)) {
    context.set_output(0, add_by_place(context, *conv));
    return true;
  }
  const Window& window = conv->window;
  Dims before, behind;
  for (size_t axis = 0; axis < 3; ++axis) {
    before.push_back(window.span(axis) - 1 - window.pads_begin[axis]);
    const int64_t all = conv->sizes.in[axis] * window.strides[axis];
    behind.push_back(conv->sizes.out[axis] + window.span(axis) - 1 - all - before.back());
  }
  // Some of the zeros, or of the pixels, may have to go: negative counts.
  ValueId x = among_zeros(context, *conv);
  x = context.add("Pad",
                  {x, context.longs({0, 0, before[0], before[1], before[2], 0, 0, behind[0], behind[1], behind[2]})});
  std::vector<ValueId> inputs = {x, turned_weights(context, *conv)};
  if (context.has_input(2)) inputs.push_back(context.input(2));
  Attributes attributes;
  attributes.set("group", conv->sizes.groups);
  attributes.set("dilations", window.dilations);
  context.set_output(0, context.add("Conv", std::move(inputs), attributes));
  return true;
}

}  // namespace

std::vector<OpDef> conv_transpose_ops() {
  using Kind = AttributeSpec::Kind;
  return {
      {.schema = {.name = "ConvTranspose",
                  .min_inputs = 2,
                  .max_inputs = 3,
                  .attributes = conv_attributes({{"output_padding", Kind::integers}, {"output_shape", Kind::integers}}),
                  .infer = infer,
                  .reference = reference,
                  .layout = LayoutRole::blocked,
                  .accepts_blocked = accepts_blocked,
                  .fuses_epilogue = true,
                  .expand = expand},
       .lower = lower}};
}

}  // namespace lathe::ops
