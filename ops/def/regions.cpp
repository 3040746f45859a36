// RoiAlign and MaxRoiPool: regions of a picture, each as a map of one size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_nest.h"
#include "ops/copy/copy_step.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

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

// The node's attributes.
struct RoiSampling {
  double scale = 1;
  bool is_half_pixel = true;
  int64_t ratio = 0, out_height = 1, out_width = 1;

  RoiGrid grid_of(double left, double top, double right, double bottom) const {
    const double offset = is_half_pixel ? 0.5 : 0;
    double height = bottom * scale - top * scale, width = right * scale - left * scale;
    if (!is_half_pixel) {  // malformed boxes become 1 x 1
      height = std::max(height, 1.0);
      width = std::max(width, 1.0);
    }
    RoiGrid grid{top * scale - offset,
                 left * scale - offset,
                 height / static_cast<double>(out_height),
                 width / static_cast<double>(out_width),
                 0,
                 0};
    const double samples_y = ratio > 0 ? static_cast<double>(ratio) : std::ceil(grid.bin_height),
                 samples_x = ratio > 0 ? static_cast<double>(ratio) : std::ceil(grid.bin_width);
    // Too many, or no numbers: -1.
    const bool fits = std::max(samples_y, 1.0) * std::max(samples_x, 1.0) <= kMostSamples;
    grid.samples_y = fits ? static_cast<int64_t>(samples_y) : -1;
    grid.samples_x = fits ? static_cast<int64_t>(samples_x) : -1;
    return grid;
  }
};

template <class Context>
RoiSampling roi_sampling(const Context& context) {
  const Attributes& attributes = context.node.attributes;
  const std::string transform = attributes.get_string("coordinate_transformation_mode",
                                                      context.node.op->since < 16 ? "output_half_pixel" : "half_pixel");
  if (transform != "half_pixel" && transform != "output_half_pixel") {
    context.fail("attribute 'coordinate_transformation_mode' is '" + transform + "'");
  }
  return {static_cast<double>(attributes.get_float("spatial_scale", 1)), transform == "half_pixel",
          attributes.get_int("sampling_ratio", 0), positive_attribute(context, "output_height"),
          positive_attribute(context, "output_width")};
}

// Calls visit(y, x) for each sample of one bin.
template <class Visit>
void visit_samples(const RoiGrid& grid, int64_t row, int64_t column, Visit visit) {
  const auto place = [](double start, int64_t bin, double extent, int64_t i, int64_t samples) {
    const double part = (static_cast<double>(i) + 0.5) / static_cast<double>(samples);
    return start + (static_cast<double>(bin) + part) * extent;
  };
  for (int64_t i = 0; i < grid.samples_y; ++i) {
    const double y = place(grid.start_y, row, grid.bin_height, i, grid.samples_y);
    for (int64_t j = 0; j < grid.samples_x; ++j) {
      visit(y, place(grid.start_x, column, grid.bin_width, j, grid.samples_x));
    }
  }
}

