// When Winograd's convolution in whole numbers pays, and in how large groups.
#include <algorithm>

#include "ops/core_cycles.h"
#include "ops/winograd/winograd_int8_program.h"
#include "ops/work_split.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

// In cycles on Zen 4; ratios matter, not their absolute size.
constexpr double kInputCycles = 80;            // of one tile of a block
constexpr double kOutputCycles = 260;          // of one tile of a block, with its epilogue
constexpr double kMemoryPart = 0.75;           // of what a core can read: weights that come from memory
constexpr double kTileCallCycles = 60;         // start and store of one register tile of products
constexpr double kEfficiency = 0.97;           // of the multipliers, in either algorithm
constexpr int64_t kGroupBytes = 700 << 10;     // frequencies of a group, and weights beside them
constexpr int64_t kOneGroupBytes = 900 << 10;  // of all tiles, where they are one group: most of L2
constexpr int64_t kFewestTiles = 14;           // rows of a matrix product that keep the multipliers busy
// Of weights' frequencies, into L2; less where additions take the same ports as all else.
constexpr double kMadeBytesPerCycle = 26, kMadeBytesOfXeons = 13;
constexpr int kGain = 8;  // percent that it must be faster

// Cycles of one multiplication of a vector with the other's lanes.
double cycles_of_dot(Isa isa, Int8Dot dot, const CoreRates& rates) {
  constexpr double kCrossed = 0.64, kBytes = 0.97;
  if (dot == Int8Dot::crossed) return kCrossed;
  if (multiplies_in_16_bits(dot)) return kBytes;
  return 1 / products_per_cycle(isa, rates) * (dot_needs_temp(int8_isa(isa), dot) ? 1.5 : 1);
}

// Of the cycles that transforms take beside one multiplier of full width: two run them both, and stores do not take
// their turns; of half the channels two instructions pass in a cycle.
double transform_part(Isa isa, const CoreRates& rates) {
  constexpr double kOfTwo = 0.65, kNarrow = 0.4;
  if (!has_avx512(isa)) return kNarrow;
  return has_two_wide_products(isa, rates) ? kOfTwo : 1;
}

// A thread makes each frequency once, and L2 has room for what it makes of a panel of two vectors at a time.
bool can_make(const WinogradInt8Problem& problem, bool is_one_group, int64_t group, int threads) {
  const int64_t lanes = problem.conv.shape.lanes, most = WinogradInt8::kSmallSize * WinogradInt8::kSmallSize;
  const bool is_small = most * problem.in_blocks() * lanes * 2 * lanes * 2 <= kGroupBytes;
  if (!problem.fits_bytes || !is_small || crosses_winograd_int8(problem, group)) return false;
  return threads == 1 ? is_one_group : group == 0 && pays_own_copies(threads);
}

}  // namespace

std::optional<WinogradInt8Plan> choose_winograd_int8(const WinogradInt8Problem& problem, Int8Dot dot, int threads,
                                                     const CoreRates& rates) {
  const ConvProblem& shape = problem.conv.shape;
  const ConvShape& axes = shape.phases[0];
  const int64_t outputs = WinogradInt8::kOutputs,
                tiles = shape.batch * divide_up(axes.y.out, outputs) * divide_up(axes.x.out, outputs);
  const int64_t in = problem.in_blocks() * shape.lanes, blocks = shape.out_blocks();
  const auto dots = [&](int64_t pixels, Int8Dot kind) {
    return static_cast<double>(pixels * divide_up(in, group_of(kind)) * blocks) *
           cycles_of_dot(problem.conv.isa, kind, rates) / kEfficiency;
  };
  const double direct = dots(shape.batch * axes.y.out * axes.x.out * axes.taps(), dot);
  const int64_t tile_bytes = WinogradInt8::kFrequencies * (in * 2 + blocks * shape.lanes * 4);
  // Weights that fit beside the frequencies stay there from group to group.
  const int64_t weight_bytes = WinogradInt8::kFrequencies * in * blocks * shape.lanes * 2;
  const int64_t room = weight_bytes < kGroupBytes / 2 ? kGroupBytes - weight_bytes : kGroupBytes;
  int64_t group = std::max(kFewestTiles, room / tile_bytes);
  if (tiles * tile_bytes <= kOneGroupBytes) group = std::max(group, tiles);
  const int64_t groups = divide_up(divide_up(tiles, group), threads) * threads;
  group = divide_up(tiles, std::min(groups, tiles));
  // Few tiles: threads share the columns of the products, and stream each weight once.
  if (threads > 1 && group < kFewestTiles) group = 0;
  const int64_t rows = group == 0 ? tiles : group;
  // Frequencies of all tiles; small ones at the ends of the axes have fewer.
  const auto along = [&](int64_t count) {
    const int64_t missing = rows == tiles && ends_small(count) ? WinogradInt8::kSize - WinogradInt8::kSmallSize : 0;
    return divide_up(count, outputs) * WinogradInt8::kSize - missing;
  };
  const int64_t frequencies = shape.batch * along(axes.y.out) * along(axes.x.out);
  const auto weights = static_cast<double>(weight_bytes);
  const double calls = static_cast<double>(WinogradInt8::kFrequencies * divide_up(tiles, rows) *
                                           divide_up(rows, kFewestTiles) * divide_up(blocks, 2));
  const bool is_crossed = crosses_winograd_int8(problem, group);
  const double products = dots(frequencies, is_crossed ? Int8Dot::crossed : Int8Dot::pairs) + calls * kTileCallCycles;
  const double transforms =
      transform_part(problem.conv.isa, rates) * (static_cast<double>(tiles * in / shape.lanes) * kInputCycles +
                                                 static_cast<double>(tiles * blocks) * kOutputCycles);
  // Groups that follow find the weights in L3, at best.
  const auto visits = static_cast<double>(divide_up(divide_up(tiles, rows), threads));
  const double stream =
      weights / (kMemoryPart * rates.memory_bytes * std::min(threads, 2)) + (visits - 1) * weights / rates.l3_bytes;
  const double transforms_each = transforms / threads;
  double winograd = std::max(products / threads, stream) + transforms_each;
  // Nothing is multiplied while weights are made; against weights that come from memory at its full speed.
  const double made_bytes = rates.adds_beside ? kMadeBytesPerCycle : kMadeBytesOfXeons;
  const double made = products / threads + weights / made_bytes / threads;
  const bool makes = can_make(problem, rows == tiles, group, threads) &&
                     made < weights / (threads > 1 ? rates.all_memory_bytes : rates.memory_bytes);
  if (makes) winograd = std::min(winograd, made + transforms_each);
  if (winograd * (100 + kGain) / 100 > direct / threads) return std::nullopt;
  return WinogradInt8Plan{group, makes};
}

}  // namespace lathe
