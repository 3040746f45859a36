// RoiAlign, MaxRoiPool and NonMaxSuppression: what detectors are made of.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/copy_elements.h"
#include "ops/copy_infer.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

// A box is sampled so often at most, whatever its corners say.
constexpr double kMostSamples = 1 << 20;

template <class Context>
int64_t positive_attribute(const Context& context, const char* name) {
  const int64_t value = context.node.attributes.get_int(name, 1);
  if (value < 1) context.fail(std::string("attribute '") + name + "' is " + std::to_string(value));
  return value;
}

// ---- RoiAlign

void infer_roi_align(InferContext& context) {
  const TensorType &x = context.input(0), &rois = context.input(1);
  TensorType result = ranked(x.dtype, 4);
  if (rois.has_rank && rois.rank() > 0) result.dims[0] = rois.dims[0];
  if (x.has_rank) {
    if (x.rank() != 4) context.fail("X has rank " + std::to_string(x.rank()));
    result.dims[1] = x.dims[1];
  }
  result.dims[2] = known_dim(positive_attribute(context, "output_height"));
  result.dims[3] = known_dim(positive_attribute(context, "output_width"));
  context.set_output(0, std::move(result));
}

struct Bilinear {
  int64_t low_y = 0, high_y = 0, low_x = 0, high_x = 0;
  double weights[4] = {0, 0, 0, 0};  // low-low, low-high, high-low, high-high; zero outside
};

Bilinear bilinear_at(double y, double x, int64_t height, int64_t width) {
  Bilinear result;
  if (!(y >= -1 && y <= static_cast<double>(height) && x >= -1 && x <= static_cast<double>(width))) return result;
  const auto split = [](double at, int64_t extent, int64_t& low, int64_t& high) {
    at = std::max(at, 0.0);
    low = static_cast<int64_t>(at);
    if (low >= extent - 1) {
      low = high = extent - 1;
      return 0.0;
    }
    high = low + 1;
    return at - static_cast<double>(low);
  };
  const double ly = split(y, height, result.low_y, result.high_y), lx = split(x, width, result.low_x, result.high_x);
  result.weights[0] = (1 - ly) * (1 - lx);
  result.weights[1] = (1 - ly) * lx;
  result.weights[2] = ly * (1 - lx);
  result.weights[3] = ly * lx;
  return result;
}

struct RoiGrid {
  double start_y, start_x, bin_height, bin_width;
  int64_t samples_y, samples_x;
};

RoiGrid roi_grid(const ReferenceContext& context, const double* roi, int64_t out_height, int64_t out_width) {
  const Attributes& attributes = context.node.attributes;
  const std::string transform = attributes.get_string("coordinate_transformation_mode",
                                                      context.node.op->since < 16 ? "output_half_pixel" : "half_pixel");
  if (transform != "half_pixel" && transform != "output_half_pixel") {
    context.fail("attribute 'coordinate_transformation_mode' is '" + transform + "'");
  }
  const double scale = attributes.get_float("spatial_scale", 1), offset = transform == "half_pixel" ? 0.5 : 0;
  double height = roi[3] * scale - roi[1] * scale, width = roi[2] * scale - roi[0] * scale;
  if (transform != "half_pixel") {  // malformed boxes become 1 x 1
    height = std::max(height, 1.0);
    width = std::max(width, 1.0);
  }
  RoiGrid grid{roi[1] * scale - offset,
               roi[0] * scale - offset,
               height / static_cast<double>(out_height),
               width / static_cast<double>(out_width),
               0,
               0};
  const int64_t ratio = attributes.get_int("sampling_ratio", 0);
  const double samples_y = ratio > 0 ? static_cast<double>(ratio) : std::ceil(grid.bin_height),
               samples_x = ratio > 0 ? static_cast<double>(ratio) : std::ceil(grid.bin_width);
  if (!(std::max(samples_y, 1.0) * std::max(samples_x, 1.0) <= kMostSamples)) {
    context.fail("a box needs too many samples");
  }
  grid.samples_y = static_cast<int64_t>(samples_y);
  grid.samples_x = static_cast<int64_t>(samples_x);
  return grid;
}

