// Col2Im and MaxUnpool.
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/copy/index_check.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/window_attributes.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

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

// A row of columns that is added to a row of the image: `count` elements to every `stride`-th.
struct ColumnRow {
  int64_t from = 0, to = 0, count = 0;
};

// Of one map, for all taps and steps: what lies inside of the image.
std::vector<ColumnRow> column_rows(const Windows& windows, const std::vector<int64_t>& image,
                                   const std::vector<int64_t>& block, const Dims& steps) {
  const size_t last = image.size() - 1;
  const std::vector<int64_t> pixel_strides = strides_of(image);
  std::vector<ColumnRow> rows;
  int64_t from = 0;
  for (IndexWalk tap(block); !tap.done(); tap.next()) {
    const int64_t shift = tap.index()[last] * windows.dilations[last] - windows.pads[last],
                  stride = windows.strides[last];
    const int64_t begin = std::clamp<int64_t>(shift < 0 ? (-shift + stride - 1) / stride : 0, 0, steps[last]);
    const int64_t room = image[last] - shift;
    const int64_t end = std::clamp<int64_t>(room <= 0 ? 0 : (room + stride - 1) / stride, begin, steps[last]);
    Dims outer(steps.begin(), steps.end() - 1);
    for (IndexWalk step(outer); !step.done(); step.next(), from += steps[last]) {
      ColumnRow row{from + begin, shift + begin * stride, end - begin};
      bool is_inside = row.count > 0;
      for (size_t i = 0; i < last; ++i) {
        const int64_t where =
            step.index()[i] * windows.strides[i] + tap.index()[i] * windows.dilations[i] - windows.pads[i];
        is_inside = is_inside && where >= 0 && where < image[i];
        row.to += where * pixel_strides[i];
      }
      if (is_inside) rows.push_back(row);
    }
  }
  return rows;
}

[[gnu::target("avx2")]] void add_row(const float* from, float* to, int64_t count, int64_t stride) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * stride] += from[i];
  }
}

bool lower_col2im(LowerContext& context) {
  const TensorType& columns = context.input_type(0);
  const Tensor image_shape = context.constant(1), block_shape = context.constant(2);
  if (columns.dtype != DType::f32 || !image_shape.defined() || !block_shape.defined()) return false;
  const InferContext messages(context.node, {}, {});
  const std::vector<int64_t> image = integers_of(messages, image_shape, "input 1 (image_shape)"),
                             block = integers_of(messages, block_shape, "input 2 (block_shape)");
  const Dims dims = column_dims(messages, columns, image, block);
  const Windows windows = windows_of(messages, image.size());
  Dims steps;
  for (size_t i = 0; i < image.size(); ++i) steps.push_back(window_count(windows, i, image[i], block[i]));
  const int64_t positions = checked_elements(steps), pixels = checked_elements(image), taps = checked_elements(block);
  constexpr int64_t kMostRows = 1 << 20;
  if (columns.extents()[2] != positions || positions == 0 || taps > kMostRows / positions) return false;
  const int64_t maps = dims[0] * dims[1];
  if (maps * pixels == 0) return true;
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step{.kernel = "add columns", .reads = {from}, .writes = {to}};
  step.bytes = static_cast<double>(columns.storage_bytes()) + 4 * static_cast<double>(maps * pixels);
  step.threads = static_cast<int>(std::min<int64_t>(worthwhile_threads(2 * step.bytes, context.target.threads), maps));
  step.run = [=, rows = column_rows(windows, image, block, steps),
              stride = windows.strides.back()](const StepArgs& args) {
    const Range own = split_evenly(maps, args.share, args.shares);
    for (int64_t map = own.begin; map < own.end; ++map) {
      const float* in = args.at<const float>(from) + map * taps * positions;
      float* out = args.at<float>(to) + map * pixels;
      std::fill_n(out, pixels, 0.0F);
      for (const ColumnRow& row : rows) add_row(in + row.from, out + row.to, row.count, stride);
    }
  };
  context.add(std::move(step));
  return true;
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
  const auto check = [&](int64_t index) {
    if (index < 0 || index >= elements) context.fail("index " + std::to_string(index) + " is out of range");
  };
  const auto put = [&]<class T>() {
    const T* from = static_cast<const T*>(x.raw());
    T* to = static_cast<T*>(result.mutable_raw());
    for (size_t i = 0; i < where.size(); ++i) {
      check(where[i]);
      to[where[i]] = from[i];
    }
  };
  if (outer == inner && x.dtype() != DType::string &&
      visit_width(static_cast<int64_t>(whole_element_bytes(x.dtype())), put)) {
    context.outputs[0] = std::move(result);
    return;
  }
  const std::vector<int64_t> inner_strides = strides_of(inner), outer_strides = strides_of(outer);
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = where[static_cast<size_t>(i)], to = 0;
    check(rest);
    for (size_t axis = 0; axis < inner.size(); ++axis) {
      to += rest / inner_strides[axis] * outer_strides[axis];
      rest %= inner_strides[axis];
    }
    copy(x, i, result, to);
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
                  .reference = run_col2im},
       .lower = lower_col2im},
      {.schema = {.name = "MaxUnpool",
                  .since = 9,
                  .min_inputs = 2,
                  .max_inputs = 3,
                  .attributes = {{"kernel_shape", Kind::integers, true},
                                 {"pads", Kind::integers},
                                 {"strides", Kind::integers}},
                  .infer = infer_max_unpool,
                  .reference = run_max_unpool}}};
}

}  // namespace lathe::ops
