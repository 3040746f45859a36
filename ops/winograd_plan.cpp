// When Winograd's convolution pays, and in how large groups: an analytic model for when nobody measured.
#include <algorithm>

#include "ops/winograd_program.h"

namespace lathe {
namespace {

// In cycles of one multiply-add of full width on Zen 4, as the model of direct convolutions (conv_plan.cpp).
constexpr double kInputCycles = 4.5;        // of one vector through the input transform
constexpr double kOutputCycles = 4.0;       // of one frequency's vector through the output transform
constexpr double kTileCallCycles = 70;      // start and store of one register tile of products
constexpr double kMemoryBytes = 3.8;        // a cycle and thread: weights from memory
constexpr double kL3Bytes = 12;             // a cycle: weights that come again, frequencies that leave L2
constexpr int64_t kGroupBytes = 900 << 10;  // frequencies of a group: most of L2
constexpr int64_t kFewestTiles = 14;        // rows of a matrix product that keep the multipliers busy
constexpr int64_t kGoodTiles = 24;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Extent {
  int64_t tiles, group, groups;
  double frequencies;
};

double cycles_of(const ConvProblem& problem, Isa isa, int threads, const Extent& extent) {
  const auto in = static_cast<double>(problem.in_channels), in_blocks = static_cast<double>(problem.in_blocks());
  const auto out_blocks = static_cast<double>(problem.out_blocks()), lanes = static_cast<double>(problem.lanes);
  const auto tiles = static_cast<double>(extent.tiles);
  const double per_cycle = has_avx512(isa) ? 1 : 2;
  const double tile_rows = has_avx512(isa) ? 14 : 6;
  // Below eight rows the panels are wide, and wait for the weights.
  const double rows = std::max(8.0, static_cast<double>(extent.group)) / static_cast<double>(extent.group);
  const double products = extent.frequencies * tiles * rows * in * out_blocks / per_cycle * 1.04;
  const double calls = extent.frequencies * static_cast<double>(extent.groups) *
                       static_cast<double>(divide_up(extent.group, static_cast<int64_t>(tile_rows))) * out_blocks / 2 *
                       kTileCallCycles;
  const double transforms = tiles * extent.frequencies * (in_blocks * kInputCycles + out_blocks * kOutputCycles);
  const double weights = extent.frequencies * in * out_blocks * lanes * 4;
  const double streams =
      weights / (kMemoryBytes * std::min(threads, 2)) + weights / kL3Bytes * static_cast<double>(extent.groups - 1);
  double traffic = 0;
  if (extent.groups == 1 || extent.group == extent.tiles) {
    const double bytes = extent.frequencies * tiles * (in_blocks + out_blocks) * lanes * 4;
    if (bytes > static_cast<double>(kGroupBytes)) traffic = 2 * bytes / kL3Bytes / 2;
  }
  const double balance =
      extent.groups == 1 ? 1.0 / threads
                         : static_cast<double>(divide_up(extent.groups, threads)) / static_cast<double>(extent.groups);
  return std::max((products + calls) * balance, streams) + (transforms + traffic) * balance + 2000;
}

}  // namespace

WinogradChoice choose_winograd(const ConvProblem& problem, Isa isa, int threads) {
  WinogradChoice best;
  for (int outputs = 2; outputs <= problem.most_winograd; outputs += 2) {
    if (!is_winograd(problem, outputs)) continue;
    const ConvShape& shape = problem.phases[0];
    const int64_t size = outputs + static_cast<int64_t>(shape.x.taps.size()) - 1;
    Extent extent{};
    extent.tiles = problem.batch * divide_up(shape.y.out, outputs) * divide_up(shape.x.out, outputs);
    extent.frequencies = static_cast<double>(size * size);
    const int64_t tile_bytes = size * size * (problem.in_blocks() + problem.out_blocks()) * problem.lanes * 4;
    for (const int64_t wanted : {int64_t{0}, std::max(kFewestTiles, kGroupBytes / tile_bytes), kGoodTiles}) {
      extent.groups = wanted == 0 ? 1 : divide_up(divide_up(extent.tiles, wanted), threads) * threads;
      extent.groups = std::min(extent.groups, extent.tiles);
      extent.group = divide_up(extent.tiles, extent.groups);
      const double cycles = cycles_of(problem, isa, threads, extent);
      if (best.outputs > 0 && cycles >= best.cycles) continue;
      best = {outputs, wanted == 0 ? 0 : static_cast<int>(extent.group), cycles};
    }
  }
  return best;
}

}  // namespace lathe