double pooled(const double* plane, int64_t height, int64_t width, const RoiGrid& grid, int64_t row, int64_t column,
              bool takes_max) {
  double sum = 0, largest = -std::numeric_limits<double>::infinity();
  bool has_sample = false;
  for (int64_t i = 0; i < grid.samples_y; ++i) {
    const double y = grid.start_y +
                     (static_cast<double>(row) + (static_cast<double>(i) + 0.5) / static_cast<double>(grid.samples_y)) *
                         grid.bin_height;
    for (int64_t j = 0; j < grid.samples_x; ++j) {
      const double x = grid.start_x + (static_cast<double>(column) +
                                       (static_cast<double>(j) + 0.5) / static_cast<double>(grid.samples_x)) *
                                          grid.bin_width;
      const Bilinear at = bilinear_at(y, x, height, width);
      const double parts[4] = {
          at.weights[0] * plane[at.low_y * width + at.low_x], at.weights[1] * plane[at.low_y * width + at.high_x],
          at.weights[2] * plane[at.high_y * width + at.low_x], at.weights[3] * plane[at.high_y * width + at.high_x]};
      sum += parts[0] + parts[1] + parts[2] + parts[3];
      largest = std::max({largest, parts[0], parts[1], parts[2], parts[3]});
      has_sample = true;
    }
  }
  if (takes_max) return has_sample ? largest : 0;
  return sum / static_cast<double>(std::max<int64_t>(1, grid.samples_y * grid.samples_x));
}

void run_roi_align(ReferenceContext& context) {
  const Tensor &x = context.inputs[0], &rois = context.inputs[1];
  if (x.rank() != 4 || rois.rank() != 2 || rois.dims()[1] != 4) {
    context.fail("X is " + to_string(x.dims()) + ", rois " + to_string(rois.dims()));
  }
  const std::vector<int64_t> images = integers_of(context, context.inputs[2], "input 2 (batch_indices)");
  if (static_cast<int64_t>(images.size()) != rois.dims()[0]) context.fail("batch_indices and rois differ in number");
  const std::string mode = context.node.attributes.get_string("mode", "avg");
  if (mode != "avg" && mode != "max") context.fail("attribute 'mode' is '" + mode + "'");
  const int64_t out_height = positive_attribute(context, "output_height"),
                out_width = positive_attribute(context, "output_width");
  const int64_t channels = x.dims()[1], height = x.dims()[2], width = x.dims()[3];
  Tensor result = make_output(context, x.dtype(), {rois.dims()[0], channels, out_height, out_width});
  if (result.size() > 0 && height * width == 0) context.fail("X is empty");
  const std::vector<double> values = reals_of(x), boxes = reals_of(rois);
  int64_t at = 0;
  for (size_t n = 0; n < images.size(); ++n) {
    if (images[n] < 0 || images[n] >= x.dims()[0]) context.fail("batch index " + std::to_string(images[n]));
    const RoiGrid grid = roi_grid(context, boxes.data() + n * 4, out_height, out_width);
    for (int64_t c = 0; c < channels; ++c) {
      const double* plane = values.data() + (images[n] * channels + c) * height * width;
      for (int64_t row = 0; row < out_height; ++row) {
        for (int64_t column = 0; column < out_width; ++column) {
          store_real(result, at++, pooled(plane, height, width, grid, row, column, mode == "max"));
        }
      }
    }
  }
  context.outputs[0] = std::move(result);
}

// ---- MaxRoiPool

template <class Context>
std::vector<int64_t> pooled_shape(const Context& context) {
  const std::vector<int64_t> shape = context.node.attributes.get_ints("pooled_shape");
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1) context.fail("attribute 'pooled_shape' is not two extents");
  return shape;
}

