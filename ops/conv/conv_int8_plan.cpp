// How a convolution of integers is cut into tiles: the rule.
#include <algorithm>
#include <utility>
#include <vector>

#include "jit/kernel.h"
#include "ops/conv/conv_int8_program.h"
#include "ops/conv/conv_program.h"
#include "ops/conv/conv_tile_sizes.h"
#include "ops/core_cycles.h"

namespace lathe {
namespace {

// Cycles, as measured on Zen 4; ratios matter, not their absolute size.
constexpr double kTileCycles = 20;    // turning from one tile to the next
constexpr double kLatencyCycles = 4;  // of a dot product
// Outputs with a residual or a table wait for each other where they find fewer registers: each takes so much longer.
constexpr int64_t kRegistersOfOutputs = 8;
constexpr double kCrowdedResidual = 4, kCrowdedTable = 2;
constexpr int64_t kMostTaps = 49;  // of windows whose code may differ from tile to tile, or stand twice
// Two instructions for one dot product of pairs on AVX2: not quite two of these a cycle, and what loads take of that.
constexpr double kNarrowPairs = 0.613, kNarrowLoad = 0.066;
// The same of crossed pairs: four instructions for two of them.
constexpr double kCrossedPairs = 0.434, kCrossedLoad = 0.155;
// And of bytes: three for one of them.
constexpr double kNarrowBytes = 0.92;
// Where four are added in 16 bits, five for two of them.
constexpr double kAddedFours = 0.77;
// A broadcast, in loads of whole vectors: where these are two halves, and where two of them pass in a cycle.
constexpr double kBroadcastLoads = 0.6, kBroadcastOfTwo = 1;
// Weights that stay in L1 beside the input; beyond, they come from L2 at so many bytes a cycle.
constexpr int64_t kWeightsInL1 = 20 << 10;
constexpr double kL2BytesPerCycle = 24;
constexpr int64_t kInputInCache = 512 << 10;  // input that stays in L2 between two visits
constexpr int64_t kGroupInput = 256 << 10;    // input of one tile group

// Cycles of one group of channels for a whole tile.
double step_cycles(const ConvInt8Problem& problem, int64_t pixels, int64_t blocks, int64_t steps,
                   const CoreRates& rates) {
  const bool needs_temp = dot_needs_temp(problem.isa, problem.dot), is_crossed = problem.dot == Int8Dot::crossed;
  const auto dots = static_cast<double>(pixels * blocks);
  const bool is_wide = has_avx512(problem.isa);
  // Two narrow vectors or one or two wide ones in a cycle; pairs take a second instruction.
  const double per_cycle = products_per_cycle(problem.isa, rates);
  const double products = dots / per_cycle * (needs_temp ? 1.5 : 1);
  const double broadcast = is_wide && per_cycle > 1 ? kBroadcastOfTwo : kBroadcastLoads;
  const double loads = (static_cast<double>(pixels) * broadcast + static_cast<double>(blocks)) / per_cycle;
  const int64_t weight_bytes = blocks * problem.shape.lanes * 4;
  const double streaming =
      weight_bytes * steps > kWeightsInL1 ? static_cast<double>(weight_bytes) / kL2BytesPerCycle : 0;
  if (!is_wide && (needs_temp || is_crossed)) {
    const double each = is_crossed                      ? kCrossedPairs
                        : problem.dot == Int8Dot::pairs ? kNarrowPairs
                        : has_fours(problem.dot)        ? kAddedFours
                                                        : kNarrowBytes;
    const double narrow =
        each * dots + (is_crossed ? kCrossedLoad : kNarrowLoad) * static_cast<double>(pixels + blocks);
    return std::max({narrow, streaming, kLatencyCycles}) + 0.1;
  }
  return std::max({products, loads, streaming, kLatencyCycles}) + 0.1;
}

// Beside two multipliers (Zen 5).
double crowded_cycles(const ConvInt8Problem& problem, int64_t sums, const CoreRates& rates) {
  if (!has_two_wide_products(problem.isa, rates)) return 0;
  if (vector_registers(problem.isa) - sums >= kRegistersOfOutputs) return 0;
  const double each = problem.epilogue.has_residual() ? kCrowdedResidual
                      : problem.store.table.empty()   ? 0
                                                      : kCrowdedTable;
  return each * static_cast<double>(sums);
}

// Cycles of one image for all channels.
double cost_of(const ConvInt8Problem& problem, const ConvInt8Tile& tile, const CoreRates& rates) {
  const ConvShape& shape = problem.shape.phases[0];
  const int64_t steps = problem.depth() * shape.taps();
  double cycles = 0;
  for_each_tile_size(shape, tile.rows, tile.cols, [&](int64_t pixels, int64_t count) {
    for_each_block_group(problem.channels(), tile.blocks, [&](int64_t blocks, int64_t groups) {
      const double each = static_cast<double>(steps) * step_cycles(problem, pixels, blocks, steps, rates) +
                          kTileCycles + crowded_cycles(problem, pixels * blocks, rates);
      cycles += each * static_cast<double>(count * groups);
    });
  });
  return cycles;
}

bool fits(const ConvInt8Problem& problem, const ConvInt8Tile& tile) {
  ConvInt8Plan kernel;
  kernel.isa = int8_isa(problem.isa);
  kernel.dot = problem.dot;
  kernel.blocks = tile.blocks;
  return fits_registers(kernel, std::max(tile.rows, 1) * tile.cols);
}

// Tiles for whose input the cache has room, where it has none for all of it.
int tiles_together(const ConvInt8Problem& problem, const ConvInt8Tile& tile) {
  const ConvShape& shape = problem.shape.phases[0];
  const int64_t input = shape.y.in * shape.x.in * problem.shape.in_channels * 4;
  if (input <= kInputInCache) return 0;
  const int64_t rows = tile.rows == 0 ? 1 : divide_up(shape.y.out, tile.rows);
  const int64_t tiles = rows * divide_up(shape.x.out, tile.cols);
  return static_cast<int>(std::max<int64_t>(4, kGroupInput * tiles / input));
}

// No output lacks taps, so that all tiles are alike.
bool is_same_everywhere(const ConvAxis& axis) {
  return std::all_of(axis.taps.begin(), axis.taps.end(), [&](const ConvTap& tap) {
    return tap.offset >= 0 && tap.offset + (axis.out - 1) * axis.stride < axis.in;
  });
}

// The first input blocks hide what finishes the outputs: so many groups, whole blocks with all taps. Of channels in
// groups not every output has as many.
int blocks_ahead(const ConvInt8Problem& problem, int64_t groups) {
  if (problem.channel_groups > 1) return 1;
  const int64_t taps = problem.shape.phases[0].taps();
  return static_cast<int>(
      std::max<int64_t>(1, std::min(problem.depth() * taps, groups) / (problem.shape.in_lanes() * taps)));
}

constexpr int64_t kGroupsBesideResiduals = 32;  // more of them hide what reads a residual, too
constexpr int64_t kLeastTiles = 7;

// From so many products an output on, what looks up an epilogue's products goes on beside them entirely.
constexpr int64_t kStepsBesideTables = 32;

// Sums, bytes, and what the model has for a channel are not; a tensor of float32 may be.
bool may_be_nan(const ConvEpilogue& epilogue) {
  for (size_t i = 0; i < epilogue.operands.size(); ++i) {
    if (epilogue.operands[i] == ConvOperand::full && epilogue.expression->inputs[i + 1] == DType::f32) return true;
  }
  return false;
}

// A dot product and a load a cycle: every value is a broadcast that one product uses.
std::vector<ConvInt8Tile> tiles_of_one_product(const ConvInt8Problem& problem) {
  constexpr int64_t kGroupsAhead = 16;
  constexpr int kPixels = 14;  // two sets of them leave registers for a weight, a broadcast and two temporaries
  // Small pictures are cut finer, but for long sums, which would read a weight too often.
  constexpr int64_t kMostGroupsOfSmall = 128;
  const ConvShape& shape = problem.shape.phases[0];
  const int64_t pixels = shape.y.out * shape.x.out, groups = problem.depth() * shape.taps();
  const bool is_narrow = pixels < kLeastTiles * kPixels;
  if (is_narrow && (pixels < kLeastTiles * kPixels / 2 || groups > kMostGroupsOfSmall)) return {};
  ConvInt8Tile tile{1, 1, static_cast<int>(std::min<int64_t>(is_narrow ? kPixels / 2 : kPixels, shape.x.out))};
  tile.ahead = blocks_ahead(problem, problem.epilogue.has_residual() ? kGroupsBesideResiduals : kGroupsAhead);
  return {tile};
}

// So that no group of blocks is small: of three, or of so many that a smaller one is rare; else of four or two.
int blocks_of_twelve_sums(int64_t alike) {
  constexpr int64_t kMany = 16;
  if (alike % 3 == 0 || alike >= kMany) return 3;
  return alike % 4 == 0 ? 4 : 2;
}

// Two of each: there is no load for every product beside those of the outputs, so that blocks share broadcasts. First
// the tile that leaves one temporary, then the one that leaves three, as long epilogues need. That one pays behind
// short sums only: behind long ones whole tiles do better, which fetch weights from L2 less often.
std::vector<ConvInt8Tile> tiles_of_two_products(const ConvInt8Problem& problem) {
  constexpr int64_t kGroupsAhead = 8, kFewestGroups = 8, kMostGroupsOfLong = 96;
  const ConvShape& shape = problem.shape.phases[0];
  const int64_t alike = blocks_alike(problem.channels()), groups = problem.depth() * shape.taps();
  const bool is_long = groups > kMostGroupsOfLong;
  if (groups < kFewestGroups || (is_long && problem.epilogue.has_residual())) return {};
  std::vector<ConvInt8Tile> tiles;
  for (const auto& [blocks, sums] : {std::pair{2, 14}, std::pair{blocks_of_twelve_sums(alike), 12}}) {
    // Of three blocks one would be alone, and its products would wait for each other.
    if (sums == 14 ? alike == 3 : is_long) continue;
    ConvInt8Tile tile{static_cast<int>(std::min<int64_t>(blocks, alike)), 1};
    const int64_t most = sums / tile.blocks;
    if (shape.y.out * shape.x.out < kLeastTiles * most) continue;
    tile.cols = static_cast<int>(std::min(most, shape.x.out));
    tile.ahead = blocks_ahead(problem, problem.epilogue.has_residual() ? kGroupsBesideResiduals : kGroupsAhead);
    tiles.push_back(tile);
  }
  return tiles;
}

constexpr ConvInt8Tile kOfFewLoads{4, 1, 6, 0};

// As tiles of float32 do beside a busy neighbour (spare_turns() in conv_plan.cpp): pointwise convolutions take 3 to 7 %
// less there, and alone as long as in tiles of two blocks. Of fewer pixels their weights come too fast: two threads
// take 10 % more at 14x14.
bool spares_turns(const ConvInt8Problem& problem, const CoreRates& rates) {
  constexpr int64_t kFewestPixels = 28 * 28;
  const ConvShape& shape = problem.shape.phases[0];
  return has_slow_l3(problem.isa, rates) && shape.taps() == 1 && shape.x.out >= kOfFewLoads.cols &&
         shape.y.out * shape.x.out >= kFewestPixels && blocks_alike(problem.channels()) % 4 == 0;
}

}  // namespace

bool can_cross(const ConvInt8Problem& problem) {
  if (problem.shape.phases.size() != 1 || !can_cross(problem.isa)) return false;
  const ConvShape& shape = problem.shape.phases[0];
  const int64_t groups = problem.shape.in_channels, in_lanes = problem.shape.in_lanes();
  return shape.y.taps[0].offset == 0 && shape.x.taps[0].offset == 0 && is_same_everywhere(shape.y) &&
         is_same_everywhere(shape.x) && problem.channel_groups == 1 && problem.unit_bytes == 4 && groups >= in_lanes &&
         groups % 2 == 0 && in_lanes % 2 == 0 && problem.in_channels == 2 * groups;
}

ConvInt8Tile choose_conv_int8_tile(const ConvInt8Problem& problem, const CoreRates& rates) {
  const ConvShape& shape = problem.shape.phases[0];
  const int registers = vector_registers(problem.isa);
  ConvInt8Tile best;
  double best_cost = -1;
  // Runs over ends of rows make every tile different code: only where few pixels are computed, of small windows.
  const int first_rows = problem.shape.out_pixels() <= 10 * 10 && shape.taps() <= kMostTaps ? 0 : 1;
  const int64_t alike = blocks_alike(problem.channels());
  for (int blocks = 1; blocks <= std::min<int64_t>(registers / 2, alike); ++blocks) {
    for (int rows = first_rows; rows <= std::min<int64_t>(4, shape.y.out); ++rows) {
      const int64_t width = rows == 0 ? shape.y.out * shape.x.out : shape.x.out;
      for (int cols = 1; cols <= std::min<int64_t>(registers, width); ++cols) {
        const ConvInt8Tile tile{blocks, rows, cols, 0};
        if (!fits(problem, tile)) continue;
        const double cost = cost_of(problem, tile, rates);
        if (best_cost >= 0 && cost >= best_cost) continue;
        best = tile;
        best_cost = cost;
      }
    }
  }
  if (best_cost < 0) throw JitError("no tile of a convolution of integers fits the registers");
  if (spares_turns(problem, rates) && fits(problem, kOfFewLoads)) best = kOfFewLoads;
  best.group = tiles_together(problem, best);
  return best;
}

// Where two products pass in a cycle, a multiplication takes half a cycle from them, and the shuffles in its place take
// turns of one of the two multipliers.
BytesTimesConstants bytes_beside_products(const ConvInt8Problem& problem, const CoreRates& rates) {
  if (has_two_wide_products(problem.isa, rates) || may_be_nan(problem.epilogue)) return BytesTimesConstants::multiplied;
  const int64_t steps = problem.depth() * problem.shape.phases[0].taps();
  return steps >= kStepsBesideTables ? BytesTimesConstants::looked_up : BytesTimesConstants::inputs_looked_up;
}

std::vector<ConvInt8Tile> overlapped_conv_int8_tiles(const ConvInt8Problem& problem, const CoreRates& rates) {
  // Beyond so many groups the outputs are a small part of the work, and whole tiles make better use of a broadcast.
  constexpr int64_t kMostGroups = 256, kMostGroupsOfTwo = 512;
  const ConvShape& shape = problem.shape.phases[0];
  const bool has_two = products_per_cycle(problem.isa, rates) > 1;
  // What finishes outputs takes the multipliers' turns wherever it stands, and whole tiles load less: 3 to 14 %.
  if (has_two && !rates.adds_beside) return {};
  const int64_t groups = problem.depth() * shape.taps();
  const bool is_small = is_same_everywhere(shape.y) && is_same_everywhere(shape.x) &&
                        problem.shape.in_channels % problem.shape.in_lanes() == 0 &&
                        groups <= (has_two ? kMostGroupsOfTwo : kMostGroups) && (!has_two || shape.taps() <= kMostTaps);
  if (!is_small || !has_avx512(problem.isa) || !problem.epilogue.expression) return {};
  std::vector<ConvInt8Tile> tiles = has_two ? tiles_of_two_products(problem) : tiles_of_one_product(problem);
  for (ConvInt8Tile& tile : tiles) tile.group = tiles_together(problem, tile);
  return tiles;
}

}  // namespace lathe
