#include "ops/conv/pixel_shuffle.h"

#include <algorithm>
#include <cstring>

#include "ops/conv/conv_operands.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// `in`: pixels of `lanes` channels each, a window's row of x values at the front of each.
void spread_row(const float* in, int64_t pixels, int lanes, int64_t x, float* out) {
  if (x == 2) {
    for (int64_t i = 0; i < pixels; ++i) std::memcpy(out + 2 * i, in + i * lanes, 2 * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < pixels; ++i) {
    for (int64_t j = 0; j < x; ++j) out[i * x + j] = in[i * lanes + j];
  }
}

}  // namespace

bool can_shuffle_pixels(const LowerContext& context, const PixelShuffle& shuffle) {
  const int lanes = vector_lanes(context.target.isa);
  if (context.output_type(0).layout.channel_block != 0 || 2 * shuffle.channels > lanes) return false;
  if (context.has_input(2) && !context.constant(2).defined()) return false;
  const std::vector<ValueId> operands = context.epilogue_inputs();
  return std::all_of(operands.begin(), operands.end(), [&](ValueId id) {
    const Dims dims = context.type(id).extents();
    return std::all_of(dims.begin(), dims.end(), [](int64_t extent) { return extent == 1; });
  });
}

BufferId bind_shuffled_bias(const LowerContext& context, const PixelShuffle& shuffle, int lanes) {
  const int64_t window = shuffle.y * shuffle.x;
  const Tensor constant = context.constant(2);
  return context.constant_buffer(
      context.packed(context.input(2), "channels c" + std::to_string(lanes) + " x" + std::to_string(window), [&] {
        std::vector<float> repeated;
        for (int64_t c = 0; c < shuffle.channels; ++c)
          repeated.insert(repeated.end(), window, constant.data<float>()[c]);
        const int64_t channels = shuffle.channels * window;
        return pad_channels(Tensor::from<float>({channels}, repeated), channels, lanes);
      }));
}

Step shuffle_step(BufferId blocked, BufferId plain, const Dims& dims, const PixelShuffle& shuffle, int lanes,
                  int threads) {
  const int64_t width = dims.back(), height = dims.size() > 3 ? dims[2] : 1;
  const int64_t rows = dims[0] * shuffle.channels * height * shuffle.y;
  const int64_t blocks = divide_up(shuffle.channels * shuffle.y * shuffle.x, lanes);
  Step step;
  step.kernel = "pixel shuffle";
  step.reads = {blocked};
  step.writes = {plain};
  step.threads = threads;
  step.bytes = 4.0 * static_cast<double>(dims[0] * blocks * lanes * height * width + rows * width * shuffle.x);
  step.run = [=](const StepArgs& args) {
    const auto* in = args.at<const float>(blocked);
    auto* out = args.at<float>(plain);
    const Range range = split_evenly(static_cast<long>(rows), args.share, args.shares);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t window_y = row % shuffle.y, y = row / shuffle.y % height;
      const int64_t plane = row / (shuffle.y * height), image = plane / shuffle.channels;
      float* to = out + row * width * shuffle.x;
      const int64_t first = (plane % shuffle.channels * shuffle.y + window_y) * shuffle.x;
      const auto channel = [&](int64_t c) {
        return in + (((image * blocks + c / lanes) * height + y) * width) * lanes + c % lanes;
      };
      if (first % lanes + shuffle.x <= lanes) {
        spread_row(channel(first), width, lanes, shuffle.x, to);
        continue;
      }
      for (int64_t x = 0; x < shuffle.x; ++x) {
        for (int64_t i = 0; i < width; ++i) to[i * shuffle.x + x] = channel(first + x)[i * lanes];
      }
    }
  };
  return step;
}

}  // namespace lathe