void infer_max_roi_pool(InferContext& context) {
  const TensorType &x = context.input(0), &rois = context.input(1);
  const std::vector<int64_t> shape = pooled_shape(context);
  TensorType result = ranked(x.dtype, 4);
  if (rois.has_rank && rois.rank() > 0) result.dims[0] = rois.dims[0];
  if (x.has_rank && x.rank() == 4) result.dims[1] = x.dims[1];
  result.dims[2] = known_dim(shape[0]);
  result.dims[3] = known_dim(shape[1]);
  context.set_output(0, std::move(result));
}

// The pixels of bin `i` of `bins` in a box of `extent` that begins at `start`, within the picture.
struct Span {
  int64_t begin, end;
};
Span bin_span(int64_t i, int64_t bins, double start, double extent, int64_t picture) {
  const double size = extent / static_cast<double>(bins);
  const auto clip = [&](double value) {
    return static_cast<int64_t>(std::clamp(value + start, 0.0, static_cast<double>(picture)));
  };
  return {clip(std::floor(static_cast<double>(i) * size)), clip(std::ceil(static_cast<double>(i + 1) * size))};
}

void run_max_roi_pool(ReferenceContext& context) {
  const Tensor &x = context.inputs[0], &rois = context.inputs[1];
  if (x.rank() != 4 || rois.rank() != 2 || rois.dims()[1] != 5) {
    context.fail("X is " + to_string(x.dims()) + ", rois " + to_string(rois.dims()));
  }
  const std::vector<int64_t> shape = pooled_shape(context);
  const double scale = context.node.attributes.get_float("spatial_scale", 1);
  const int64_t channels = x.dims()[1], height = x.dims()[2], width = x.dims()[3];
  Tensor result = make_output(context, x.dtype(), {rois.dims()[0], channels, shape[0], shape[1]});
  const std::vector<double> values = reals_of(x), boxes = reals_of(rois);
  int64_t at = 0;
  for (int64_t n = 0; n < rois.dims()[0]; ++n) {
    const double* box = boxes.data() + n * 5;
    if (!(box[0] >= 0 && box[0] < static_cast<double>(x.dims()[0]))) context.fail("batch index out of range");
    for (int i = 1; i < 5; ++i) {
      if (!std::isfinite(box[i])) context.fail("a box is not finite");
    }
    const double left = std::round(box[1] * scale), top = std::round(box[2] * scale);
    const double box_width = std::max(std::round(box[3] * scale) - left + 1, 1.0),
                 box_height = std::max(std::round(box[4] * scale) - top + 1, 1.0);
    for (int64_t c = 0; c < channels; ++c) {
      const double* plane = values.data() + (static_cast<int64_t>(box[0]) * channels + c) * height * width;
      for (IndexWalk bin(Dims{shape[0], shape[1]}); !bin.done(); bin.next()) {
        const Span rows = bin_span(bin.index()[0], shape[0], top, box_height, height),
                   columns = bin_span(bin.index()[1], shape[1], left, box_width, width);
        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t y = rows.begin; y < rows.end; ++y) {
          for (int64_t i = columns.begin; i < columns.end; ++i) largest = std::max(largest, plane[y * width + i]);
        }
        store_real(result, at++, rows.begin < rows.end && columns.begin < columns.end ? largest : 0);
      }
    }
  }
  context.outputs[0] = std::move(result);
}

// ---- NonMaxSuppression

void infer_non_max_suppression(InferContext& context) {
  TensorType result = ranked(DType::i64, 2);
  result.dims[1] = known_dim(3);
  context.set_output(0, std::move(result));
}

struct Box {
  float top, left, bottom, right;
  float area() const { return (bottom - top) * (right - left); }
};

Box box_of(const float* at, bool is_centered) {
  if (is_centered) return {at[1] - at[3] / 2, at[0] - at[2] / 2, at[1] + at[3] / 2, at[0] + at[2] / 2};
  return {std::min(at[0], at[2]), std::min(at[1], at[3]), std::max(at[0], at[2]), std::max(at[1], at[3])};
}

