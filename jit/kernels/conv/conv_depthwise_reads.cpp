// From the taps of a depthwise convolution of bytes to reads of neighbouring pixels.
#include <algorithm>
#include <map>
#include <set>

#include "jit/kernels/conv/conv_depthwise_int8.h"
#include "jit/kernels/conv/conv_tiling.h"

namespace lathe {

// Each output takes its taps from left to right, always by the read that reaches furthest to the right.
DepthwiseReads make_depthwise_reads(const ConvAxis& axis, int group, int step, int64_t cols) {
  DepthwiseReads result;
  std::map<int64_t, std::vector<DepthwiseUse>> uses;
  const auto set_of = [&](const DepthwiseLanes& lanes) {
    const auto at = std::find(result.sets.begin(), result.sets.end(), lanes);
    if (at == result.sets.end()) result.sets.push_back(lanes);
    return static_cast<int>(std::find(result.sets.begin(), result.sets.end(), lanes) - result.sets.begin());
  };
  const int64_t origin = axis.taps[0].offset;
  for (int64_t col = 0; col < cols; ++col) {
    const auto place = [&](size_t tap) { return col * axis.stride + axis.taps[tap].offset; };
    for (size_t tap = 0; tap < axis.taps.size();) {
      const int64_t first = origin + (place(tap) - origin) / step * step;
      DepthwiseLanes lanes(static_cast<size_t>(group), -1);
      for (; tap < axis.taps.size() && place(tap) < first + group; ++tap) {
        lanes[static_cast<size_t>(place(tap) - first)] = static_cast<int>(tap);
      }
      uses[first].push_back({col, set_of(lanes)});
    }
  }
  for (auto& [first, users] : uses) result.reads.push_back({first, std::move(users)});
  return result;
}

DepthwiseInt8Work depthwise_int8_work(const DepthwiseInt8Plan& plan, const ConvShape& shape) {
  DepthwiseInt8Work work;
  std::map<int64_t, int64_t> widths;
  for (const ConvPart& part : sorted_parts(shape.x.out, plan.cols)) ++widths[part.size];
  double products = 0, reads = 0;  // of an input row
  for (const auto& [size, count] : widths) {
    const DepthwiseReads row = make_depthwise_reads(shape.x, group_of(plan.dot), plan.step, size);
    reads += static_cast<double>(row.reads.size()) * static_cast<double>(count);
    // Four pixels, two or one at a time.
    work.stores += static_cast<double>((size / 4 + size % 4 / 2 + size % 2) * count * shape.y.out);
    for (const DepthwiseRead& read : row.reads)
      products += static_cast<double>(read.uses.size()) * static_cast<double>(count);
  }
  double tiles = 0;
  for (const ConvPart& part : sorted_parts(shape.y.out, plan.rows)) {
    std::set<int64_t> rows;
    for (int64_t row = 0; row < part.size; ++row) {
      for (const ConvTap& tap : shape.y.taps) rows.insert(row * shape.y.stride + tap.offset);
    }
    work.reads += static_cast<double>(rows.size()) * reads;
    ++tiles;
  }
  work.products = products * static_cast<double>(shape.y.out) * static_cast<double>(shape.y.taps.size());
  work.tiles = tiles * static_cast<double>((shape.x.out + plan.cols - 1) / plan.cols);
  return work;
}

}  // namespace lathe
