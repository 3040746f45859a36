// GridSample over any number of spatial axes, and AffineGrid that makes its grids.
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/resize/picture_sampler.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

template <class Context>
Interpolation interpolation_of(const Context& context) {
  const std::string mode = context.node.attributes.get_string("mode", "linear");
  if (mode == "nearest") return Interpolation::nearest;
  if (mode == "linear" || mode == "bilinear") return Interpolation::linear;
  if (mode == "cubic" || mode == "bicubic") return Interpolation::cubic;
  context.fail("attribute 'mode' is '" + mode + "'");
}

template <class Context>
Padding padding_of(const Context& context) {
  const std::string mode = context.node.attributes.get_string("padding_mode", "zeros");
  if (mode == "zeros") return Padding::zeros;
  if (mode == "border") return Padding::border;
  if (mode == "reflection") return Padding::reflection;
  context.fail("attribute 'padding_mode' is '" + mode + "'");
}

void infer_grid_sample(InferContext& context) {
  const TensorType &x = context.input(0), &grid = context.input(1);
  if (!x.has_rank || !grid.has_rank) return context.set_output(0, TensorType::unranked(x.dtype));
  if (x.rank() < 3 || grid.rank() != x.rank()) {
    context.fail("X has rank " + std::to_string(x.rank()) + ", grid " + std::to_string(grid.rank()));
  }
  TensorType result = x;
  for (size_t i = 2; i < x.dims.size(); ++i) result.dims[i] = grid.dims[i - 1];
  context.set_output(0, std::move(result));
}

// Sum over all taps of all axes, from `axis` on.
double sample(const double* plane, const Dims& dims, const std::vector<Taps>& taps, size_t axis, int64_t offset) {
  if (axis == taps.size()) return plane[offset];
  double sum = 0;
  for (int i = 0; i < taps[axis].count; ++i) {
    const auto tap = static_cast<size_t>(i);
    if (taps[axis].index[tap] < 0) continue;
    sum += taps[axis].weight[tap] * sample(plane, dims, taps, axis + 1, offset * dims[axis] + taps[axis].index[tap]);
  }
  return sum;
}

void run_grid_sample(ReferenceContext& context) {
  const Tensor &x = context.inputs[0], &grid = context.inputs[1];
  const auto spatial = static_cast<size_t>(std::max(0, x.rank() - 2));
  if (spatial == 0 || spatial > 8 || grid.rank() != x.rank() || grid.dims()[0] != x.dims()[0] ||
      grid.dims().back() != static_cast<int64_t>(spatial)) {
    context.fail("X is " + to_string(x.dims()) + ", grid " + to_string(grid.dims()));
  }
  const Sampler sampler{interpolation_of(context), padding_of(context),
                        context.node.attributes.get_int("align_corners", 0) != 0};
  const Dims planes(x.dims().begin() + 2, x.dims().end());
  Dims out_dims = x.dims();
  std::copy(grid.dims().begin() + 1, grid.dims().end() - 1, out_dims.begin() + 2);
  Tensor result = make_output(context, x.dtype(), out_dims);
  int64_t plane = 1, points = 1;
  for (const int64_t extent : planes) plane *= extent;
  for (size_t i = 2; i < out_dims.size(); ++i) points *= out_dims[i];
  if (plane == 0 && result.size() > 0) context.fail("X is empty");
  const std::vector<double> values = reals_of(x), where = reals_of(grid);
  std::vector<Taps> taps(spatial);
  for (int64_t n = 0; n < x.dims()[0] && result.size() > 0; ++n) {
    for (int64_t point = 0; point < points; ++point) {
      // The grid names the last axis first.
      for (size_t i = 0; i < spatial; ++i) {
        const auto at = static_cast<size_t>(n * points + point) * spatial + (spatial - 1 - i);
        taps[i] = sampler.taps(where[at], planes[i]);
      }
      for (int64_t c = 0; c < x.dims()[1]; ++c) {
        const int64_t map = n * x.dims()[1] + c;
        store_real(result, map * points + point, sample(values.data() + map * plane, planes, taps, 0, 0));
      }
    }
  }
  context.outputs[0] = std::move(result);
}

