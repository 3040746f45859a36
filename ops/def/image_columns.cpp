// Col2Im, MaxUnpool and DeformConv.
#include <algorithm>
#include <cmath>

#include "ops/copy_elements.h"
#include "ops/copy_infer.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

// Windows over `spatial` axes as the attributes of a node say.
struct Windows {
  std::vector<int64_t> strides, pads, dilations;  // pads: all begins, then all ends
};

template <class Context>
std::vector<int64_t> list_attribute(const Context& context, const char* name, size_t count, int64_t fallback,
                                    int64_t least) {
  std::vector<int64_t> values = context.node.attributes.get_ints(name);
  if (values.empty()) values.assign(count, fallback);
  if (values.size() != count)
    context.fail(std::string("attribute '") + name + "' needs " + std::to_string(count) + " values");
  for (const int64_t value : values) {
    if (value < least || value > (int64_t{1} << 31)) {
      context.fail(std::string("attribute '") + name + "' has the value " + std::to_string(value));
    }
  }
  return values;
}

template <class Context>
Windows windows_of(const Context& context, size_t spatial) {
  return {list_attribute(context, "strides", spatial, 1, 1), list_attribute(context, "pads", 2 * spatial, 0, 0),
          list_attribute(context, "dilations", spatial, 1, 1)};
}

// Windows that fit along an axis; negative or zero: none.
int64_t window_count(const Windows& windows, size_t axis, int64_t extent, int64_t kernel) {
  const size_t spatial = windows.strides.size();
  const int64_t room =
      extent + windows.pads[axis] + windows.pads[axis + spatial] - windows.dilations[axis] * (kernel - 1) - 1;
  return room < 0 ? 0 : room / windows.strides[axis] + 1;
}

// ---- Col2Im

template <class Context>
Dims column_dims(const Context& context, const TensorType& columns, const std::vector<int64_t>& image,
                 const std::vector<int64_t>& block) {
  if (image.empty() || image.size() != block.size()) context.fail("image_shape and block_shape differ in length");
  int64_t volume = 1;
  for (size_t i = 0; i < image.size(); ++i) {
    if (image[i] < 0 || block[i] < 1 || block[i] > (int64_t{1} << 31) || image[i] > (int64_t{1} << 40)) {
      context.fail("image_shape is " + to_string(image) + ", block_shape " + to_string(block));
    }
    const auto next = product_of(volume, block[i]);
    if (!next) context.fail("block_shape is " + to_string(block));
    volume = *next;
  }
  Dims dims{-1, -1};
  if (columns.has_rank) {
    if (columns.rank() != 3) context.fail("input 0 has rank " + std::to_string(columns.rank()));
    dims[0] = columns.dims[0].extent;
    if (columns.dims[1].known()) {
      if (columns.dims[1].extent % volume != 0) context.fail("rows of columns are no multiple of the block");
      dims[1] = columns.dims[1].extent / volume;
    }
  }
  dims.insert(dims.end(), image.begin(), image.end());
  return dims;
}

void infer_col2im(InferContext& context) {
  const Tensor image = context.constant(1), block = context.constant(2);
  if (!image.defined() || !block.defined()) return context.set_output(0, TensorType::unranked(context.input(0).dtype));
  const Dims dims = column_dims(context, context.input(0), integers_of(context, image, "input 1 (image_shape)"),
                                integers_of(context, block, "input 2 (block_shape)"));
  TensorType result = ranked(context.input(0).dtype, dims.size());
  for (size_t i = 0; i < dims.size(); ++i) result.dims[i].extent = dims[i];
  context.set_output(0, std::move(result));
}

void run_col2im(ReferenceContext& context) {
  const Tensor& columns = context.inputs[0];
  const std::vector<int64_t> image = integers_of(context, context.inputs[1], "input 1 (image_shape)"),
                             block = integers_of(context, context.inputs[2], "input 2 (block_shape)");
  const Dims dims = column_dims(context, TensorType::of(columns.dtype(), columns.dims()), image, block);
  const size_t spatial = image.size();
  const Windows windows = windows_of(context, spatial);
  Dims steps;
  for (size_t i = 0; i < spatial; ++i) steps.push_back(window_count(windows, i, image[i], block[i]));
  const int64_t positions = checked_elements(steps), pixels = checked_elements(image), taps = checked_elements(block);
  if (columns.dims()[2] != positions) {
    context.fail("has " + std::to_string(columns.dims()[2]) + " columns, the windows are " + std::to_string(positions));
  }
  Tensor result = make_output(context, columns.dtype(), dims);
  const std::vector<double> in = reals_of(columns);
  std::vector<double> out(static_cast<size_t>(result.size()), 0);
  for (int64_t map = 0; map < dims[0] * dims[1]; ++map) {
    size_t at = static_cast<size_t>(map * taps * positions);
    for (IndexWalk tap(block); !tap.done(); tap.next()) {
      for (IndexWalk step(steps); !step.done(); step.next(), ++at) {
        int64_t pixel = 0;
        bool is_inside = true;
        for (size_t i = 0; i < spatial; ++i) {
          const int64_t where =
              step.index()[i] * windows.strides[i] + tap.index()[i] * windows.dilations[i] - windows.pads[i];
          is_inside = is_inside && where >= 0 && where < image[i];
          pixel = pixel * image[i] + where;
        }
        if (is_inside) out[static_cast<size_t>(map * pixels + pixel)] += in[at];
      }
    }
  }
  context.outputs[0] = tensor_of_reals(context, columns.dtype(), dims, out);
}

