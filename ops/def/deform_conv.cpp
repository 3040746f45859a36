// DeformConv over two spatial axes: each tap of each output pixel reads where an offset says.
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/window_attributes.h"

namespace lathe::ops {
namespace {

struct Deformed {
  int64_t batch, channels, height, width;  // of X
  int64_t filters, group_channels, kernel_height, kernel_width, out_height, out_width;
  int64_t groups, offset_groups;
  Windows windows;
};

template <class Context>
TensorType deformed_type(const Context& context, const TensorType& x, const TensorType& w) {
  TensorType result = ranked(x.dtype, 4);
  if (!x.has_rank || !w.has_rank) return result;
  if (x.rank() != 4 || w.rank() != 4) context.fail("X or W has not rank 4");
  const Windows windows = windows_of(context, 2);
  result.dims[0] = x.dims[0];
  result.dims[1] = w.dims[0];
  const std::vector<int64_t> kernel = context.node.attributes.get_ints("kernel_shape");
  for (size_t i = 0; i < 2; ++i) {
    const Dim &extent = x.dims[i + 2], &taps = w.dims[i + 2];
    if (kernel.size() == 2 && taps.known() && kernel[i] != taps.extent) context.fail("kernel_shape is not that of W");
    if (extent.known() && taps.known()) {
      result.dims[i + 2] = known_dim(window_count(windows, i, extent.extent, taps.extent));
    }
  }
  return result;
}

void infer_deform_conv(InferContext& context) {
  context.set_output(0, deformed_type(context, context.input(0), context.input(1)));
}

Deformed deformed_of(const ReferenceContext& context) {
  const Dims &x = context.inputs[0].dims(), &w = context.inputs[1].dims();
  const Dims out = deformed_type(context, TensorType::of(DType::f32, x), TensorType::of(DType::f32, w)).extents();
  Deformed d{x[0],
             x[1],
             x[2],
             x[3],
             w[0],
             w[1],
             w[2],
             w[3],
             out[2],
             out[3],
             context.node.attributes.get_int("group", 1),
             context.node.attributes.get_int("offset_group", 1),
             windows_of(context, 2)};
  if (d.groups < 1 || d.offset_groups < 1 || d.channels % d.offset_groups != 0 || d.filters % d.groups != 0 ||
      d.groups > d.channels || d.channels % d.groups != 0 || d.channels / d.groups != d.group_channels) {
    context.fail("X is " + to_string(x) + ", W " + to_string(w) + ", with " + std::to_string(d.groups) +
                 " groups and " + std::to_string(d.offset_groups) + " offset groups");
  }
  const int64_t taps = d.offset_groups * d.kernel_height * d.kernel_width;
  if (context.inputs[2].dims() != Dims{d.batch, 2 * taps, d.out_height, d.out_width}) context.fail("offset fits not");
  if (context.has_input(3) && context.inputs[3].dims() != Dims{d.filters}) context.fail("B fits not");
  if (context.has_input(4) && context.inputs[4].dims() != Dims{d.batch, taps, d.out_height, d.out_width}) {
    context.fail("mask fits not");
  }
  return d;
}

// Bilinear; zero outside.
double pixel_at(const double* plane, int64_t height, int64_t width, double y, double x) {
  if (!(y > -1 && y < static_cast<double>(height) && x > -1 && x < static_cast<double>(width))) return 0;
  const auto top = static_cast<int64_t>(std::floor(y)), left = static_cast<int64_t>(std::floor(x));
  const double dy = y - static_cast<double>(top), dx = x - static_cast<double>(left);
  const auto at = [&](int64_t row, int64_t column) {
    return row < 0 || row >= height || column < 0 || column >= width ? 0 : plane[row * width + column];
  };
  return (1 - dy) * ((1 - dx) * at(top, left) + dx * at(top, left + 1)) +
         dy * ((1 - dx) * at(top + 1, left) + dx * at(top + 1, left + 1));
}

void run_deform_conv(ReferenceContext& context) {
  const Deformed d = deformed_of(context);
  const std::vector<double> x = reals_of(context.inputs[0]), w = reals_of(context.inputs[1]),
                            offset = reals_of(context.inputs[2]);
  const std::vector<double> bias = context.has_input(3) ? reals_of(context.inputs[3]) : std::vector<double>();
  const std::vector<double> mask = context.has_input(4) ? reals_of(context.inputs[4]) : std::vector<double>();
  const int64_t taps = d.kernel_height * d.kernel_width, pixels = d.out_height * d.out_width;
  Tensor result = make_output(context, context.inputs[0].dtype(), {d.batch, d.filters, d.out_height, d.out_width});
  int64_t to = 0;
  for (IndexWalk at({d.batch, d.filters, d.out_height, d.out_width}); !at.done(); at.next(), ++to) {
    const auto& i = at.index();
    const int64_t group = i[1] / (d.filters / d.groups), pixel = i[2] * d.out_width + i[3];
    double sum = bias.empty() ? 0 : bias[static_cast<size_t>(i[1])];
    for (int64_t c = 0; c < d.group_channels; ++c) {
      const int64_t channel = group * d.group_channels + c, shift = channel / (d.channels / d.offset_groups);
      const double* plane = x.data() + (i[0] * d.channels + channel) * d.height * d.width;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t where = (i[0] * d.offset_groups + shift) * taps + tap;
        const double y = static_cast<double>(i[2] * d.windows.strides[0] - d.windows.pads[0] +
                                             tap / d.kernel_width * d.windows.dilations[0]) +
                         offset[static_cast<size_t>(2 * where * pixels + pixel)];
        const double column = static_cast<double>(i[3] * d.windows.strides[1] - d.windows.pads[1] +
                                                  tap % d.kernel_width * d.windows.dilations[1]) +
                              offset[static_cast<size_t>((2 * where + 1) * pixels + pixel)];
        const double weight = w[static_cast<size_t>((i[1] * d.group_channels + c) * taps + tap)];
        const double share = mask.empty() ? 1 : mask[static_cast<size_t>(where * pixels + pixel)];
        sum += weight * share * pixel_at(plane, d.height, d.width, y, column);
      }
    }
    store_real(result, to, sum);
  }
  context.outputs[0] = std::move(result);
}

// Where each tap of each output pixel lies without an offset, in a grid's coordinates: [1, taps, pixels, 2].
Tensor resting_grid(const Windows& windows, const Dims& x, const Dims& w, const Dims& out) {
  const int64_t taps = w[2] * w[3], pixels = out[2] * out[3];
  Tensor grid(DType::f32, {1, taps, pixels, 2});
  float* to = grid.mutable_data<float>();
  const auto place = [&](size_t axis, int64_t pixel, int64_t tap) {
    const int64_t at = pixel * windows.strides[axis] - windows.pads[axis] + tap * windows.dilations[axis];
    return static_cast<float>(static_cast<double>(2 * at + 1) / static_cast<double>(x[axis + 2]) - 1);
  };
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      *to++ = place(1, pixel % out[3], tap % w[3]);
      *to++ = place(0, pixel / out[3], tap / w[3]);
    }
  }
  return grid;
}