double pooled(const double* plane, int64_t height, int64_t width, const RoiGrid& grid, int64_t row, int64_t column,
              bool takes_max) {
  double sum = 0, largest = -std::numeric_limits<double>::infinity();
  bool has_sample = false;
  visit_samples(grid, row, column, [&](double y, double x) {
    const Bilinear at = bilinear_at(y, x, height, width);
    const double parts[4] = {
        at.weights[0] * plane[at.low_y * width + at.low_x], at.weights[1] * plane[at.low_y * width + at.high_x],
        at.weights[2] * plane[at.high_y * width + at.low_x], at.weights[3] * plane[at.high_y * width + at.high_x]};
    sum += parts[0] + parts[1] + parts[2] + parts[3];
    largest = std::max({largest, parts[0], parts[1], parts[2], parts[3]});
    has_sample = true;
  });
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
  const RoiSampling sampling = roi_sampling(context);
  const int64_t out_height = sampling.out_height, out_width = sampling.out_width;
  const int64_t channels = x.dims()[1], height = x.dims()[2], width = x.dims()[3];
  Tensor result = make_output(context, x.dtype(), {rois.dims()[0], channels, out_height, out_width});
  if (result.size() > 0 && height * width == 0) context.fail("X is empty");
  const std::vector<double> values = reals_of(x), boxes = reals_of(rois);
  int64_t at = 0;
  for (size_t n = 0; n < images.size(); ++n) {
    if (images[n] < 0 || images[n] >= x.dims()[0]) context.fail("batch index " + std::to_string(images[n]));
    const double* box = boxes.data() + n * 4;
    const RoiGrid grid = sampling.grid_of(box[0], box[1], box[2], box[3]);
    if (grid.samples_y < 0) context.fail("a box needs too many samples");
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

// ---- Lowering of means: the picture is turned so that a pixel's channels lie side by side, and are mixed as vectors

struct RoiMeans {
  RoiSampling sampling;
  int64_t images, channels, height, width;
  BufferId pixels, boxes, places, out, sums;
  CopyNest turn;  // [bin][channel] to [channel][bin]

  int64_t bins() const { return sampling.out_height * sampling.out_width; }
  RoiGrid grid_of(const float* box) const {
    return sampling.grid_of(static_cast<double>(box[0]), static_cast<double>(box[1]), static_cast<double>(box[2]),
                            static_cast<double>(box[3]));
  }

  [[gnu::target("avx2,fma")]] static void mix(const Bilinear& at, const float* picture, int64_t width, int64_t channels,
                                              float* sum) {
    const float *a = picture + (at.low_y * width + at.low_x) * channels,
                *b = picture + (at.low_y * width + at.high_x) * channels,
                *c = picture + (at.high_y * width + at.low_x) * channels,
                *d = picture + (at.high_y * width + at.high_x) * channels;
    const auto p = static_cast<float>(at.weights[0]), q = static_cast<float>(at.weights[1]),
               r = static_cast<float>(at.weights[2]), s = static_cast<float>(at.weights[3]);
    for (int64_t i = 0; i < channels; ++i) sum[i] += p * a[i] + q * b[i] + r * c[i] + s * d[i];
  }

  void run(const StepArgs& args, int64_t roi) const {
    const RoiGrid grid = grid_of(args.at<const float>(boxes) + roi * 4);
    const float* picture =
        args.at<const float>(pixels) + args.at<const int64_t>(places)[roi] * height * width * channels;
    const auto scale =
        static_cast<float>(1.0 / static_cast<double>(std::max<int64_t>(1, grid.samples_y * grid.samples_x)));
    float* sum = args.own<float>(sums);
    for (int64_t bin = 0; bin < bins(); ++bin) {
      float* to = sum + bin * channels;
      std::fill_n(to, channels, 0.0f);
      visit_samples(grid, bin / sampling.out_width, bin % sampling.out_width, [&](double y, double x) {
        Bilinear at = bilinear_at(y, x, height, width);
        for (double& weight : at.weights) weight *= static_cast<double>(scale);
        mix(at, picture, width, channels, to);
      });
    }
    turn.run(sum, args.at<float>(out) + roi * channels * bins());
  }

  // On the calling thread, where an error can be reported.
  void check(const StepArgs& args, int64_t rois, const Node& node) const {
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorCode::invalid_argument, "node '" + node.name + "' (RoiAlign): " + what);
    };
    for (int64_t i = 0; i < rois; ++i) {
      const int64_t image = args.at<const int64_t>(places)[i];
      if (image < 0 || image >= images) fail("batch index " + std::to_string(image));
      if (grid_of(args.at<const float>(boxes) + i * 4).samples_y < 0) fail("a box needs too many samples");
    }
  }
};

bool lower_roi_align(LowerContext& context) {
  const TensorType &x = context.input_type(0), &boxes = context.input_type(1), &places = context.input_type(2);
  const bool is_mean = context.node.attributes.get_string("mode", "avg") == "avg";
  if (x.dtype != DType::f32 || boxes.dtype != DType::f32 || places.dtype != DType::i64 || !is_mean) return false;
  if (x.rank() != 4 || boxes.rank() != 2 || places.rank() != 1) return false;
  const Dims dims = x.extents();
  const int64_t rois = boxes.extents()[0], channels = dims[1], pixels = dims[2] * dims[3];
  if (boxes.extents()[1] != 4 || places.extents()[0] != rois || pixels == 0) return false;
  if (rois * channels == 0) return true;
  const InferContext messages(context.node, {}, {});
  const RoiSampling sampling = roi_sampling(messages);
  const int64_t bins = sampling.out_height * sampling.out_width;
  const BufferId turned = context.scratch(x.storage_bytes());
  const CopyJob turn{context.buffer(context.input(0)),
                     turned,
                     0,
                     0,
                     {{dims[0], channels * pixels, channels * pixels}, {channels, pixels, 1}, {pixels, 1, channels}}};
  const RoiMeans means{sampling,
                       dims[0],
                       channels,
                       dims[2],
                       dims[3],
                       turned,
                       context.buffer(context.input(1)),
                       context.buffer(context.input(2)),
                       context.buffer(context.output(0)),
                       context.thread_scratch(static_cast<size_t>(bins * channels) * sizeof(float)),
                       CopyNest({{channels, 1, bins}, {bins, channels, 1}}, sizeof(float), context.target.isa)};
  Step check;
  check.kernel = "check boxes";
  check.reads = {means.boxes, means.places};
  check.run = [means, rois, node = &context.node](const StepArgs& args) { means.check(args, rois, *node); };
  context.add(std::move(check));
  if (!add_copy_step(context, DType::f32, {turn})) return false;
  Step step;
  step.kernel = "means of boxes";
  step.reads = {turned, means.boxes, means.places, means.sums};
  step.writes = {means.out, means.sums};
  constexpr double kUsualSamples = 4;
  step.flop = 8 * kUsualSamples * static_cast<double>(rois * channels * bins);
  step.threads = static_cast<int>(std::min<int64_t>(worthwhile_threads(step.flop, context.target.threads), rois));
  step.shares = worthwhile_shares(step.flop, step.threads);
  step.run = [means, rois](const StepArgs& args) {
    const Range own = split_evenly(rois, args.share, args.shares);
    for (int64_t roi = own.begin; roi < own.end; ++roi) means.run(args, roi);
  };
  context.add(std::move(step));
  return true;
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
                     .reference = run_roi_align},
          .lower = lower_roi_align};
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
                      .reference = run_max_roi_pool}}};
}

}  // namespace lathe::ops
