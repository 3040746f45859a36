// When Winograd's convolution pays, and in how large groups: an analytic model for when nobody measured.
#include <algorithm>

#include "ops/winograd_program.h"
#include "ops/winograd_stem.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

// In cycles of one multiply-add of full width on Zen 4, as the model of direct convolutions (conv_plan.cpp).
constexpr double kInputCycles = 4.5;    // of one vector through the input transform
constexpr double kOutputCycles = 4.0;   // of one frequency's vector through the output transform
constexpr double kTileCallCycles = 70;  // start and store of one register tile of products
constexpr double kMemoryBytes = 4.8;    // a cycle and thread: weights from memory
constexpr double kL3Bytes = 12;         // a cycle: weights that come again, frequencies that leave L2
constexpr double kAgainPart = 0.1;
constexpr int64_t kGroupBytes = 900 << 10;  // frequencies of a group: most of L2
constexpr int64_t kFewestTiles = 14;        // rows of a matrix product that keep the multipliers busy
constexpr int64_t kGoodTiles = 24;

// What an algorithm handles, for one channel or one pair of channels.
struct Extent {
  int64_t tiles, group, groups;
  double inputs;       // transformed values of a tile: frequencies of all phases
  double frequencies;  // sums of a tile
  double products;     // multiplications of all tiles; those that are left out do not count
};

// Transformed values along one axis, of all its tiles. Of all tiles at once, one that is not whole saves a frequency.
struct AxisCount {
  int64_t tiles = 0;
  double inputs = 0, products = 0;
};
AxisCount count_of(int64_t outputs, const std::vector<WinogradMatrices>& phases, bool leaves_out) {
  AxisCount count;
  const int tile_outputs = phases[0].outputs;
  count.tiles = divide_up(outputs, tile_outputs);
  for (const WinogradMatrices& phase : phases) {
    count.inputs += phase.size();
    count.products += static_cast<double>(phase.size() * count.tiles);
    if (!leaves_out || outputs % tile_outputs == 0) continue;
    for (const bool is_needed : needed_by_part_tiles(phase.output)) count.products -= is_needed ? 0 : 1;
  }
  return count;
}

double cycles_of(const ConvProblem& problem, Isa isa, int threads, const Extent& extent) {
  const auto in = static_cast<double>(problem.in_channels), in_blocks = static_cast<double>(problem.in_blocks());
  const auto out_blocks = static_cast<double>(problem.out_blocks()), lanes = static_cast<double>(problem.lanes);
  const auto tiles = static_cast<double>(extent.tiles);
  const double per_cycle = has_avx512(isa) ? 1 : 2;
  const double tile_rows = has_avx512(isa) ? 14 : 6;
  // Below eight rows the panels are wide, and wait for the weights.
  const double rows = std::max(8.0, static_cast<double>(extent.group)) / static_cast<double>(extent.group);
  const double products = extent.products * rows * in * out_blocks / per_cycle * 1.04;
  const double calls = extent.frequencies * static_cast<double>(extent.groups) *
                       static_cast<double>(divide_up(extent.group, static_cast<int64_t>(tile_rows))) * out_blocks / 2 *
                       kTileCallCycles;
  const double transforms =
      tiles * (extent.inputs * in_blocks * kInputCycles + extent.frequencies * out_blocks * kOutputCycles);
  const double weights = extent.inputs * in * out_blocks * lanes * 4;
  const double streams =
      weights / (kMemoryBytes * std::min(threads, 2)) + weights / kL3Bytes * static_cast<double>(extent.groups - 1);
  double traffic = 0;
  if (extent.groups == 1 || extent.group == extent.tiles) {
    const double bytes = tiles * (extent.inputs * in_blocks + extent.frequencies * out_blocks) * lanes * 4;
    if (bytes > static_cast<double>(kGroupBytes)) traffic = 2 * bytes / kL3Bytes / 2;
  }
  const double balance =
      extent.groups == 1 ? 1.0 / threads
                         : static_cast<double>(divide_up(extent.groups, threads)) / static_cast<double>(extent.groups);
  // Weights that come again wait in part.
  const double again = weights / kL3Bytes * static_cast<double>(extent.groups - 1) / threads * kAgainPart;
  return std::max((products + calls) * balance, streams) + (transforms + traffic) * balance + again + 2000;
}

}  // namespace

WinogradChoice choose_winograd(const ConvProblem& problem, Isa isa, int threads) {
  WinogradChoice best;
  for (int outputs = 2; outputs <= problem.most_winograd; ++outputs) {
    if (is_winograd_stem(problem, outputs)) {
      const double cycles = winograd_stem_cycles(problem, outputs, isa, threads);
      if (best.outputs == 0 || cycles < best.cycles) best = {outputs, 0, cycles};
    }
    if (!is_winograd_of_blocks(problem, outputs)) continue;
    const ConvShape& shape = problem.phases[0];
    const WinogradForm form = winograd_form(problem, outputs);
    std::vector<WinogradMatrices> rows, columns;
    for (int phase = 0; phase < form.row_phases(); ++phase) rows.push_back(row_matrices(form, phase));
    for (int phase = 0; phase < form.column_phases(); ++phase) columns.push_back(column_matrices(form, phase));
    for (const bool all : {true, false}) {
      const AxisCount y = count_of(shape.y.out, rows, all);
      const AxisCount x = count_of(shape.x.out, columns, all);
      Extent extent{};
      extent.tiles = problem.batch * y.tiles * x.tiles;
      extent.inputs = y.inputs * x.inputs;
      extent.frequencies = form.frequencies();
      extent.products = static_cast<double>(problem.batch) * y.products * x.products;
      const double tile_bytes = (extent.inputs * static_cast<double>(problem.in_blocks()) +
                                 extent.frequencies * static_cast<double>(problem.out_blocks())) *
                                problem.lanes * 4;
      const auto fitting = static_cast<int64_t>(static_cast<double>(kGroupBytes) / tile_bytes);
      for (const int64_t wanted : {std::max(kFewestTiles, fitting), kGoodTiles}) {
        extent.groups = all ? 1 : divide_up(divide_up(extent.tiles, wanted), threads) * threads;
        extent.groups = std::min(extent.groups, extent.tiles);
        extent.group = divide_up(extent.tiles, extent.groups);
        const double cycles = cycles_of(problem, isa, threads, extent);
        if (best.outputs > 0 && cycles >= best.cycles) continue;
        best = {outputs, all ? 0 : static_cast<int>(extent.group), cycles};
      }
    }
  }
  return best;
}

}  // namespace lathe