// ---- Lowering of float32 pictures

bool lower_grid_sample(LowerContext& context) {
  const TensorType &x = context.input_type(0), &grid = context.input_type(1);
  // Exporters make places of float64 where they divide by extents that are integers.
  const bool is_double = grid.dtype == DType::f64;
  if (x.dtype != DType::f32 || (grid.dtype != DType::f32 && !is_double)) return false;
  if (x.rank() != 4 || grid.rank() != 4) return false;
  const Dims dims = x.extents(), where = grid.extents();
  const bool fits = where[0] == dims[0] && where[3] == 2 && dims[2] > 0 && dims[3] > 0;
  if (!fits || dims[2] * dims[3] > INT32_MAX) return false;
  const InferContext messages(context.node, {}, {});
  const PictureSampler picture(
      {interpolation_of(messages), padding_of(messages), context.node.attributes.get_int("align_corners", 0) != 0},
      {dims[0], dims[1], dims[2], dims[3], where[1] * where[2]}, context.target.threads);
  const int64_t tasks = picture.tasks(), samples = dims[0] * dims[1] * where[1] * where[2];
  if (samples == 0) return true;
  const BufferId from = context.buffer(context.input(0)), places = context.buffer(context.input(1)),
                 to = context.buffer(context.output(0));
  Step step;
  step.kernel = "sample " + std::to_string(picture.taps()) + " taps";
  step.reads = {from, places};
  step.writes = {to};
  step.flop = 2 * static_cast<double>(samples * picture.taps());
  step.bytes = static_cast<double>(x.storage_bytes() + grid.storage_bytes() + context.output_type(0).storage_bytes());
  constexpr double kWorkOfTap = 32;  // gathered one by one: in operations at full speed
  step.threads =
      static_cast<int>(std::min<int64_t>(worthwhile_threads(kWorkOfTap * step.flop, context.target.threads), tasks));
  step.run = [=](const StepArgs& args) {
    const Range own = split_evenly(tasks, args.share, args.shares);
    const auto* pixels = args.at<const float>(from);
    auto* out = args.at<float>(to);
    for (int64_t i = own.begin; i < own.end; ++i) {
      is_double ? picture.run(pixels, args.at<const double>(places), out, i)
                : picture.run(pixels, args.at<const float>(places), out, i);
    }
  };
  context.add(std::move(step));
  return true;
}

// ---- AffineGrid

template <class Context>
Dims grid_dims(const Context& context, const Tensor& size) {
  const std::vector<int64_t> target = integers_of(context, size, "input 1 (size)");
  if (target.size() != 4 && target.size() != 5) context.fail("size has " + std::to_string(target.size()) + " extents");
  Dims dims{target[0]};
  dims.insert(dims.end(), target.begin() + 2, target.end());
  dims.push_back(static_cast<int64_t>(target.size()) - 2);
  for (const int64_t extent : dims) {
    if (extent < 0) context.fail("extent " + std::to_string(extent) + " of the size is negative");
  }
  return dims;
}

void infer_affine_grid(InferContext& context) {
  const DType dtype = context.input(0).dtype;
  const Tensor size = context.constant(1);
  context.set_output(0, size.defined() ? TensorType::of(dtype, grid_dims(context, size)) : TensorType::unranked(dtype));
}

// Where the element of this index lies along an axis of so many, from -1 to 1.
double resting_place(int64_t extent, int64_t index, bool aligns_corners) {
  const auto size = static_cast<double>(extent);
  const double step = aligns_corners ? (extent > 1 ? 2 / (size - 1) : 0) : 2 / size;
  return (aligns_corners ? -1 : -1 + step / 2) + static_cast<double>(index) * step;
}

