// Weights of a convolution of integers in the order in which its kernels stream them.
#include <algorithm>
#include <cstring>

#include "ops/conv/conv_int8_program.h"
#include "ops/int8/int8_crossed.h"

namespace lathe {
namespace {

// Four signed bytes, and their sum.
int32_t pack_quad(const uint8_t* from, int64_t count, int64_t stride, char* out) noexcept {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<int8_t>(from[i * stride]);
    out[i] = static_cast<char>(value);
    sum += value;
  }
  return sum;
}

// Two bytes less their zero point as 16-bit integers, and their sum.
int32_t pack_pair(const uint8_t* from, int64_t count, int64_t stride, bool is_signed, int32_t zero,
                  char* out) noexcept {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t byte = from[i * stride];
    const auto value = static_cast<int16_t>((is_signed ? static_cast<int8_t>(byte) : byte) - zero);
    std::memcpy(out + 2 * i, &value, sizeof value);
    sum += value;
  }
  return sum;
}

}  // namespace

void ConvInt8Program::pack(const ByteMatrix& weights, const ByteZeros& zeros, void* packed, int32_t* sums) const {
  const ConvProblem& shape = problem_.shape;
  const int64_t taps = shape.phases[0].taps(), lanes = shape.lanes, in_lanes = shape.in_lanes();
  const int64_t group_size = group_of(problem_.dot);
  const bool is_wide = lathe::is_wide(problem_.dot);
  const int64_t in_each = problem_.in_channels / problem_.channel_groups;
  const int64_t out_each = shape.out_channels / problem_.channel_groups;
  const auto* bytes = static_cast<const uint8_t*>(weights.data);
  auto* out = static_cast<char*>(packed);
  std::fill(sums, sums + shape.out_blocks() * lanes, 0);
  // One group of input channels of one tap, for the lanes of some output blocks.
  const auto pack_step = [&](const ConvBlockGroup& group, int64_t step, int64_t tap) {
    const int64_t in = step * group_size;
    const int64_t end = (group.first + group.count) * lanes;
    for (int64_t channel = group.first * lanes; channel < end; ++channel, out += 4) {
      std::memset(out, 0, 4);
      if (channel >= weights.rows) continue;
      const int64_t own = channel / out_each * in_each;  // the first channel that it reads
      const int64_t first = std::max(in, own), count = std::min(in + group_size, own + in_each) - first;
      if (count <= 0) continue;
      const uint8_t* from = bytes + channel * weights.row_stride + (first - own) * taps + tap;
      char* to = out + (first - in) * (is_wide ? 2 : 1);
      sums[channel] += is_wide ? pack_pair(from, count, taps, weights.is_signed, zeros.at(channel), to)
                               : pack_quad(from, count, taps, to);
    }
  };
  for (const ConvBlockGroup& group : groups_) {
    const int64_t begin = group.in_first * in_lanes, end = begin + groups_read(group);
    for (int64_t first = begin; first < end; first += in_lanes) {
      const int64_t last = std::min(first + in_lanes, end);
      for (int64_t tap = 0; tap < taps; ++tap) {
        for (int64_t step = first; step < last; ++step) pack_step(group, step, tap);
      }
    }
  }
  if (problem_.dot != Int8Dot::crossed) return;
  for (const ConvBlockGroup& group : groups_) {
    const int64_t columns = group.count * lanes;
    crossed_column_sums(static_cast<const char*>(packed) + weights_at(group), {problem_.dot, problem_.isa, columns},
                        groups_read(group) * taps * group_size, columns, sums + group.first * lanes);
  }
}

}  // namespace lathe
