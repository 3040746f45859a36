#include "ops/conv/conv_source.h"

#include <algorithm>
#include <cstring>

#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Writes so many floats, and reads about as many.
Step copy_step(const char* kernel, BufferId source, BufferId target, int threads, int64_t floats) {
  Step step{.kernel = kernel, .reads = {source}, .writes = {target}, .threads = threads};
  step.bytes = 8.0 * static_cast<double>(floats);
  return step;
}

// Every `stride`-th of `count` pixels; their extent known while compiling, so that each is a move or two.
template <int kLanes>
void take_row(const float* from, int64_t count, int64_t stride, float* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * kLanes, from + i * stride * kLanes, kLanes * sizeof(float));
}

}  // namespace

Step take_pixels_step(BufferId source, BufferId target, int64_t blocks, int lanes, const ConvAxis& y, const ConvAxis& x,
                      int threads) {
  Step step = copy_step("take pixels", source, target, threads, blocks * y.out * x.out * lanes);
  step.run = [=](const StepArgs& args) {
    // Of all blocks the same: pixels that this thread wrote, and will multiply.
    const Range rows = split_evenly(static_cast<long>(y.out), args.share, args.shares);
    const auto take = lanes == 16 ? take_row<16> : take_row<8>;
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const float* from = args.at<const float>(source) + (block * y.in + row * y.stride) * x.in * lanes;
        take(from, x.out, x.stride, args.at<float>(target) + (block * y.out + row) * x.out * lanes);
      }
    }
  };
  return step;
}

Step pad_pixels_step(BufferId source, BufferId target, int64_t blocks, int lanes, const PaddedPixels& pixels,
                     int threads) {
  Step step = copy_step("pad pixels", source, target, threads, blocks * pixels.all_rows * pixels.all_columns * lanes);
  step.run = [=](const StepArgs& args) {
    const Range rows = split_evenly(static_cast<long>(blocks * pixels.all_rows), args.share, args.shares);
    const int64_t length = pixels.columns * lanes, before = pixels.left * lanes, all = pixels.all_columns * lanes;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t block = row / pixels.all_rows, y = row % pixels.all_rows - pixels.top;
      float* to = args.at<float>(target) + row * all;
      if (y < 0 || y >= pixels.rows) {
        std::fill(to, to + all, 0.0F);
        continue;
      }
      const float* from = args.at<const float>(source) + (block * pixels.rows + y) * length;
      std::fill(to, to + before, 0.0F);
      std::copy(from, from + length, to + before);
      std::fill(to + before + length, to + all, 0.0F);
    }
  };
  return step;
}

Step take_frames_step(BufferId source, BufferId target, const Dims& dims, int lanes, const FrameOrder& order,
                      bool are_outer, int threads) {
  const int64_t blocks = divide_up(dims[1], lanes), row = dims[4] * lanes, floats = dims[3] * row;
  const auto places = static_cast<int64_t>(order.frames.size());
  const int64_t in_last = dims[1] - (blocks - 1) * lanes;  // channels
  const int64_t top = order.top * row, bottom = order.bottom * row, whole = top + floats + bottom;
  Step step = copy_step("take frames", source, target, threads, dims[0] * places * blocks * whole);
  step.run = [=, frames = order.frames](const StepArgs& args) {
    const Range range = split_evenly(static_cast<long>(dims[0] * places * blocks), args.share, args.shares);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t volume = i / (blocks * places), within = i % (blocks * places);
      const int64_t block = are_outer ? within % blocks : within / places;
      const int64_t frame = frames[static_cast<size_t>(are_outer ? within / blocks : within % places)];
      float* to = args.at<float>(target) + i * whole;
      if (frame < 0) {
        std::fill(to, to + whole, 0.0F);
        continue;
      }
      const float* from = args.at<const float>(source) + ((volume * blocks + block) * dims[2] + frame) * floats;
      std::fill(to, to + top, 0.0F);
      std::copy(from, from + floats, to + top);
      std::fill(to + top + floats, to + whole, 0.0F);
      if (block + 1 < blocks || in_last == lanes) continue;
      // The weights there are zero, too, but zero times infinity is none.
      for (int64_t pixel = 0; pixel < whole; pixel += lanes) std::fill(to + pixel + in_last, to + pixel + lanes, 0.0F);
    }
  };
  return step;
}

}  // namespace lathe