// A product of the points of the grid, which are constant, with each matrix.
bool expand_affine_grid(ExpandContext& context) {
  constexpr int64_t kMostPoints = 1 << 20;  // the points are kept
  const TensorType theta = context.input_type(0);
  const Tensor size = context.constant_of(context.input(1));
  if (!size.defined() || theta.dtype != DType::f32 || !theta.is_static()) return false;
  const Dims dims = grid_dims(context, size);
  const int64_t axes = dims.back();
  if (theta.extents() != Dims{dims[0], axes, axes + 1}) return false;
  const Dims places(dims.begin() + 1, dims.end() - 1);
  int64_t count = 1;
  for (const int64_t extent : places) {
    if (extent < 1 || extent > kMostPoints / count) return false;
    count *= extent;
  }
  const bool aligns_corners = context.node.attributes.get_int("align_corners", 0) != 0;
  Tensor points(DType::f32, {count, axes + 1});
  float* to = points.mutable_data<float>();
  for (IndexWalk walk(places); !walk.done(); walk.next()) {
    for (auto axis = static_cast<size_t>(axes); axis-- > 0;) {  // x first
      *to++ = static_cast<float>(resting_place(places[axis], walk.index()[axis], aligns_corners));
    }
    *to++ = 1;
  }
  const ValueId turned = add_transposed(context, context.input(0), {0, 2, 1});
  const ValueId grid = context.add("MatMul", {context.constant(std::move(points)), turned});
  const Dims rank{static_cast<int64_t>(dims.size())};
  context.set_output(0, context.add("Reshape", {grid, context.constant(Tensor::from<int64_t>(rank, dims))}));
  return true;
}

void run_affine_grid(ReferenceContext& context) {
  const Tensor& theta = context.inputs[0];
  const Dims dims = grid_dims(context, context.inputs[1]);
  const int64_t axes = dims.back();
  if (theta.dims() != Dims{dims[0], axes, axes + 1}) context.fail("theta is " + to_string(theta.dims()));
  const bool aligns_corners = context.node.attributes.get_int("align_corners", 0) != 0;
  Tensor result = make_output(context, theta.dtype(), dims);
  const std::vector<double> matrix = reals_of(theta);
  int64_t at = 0;
  for (IndexWalk walk(Dims(dims.begin(), dims.end() - 1)); !walk.done(); walk.next()) {
    std::vector<double> point(static_cast<size_t>(axes) + 1, 1);  // x first
    for (int64_t i = 0; i < axes; ++i) {
      const auto axis = static_cast<size_t>(axes - i);
      point[static_cast<size_t>(i)] = resting_place(dims[axis], walk.index()[axis], aligns_corners);
    }
    for (int64_t row = 0; row < axes; ++row) {
      double sum = 0;
      for (int64_t column = 0; column <= axes; ++column) {
        sum += matrix[static_cast<size_t>((walk.index()[0] * axes + row) * (axes + 1) + column)] *
               point[static_cast<size_t>(column)];
      }
      store_real(result, at++, sum);
    }
  }
  context.outputs[0] = std::move(result);
}

OpDef grid_sample(int since, int until) {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = "GridSample",
                     .since = since,
                     .until = until,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .attributes = {{"align_corners", Kind::integer},
                                    {"mode", Kind::string},
                                    {"padding_mode", Kind::string}},
                     .infer = infer_grid_sample,
                     .reference = run_grid_sample},
          .lower = lower_grid_sample};
}

}  // namespace

std::vector<OpDef> grid_sample_ops() {
  using Kind = AttributeSpec::Kind;
  return {grid_sample(16, 19),
          grid_sample(20, 1 << 20),
          {.schema = {.name = "AffineGrid",
                      .since = 20,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"align_corners", Kind::integer}},
                      .infer = infer_affine_grid,
                      .reference = run_affine_grid,
                      .expand = expand_affine_grid}}};
}

}  // namespace lathe::ops