// Pixels are sampled where their offsets say, into columns that the weights multiply. False: operands that do not fit,
// of which the reference says more.
bool expand_deform_conv(ExpandContext& context) {
  const TensorType x_type = context.input_type(0), w_type = context.input_type(1), offset_type = context.input_type(2);
  if (!x_type.is_static() || !w_type.is_static() || !offset_type.is_static() || x_type.dtype != DType::f32)
    return false;
  const Dims x = x_type.extents(), w = w_type.extents();
  const Dims out = deformed_type(context, x_type, w_type).extents();
  const int64_t groups = context.node.attributes.get_int("group", 1),
                shifts = context.node.attributes.get_int("offset_group", 1);
  const int64_t taps = w[2] * w[3], pixels = out[2] * out[3];
  const bool fits = groups >= 1 && shifts >= 1 && x[1] % shifts == 0 && w[0] % groups == 0 && x[1] == groups * w[1];
  if (!fits || offset_type.extents() != Dims{x[0], 2 * shifts * taps, out[2], out[3]}) return false;
  if (x[0] * x[1] * x[2] * x[3] * w[0] * taps * pixels == 0) return false;
  if (context.has_input(3) && context.input_type(3).extents() != Dims{w[0]}) return false;
  if (context.has_input(4) && context.input_type(4).extents() != Dims{x[0], shifts * taps, out[2], out[3]})
    return false;
  const auto reshaped = [&](ValueId value, std::initializer_list<int64_t> dims) {
    return context.add("Reshape", {value, context.longs(dims)});
  };
  // Offsets come as y and x of each tap; a grid wants x and y of each point, from -1 to 1 over the picture.
  ValueId grid = reshaped(context.input(2), {x[0] * shifts, taps, 2, pixels});
  grid = context.add("Gather", {grid, context.longs({1, 0})}, {{"axis", int64_t{2}}});
  grid = add_transposed(context, grid, {0, 1, 3, 2});
  const Tensor step = Tensor::from<float>({2}, {2.0F / static_cast<float>(x[3]), 2.0F / static_cast<float>(x[2])});
  grid = context.add("Mul", {grid, context.constant(step)});
  grid = context.add("Add", {grid, context.constant(resting_grid(windows_of(context, 2), x, w, out))});
  const ValueId picture = reshaped(context.input(0), {x[0] * shifts, x[1] / shifts, x[2], x[3]});
  ValueId columns = context.add("GridSample", {picture, grid}, {{"mode", std::string("linear")}});
  if (context.has_input(4)) {
    columns = context.add("Mul", {columns, reshaped(context.input(4), {x[0] * shifts, 1, taps, pixels})});
  }
  columns = reshaped(columns, {x[0], groups, w[1] * taps, pixels});
  ValueId result = context.add("MatMul", {reshaped(context.input(1), {groups, w[0] / groups, w[1] * taps}), columns});
  result = reshaped(result, {x[0], w[0], out[2], out[3]});
  if (context.has_input(3)) result = context.add("Add", {result, reshaped(context.input(3), {w[0], 1, 1})});
  context.set_output(0, result);
  return true;
}

}  // namespace

std::vector<OpDef> deform_conv_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "DeformConv",
                      .since = 19,
                      .min_inputs = 3,
                      .max_inputs = 5,
                      .attributes = {{"dilations", Kind::integers},
                                     {"group", Kind::integer},
                                     {"kernel_shape", Kind::integers},
                                     {"offset_group", Kind::integer},
                                     {"pads", Kind::integers},
                                     {"strides", Kind::integers}},
                      .infer = infer_deform_conv,
                      .reference = run_deform_conv,
                      .expand = expand_deform_conv}}};
}

}  // namespace lathe::ops