bool overlaps(const Box& a, const Box& b, float threshold) {
  const float height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top),
              width = std::min(a.right, b.right) - std::max(a.left, b.left);
  if (!(height > 0) || !(width > 0)) return false;
  const float common = height * width, all = a.area() + b.area() - common;
  if (!(a.area() > 0) || !(b.area() > 0) || !(all > 0)) return false;
  return common / all > threshold;
}

void run_non_max_suppression(ReferenceContext& context) {
  const Tensor &boxes = context.inputs[0], &scores = context.inputs[1];
  if (boxes.rank() != 3 || scores.rank() != 3 || boxes.dims()[2] != 4 || scores.dims()[0] != boxes.dims()[0] ||
      scores.dims()[2] != boxes.dims()[1] || boxes.dtype() != DType::f32 || scores.dtype() != DType::f32) {
    context.fail("boxes are " + to_string(boxes.dims()) + ", scores " + to_string(scores.dims()));
  }
  const int64_t count = boxes.dims()[1], classes = scores.dims()[1];
  const int64_t most = context.has_input(2) ? integer_scalar(context, context.inputs[2], "input 2") : 0;
  const auto threshold = [&](size_t i) {
    return static_cast<float>(real_scalar(context, context.inputs[i], "a threshold"));
  };
  const float iou = context.has_input(3) ? threshold(3) : 0.0f;
  const bool is_centered = context.node.attributes.get_int("center_point_box", 0) != 0;
  std::vector<int64_t> selected;
  for (int64_t item = 0; item < boxes.dims()[0] * classes && most > 0; ++item) {
    const float* score = scores.data<float>() + item * count;
    const float* box = boxes.data<float>() + item / classes * count * 4;
    std::vector<int64_t> order;
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isnan(score[i]) && (!context.has_input(4) || score[i] > threshold(4))) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return score[a] > score[b]; });
    std::vector<Box> kept;
    for (const int64_t i : order) {
      if (static_cast<int64_t>(kept.size()) >= most) break;
      const Box candidate = box_of(box + i * 4, is_centered);
      if (std::any_of(kept.begin(), kept.end(), [&](const Box& other) { return overlaps(candidate, other, iou); }))
        continue;
      kept.push_back(candidate);
      selected.insert(selected.end(), {item / classes, item % classes, i});
    }
  }
  context.outputs[0] =
      Tensor::from<int64_t>({static_cast<int64_t>(selected.size()) / 3, 3}, std::span<const int64_t>(selected));
}

OpDef roi_align(int since, int until, bool has_transform) {
  using Kind = AttributeSpec::Kind;
  std::vector<AttributeSpec> attributes{{"mode", Kind::string},
                                        {"output_height", Kind::integer},
                                        {"output_width", Kind::integer},
                                        {"sampling_ratio", Kind::integer},
                                        {"spatial_scale", Kind::real}};
  if (has_transform) attributes.push_back({"coordinate_transformation_mode", Kind::string});
  return {.schema = {.name = "RoiAlign",
                     .since = since,
                     .until = until,
                     .min_inputs = 3,
                     .max_inputs = 3,
                     .attributes = std::move(attributes),
                     .infer = infer_roi_align,
                     .reference = run_roi_align}};
}

}  // namespace

std::vector<OpDef> regions_ops() {
  using Kind = AttributeSpec::Kind;
  return {roi_align(10, 15, false),
          roi_align(16, 1 << 20, true),
          {.schema = {.name = "MaxRoiPool",
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"pooled_shape", Kind::integers, true}, {"spatial_scale", Kind::real}},
                      .infer = infer_max_roi_pool,
                      .reference = run_max_roi_pool}},
          {.schema = {.name = "NonMaxSuppression",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 5,
                      .attributes = {{"center_point_box", Kind::integer}},
                      .infer = infer_non_max_suppression,
                      .reference = run_non_max_suppression}}};
}

}  // namespace lathe::ops
