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

// Vectors of pairs of input channels, in the order of the panels: take(first output channel, pair, vectors before it).
template <class Take>
void for_units(const WinogradInt8Problem& problem, int64_t panel_columns, Take take) {
  const ConvProblem& shape = problem.conv.shape;
  const int64_t lanes = shape.lanes, columns = shape.out_blocks() * lanes, pairs = problem.in_blocks() * lanes / 2;
  for (int64_t first = 0; first < columns; first += lanes) {
    const int64_t panel = first / panel_columns * panel_columns;
    const int64_t width = std::min(panel_columns, columns - panel);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      take(first, pair, (panel * pairs + first - panel + pair * width) / lanes);
    }
  }
}

// Weight `i` of the unit at a tap, less its zero point.
int weight_of_unit(const WinogradInt8Problem& problem, const ByteMatrix& weights, const ByteZeros& zeros, int64_t first,
                   int64_t pair, int64_t i, int64_t tap) {
  const int64_t out = first + i / 2, in = 2 * pair + i % 2;
  if (out >= weights.rows || in >= problem.conv.in_channels) return 0;
  return weight_at(weights, out, in * kTaps * kTaps + tap, zeros.at(out));
}

}  // namespace

bool differences_fit_bytes(bool is_signed, const ByteZeros& zeros) {
  constexpr int32_t kMiddle = 128;
  if (zeros.count == 0) return is_signed;
  for (int64_t i = 0; i < zeros.count; ++i) {
    if (zeros.at(i) != (is_signed ? 0 : kMiddle)) return false;
  }
  return true;
}

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
  const int64_t lanes = problem.conv.shape.lanes, matrix_bytes = winograd_int8_matrix_bytes(problem);
  Windows windows = {};
  int16_t frequencies[kFrequencies][kMostPairs];
  for_units(problem, packing.panel_columns, [&](int64_t first, int64_t pair, int64_t unit) {
    for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) {
      for (int64_t i = 0; i < 2 * lanes; ++i) {
        windows[tap / kTaps][tap % kTaps][i] = weight_of_unit(problem, weights, zeros, first, pair, i, tap);
      }
    }
    transform_weights(windows, frequencies);
    char* to = static_cast<char*>(packed) + unit * lanes * 4;
    for (int64_t f = 0; f < kFrequencies; ++f) {
      std::memcpy(to + packing.matrix_of[static_cast<size_t>(f)] * matrix_bytes, frequencies[f],
                  static_cast<size_t>(lanes * 4));
    }
  });
}

int64_t winograd_int8_window_bytes(const WinogradInt8Problem& problem, int64_t columns) {
  return problem.in_blocks() * problem.conv.shape.lanes * columns * kTaps * kTaps;
}

void pack_winograd_int8_windows(const WinogradInt8Problem& problem, int64_t panel_columns, const ByteMatrix& weights,
                                const ByteZeros& zeros, void* packed) {
  const int64_t lanes = problem.conv.shape.lanes;
  for_units(problem, panel_columns, [&](int64_t first, int64_t pair, int64_t unit) {
    int8_t* to = static_cast<int8_t*>(packed) + unit * kTaps * kTaps * 2 * lanes;
    for (int64_t tap = 0; tap < kTaps * kTaps; ++tap) {
      for (int64_t i = 0; i < 2 * lanes; ++i) {
        *to++ = static_cast<int8_t>(weight_of_unit(problem, weights, zeros, first, pair, i, tap));
      }
    }
  });
}

}  // namespace lathe