// ---- MaxUnpool

// The extents that the pooled tensor came from, by the windows alone; unknown ones -1.
template <class Context>
Dims unpooled_dims(const Context& context, const TensorType& x) {
  if (x.rank() < 3) context.fail("X has rank " + std::to_string(x.rank()));
  const auto spatial = static_cast<size_t>(x.rank() - 2);
  const Windows windows = windows_of(context, spatial);
  const std::vector<int64_t> kernel = list_attribute(context, "kernel_shape", spatial, 1, 1);
  Dims dims{x.dims[0].extent, x.dims[1].extent};
  for (size_t i = 0; i < spatial; ++i) {
    const Dim& dim = x.dims[i + 2];
    int64_t extent = -1;
    if (dim.known()) {
      if (dim.extent > (int64_t{1} << 31)) context.fail("X is too large");
      extent = (dim.extent - 1) * windows.strides[i] - windows.pads[i] - windows.pads[i + spatial] + kernel[i];
      if (extent < 0) context.fail("an unpooled extent is negative");
    }
    dims.push_back(extent);
  }
  return dims;
}

void infer_max_unpool(InferContext& context) {
  const TensorType& x = context.input(0);
  if (!x.has_rank) return context.set_output(0, x);
  Dims dims = unpooled_dims(context, x);
  if (context.has_input(2)) {
    const Tensor shape = context.constant(2);
    if (shape.defined()) {
      const std::vector<int64_t> given = integers_of(context, shape, "input 2 (output_shape)");
      if (given.size() != dims.size()) context.fail("output_shape has " + std::to_string(given.size()) + " extents");
      dims = given;
    } else {
      dims.assign(dims.size(), -1);
    }
  }
  TensorType result = ranked(x.dtype, dims.size());
  for (size_t i = 0; i < dims.size(); ++i) result.dims[i].extent = dims[i] < 0 ? -1 : dims[i];
  context.set_output(0, std::move(result));
}

void run_max_unpool(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const Dims inner = unpooled_dims(context, TensorType::of(x.dtype(), x.dims()));
  Dims outer = inner;
  if (context.has_input(2)) outer = integers_of(context, context.inputs[2], "input 2 (output_shape)");
  if (outer.size() != inner.size()) context.fail("output_shape has " + std::to_string(outer.size()) + " extents");
  for (size_t i = 0; i < outer.size(); ++i) {
    if (outer[i] < inner[i]) context.fail("output_shape " + to_string(outer) + " is below " + to_string(inner));
  }
  if (context.inputs[1].dims() != x.dims()) context.fail("X and its indices differ in shape");
  const std::vector<int64_t> where = integers_of_any(context.inputs[1]);
  Tensor result = make_output(context, x.dtype(), outer);
  const ElementCopy copy(x.dtype());
  const int64_t elements = checked_elements(inner);
  const std::vector<int64_t> inner_strides = strides_of(inner), outer_strides = strides_of(outer);
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = where[static_cast<size_t>(i)], to = 0;
    if (rest < 0 || rest >= elements) context.fail("index " + std::to_string(rest) + " is out of range");
    for (size_t axis = 0; axis < inner.size(); ++axis) {
      to += rest / inner_strides[axis] * outer_strides[axis];
      rest %= inner_strides[axis];
    }
    copy(x, i, result, to);
  }
  context.outputs[0] = std::move(result);
}

// ---- DeformConv, over two spatial axes

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

}  // namespace

std::vector<OpDef> image_columns_ops() {
  using Kind = AttributeSpec::Kind;
  return {
      {.schema = {.name = "Col2Im",
                  .since = 18,
                  .min_inputs = 3,
                  .max_inputs = 3,
                  .attributes = {{"dilations", Kind::integers}, {"pads", Kind::integers}, {"strides", Kind::integers}},
                  .infer = infer_col2im,
                  .reference = run_col2im}},
      {.schema = {.name = "MaxUnpool",
                  .since = 9,
                  .min_inputs = 2,
                  .max_inputs = 3,
                  .attributes = {{"kernel_shape", Kind::integers, true},
                                 {"pads", Kind::integers},
                                 {"strides", Kind::integers}},
                  .infer = infer_max_unpool,
                  .reference = run_max_unpool}},
      {.schema = {.name = "DeformConv",
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
                  .reference = run_deform_conv}}};
}

}  // namespace lathe::ops
