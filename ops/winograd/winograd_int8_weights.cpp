#include "ops/winograd/winograd_int8_weights.h"

#include <algorithm>
#include <cstring>

namespace lathe {
namespace {

constexpr int kSize = WinogradInt8::kSize, kTaps = WinogradInt8::kTaps, kFrequencies = WinogradInt8::kFrequencies;
constexpr int kMostLanes = 16, kMostPairs = 2 * kMostLanes;
using Windows = int32_t[kTaps][kTaps][kMostPairs];  // of pairs of input channels, by output channel

// kWeights * window * kWeights^T.
void transform_weights(const Windows& windows, int16_t (&out)[kFrequencies][kMostPairs]) {
  int32_t once[kSize][kTaps][kMostPairs];
  for (int row = 0; row < kSize; ++row) {
    const auto& factors = WinogradInt8::kWeights[row];
    for (int x = 0; x < kTaps; ++x) {
      for (int i = 0; i < kMostPairs; ++i) {
        once[row][x][i] = factors[0] * windows[0][x][i] + factors[1] * windows[1][x][i] + factors[2] * windows[2][x][i];
      }
    }
  }
  for (int frequency = 0; frequency < kFrequencies; ++frequency) {
    const auto& from = once[frequency / kSize];
    const auto& factors = WinogradInt8::kWeights[frequency % kSize];
    for (int i = 0; i < kMostPairs; ++i) {
      out[frequency][i] =
          static_cast<int16_t>(factors[0] * from[0][i] + factors[1] * from[1][i] + factors[2] * from[2][i]);
    }
  }
}

int weight_at(const ByteMatrix& weights, int64_t channel, int64_t i, int32_t zero) {
  const uint8_t byte = static_cast<const uint8_t*>(weights.data)[channel * weights.row_stride + i];
  return (weights.is_signed ? static_cast<int8_t>(byte) : byte) - zero;
}

}  // namespace

bool stays_exact(const WinogradInt8Problem& problem, const ByteMatrix& weights, const ByteZeros& zeros,
                 std::span<const int32_t> bias) {
  const int64_t least = (problem.is_signed ? -128 : 0) - problem.zero, most = least + 255;
  // A pixel beyond the border counts as the zero point, whatever that is.
  const int64_t low = std::min<int64_t>(least, 0), high = std::max<int64_t>(most, 0);
  if (most - least > 255 || low < -255 || high > 255) return false;
  for (int64_t channel = 0; channel < weights.rows; ++channel) {
    int64_t positive = 0, negative = 0;
    for (int64_t i = 0; i < weights.columns; ++i) {
      const int weight = weight_at(weights, channel, i, zeros.at(channel));
      (weight > 0 ? positive : negative) += weight;
    }
    const int64_t added = bias.empty() ? 0 : bias[static_cast<size_t>(channel)];
    const int64_t most_sum = positive * high + negative * low, least_sum = positive * low + negative * high;
    if (std::max(most_sum + added, -(least_sum + added)) > WinogradInt8::kLargestResult) return false;
  }
  return true;
}

int64_t winograd_int8_matrix_bytes(const WinogradInt8Problem& problem) {
  const ConvProblem& shape = problem.conv.shape;
  return problem.in_blocks() * shape.lanes * shape.out_blocks() * shape.lanes * 2;
}

void pack_winograd_int8(const WinogradInt8Problem& problem, const WinogradInt8Packing& packing,
                        const ByteMatrix& weights, const ByteZeros& zeros, void* packed) {
  const ConvProblem& shape = problem.conv.shape;
  const int64_t lanes = shape.lanes, columns = shape.out_blocks() * lanes, pairs = problem.in_blocks() * lanes / 2;
  const int64_t matrix_bytes = winograd_int8_matrix_bytes(problem);
  Windows windows = {};
  int16_t frequencies[kFrequencies][kMostPairs];
  for (int64_t first = 0; first < columns; first += lanes) {
    const int64_t panel = first / packing.panel_columns * packing.panel_columns;
    const int64_t width = std::min(packing.panel_columns, columns - panel);
    char* to = static_cast<char*>(packed) + (panel * pairs + first - panel) * 4;
    for (int64_t pair = 0; pair < pairs; ++pair, to += width * 4) {
      for (int64_t i = 0; i < 2 * lanes; ++i) {
        const int64_t out = first + i / 2, in = 2 * pair + i % 2;
        const bool is_inside = out < weights.rows && in < problem.conv.in_channels;
        for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) {
          windows[tap / kTaps][tap % kTaps][i] =
              is_inside ? weight_at(weights, out, in * kTaps * kTaps + tap, zeros.at(out)) : 0;
        }
      }
      transform_weights(windows, frequencies);
      for (int64_t f = 0; f < kFrequencies; ++f) {
        std::memcpy(to + packing.matrix_of[static_cast<size_t>(f)] * matrix_bytes, frequencies[f],
                    static_cast<size_t>(lanes * 4));
      }
    }
  }
}

}  // namespace lathe
