// When Winograd's convolution pays, and in how large groups: an analytic model for when nobody measured.
#include <algorithm>
#include <cmath>

#include "ops/core_cycles.h"
#include "ops/winograd/winograd_program.h"
#include "ops/winograd/winograd_stem.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kNearBytes = 1200 << 10;  // frequencies of a group that stay in L2, for the most part
constexpr double kOneGroupBytes = 1 << 20;  // the same of all tiles, products over what was multiplied
constexpr int64_t kFewestTiles = 14;        // rows of a matrix product that keep the multipliers busy
constexpr int64_t kGoodTiles[] = {16, 28, 56, 84};
constexpr double kAddingUp = 20;  // cycles in which a tile of products adds one of its short sums to those before

// In cycles, as the model of direct convolutions (conv_plan.cpp).
struct Costs {
  double input;        // of one vector through the input transform
  double output;       // of one frequency's vector through the output transform
  double large_input;  // the same of forms of more than six points
  double large_output;
  double tile_call;          // start and store of one register tile of products
  double adding_call;        // of one that adds to sums that were stored
  double product;            // start of one frequency's product
  double again_part;         // of the time that weights take to come again from L3: waiting is seen
  double join;               // all threads wait for each other
  double exchange;           // bytes a cycle: frequencies that other threads made
  double own_streams;        // of threads that read the same weights each for itself, over those that share them
  double adding_streams;     // of products that add to sums that were stored
  double decoding;           // of a vector of 24-bit weights, beside the products
  double near_bytes;         // frequencies of a group, and weights, that stay in L2
  double kept_bytes = 0;     // of frequencies that leave L2, so much stays there
  double passing_bytes = 0;  // of which weights that come by take so much
  double traffic = 2;        // bytes moved for each byte that does not stay
  // The same as `exchange` of inputs that have left the L2 of the threads that made them; 0: no other.
  double far_exchange = 0;
  double far_bytes = 0;    // frequencies of a group that stay in L3
  double far_traffic = 0;  // bytes moved for each that does not
  int64_t unit = 1;        // tiles of a group are a multiple of it, but for the division of all tiles into groups
};
// Fitted to both forms of 78 tasks, in groups of all sizes, at 1 and 2 threads, on Zen 4; and to 62 on Zen 5, which
// reads twice while it adds and multiplies twice.
// Those of large forms: to 45 tasks on Zen 5; its AVX2 takes 2 to 4 % longer by the choice than by the best of 29.
constexpr Costs kOneProduct = {5.5, 4.4, 6.1, 8.8, 66, 66, 80, 0.1, 9500, 14, 1, 1, 0.4, kNearBytes};
constexpr Costs kTwoProducts = {6.6, 3.5, 8, 6, 39, 310, 65, 0.2, 10000, 13.5, 1.5, 1.3, 0.2, 1400 << 10};
// An L3 as fast as L2 nearly.
constexpr Costs costs_of_zen5() {
  Costs costs = kTwoProducts;
  costs.traffic = 0.35;
  costs.far_bytes = 4300 << 10;
  costs.far_traffic = 0.9;
  costs.far_exchange = 30;  // nothing is waited for where two threads share an L3, 10 where they do not
  return costs;
}
constexpr Costs kZen5 = costs_of_zen5();
// To seven sizes of groups of 28 tasks at 1 thread, on Emerald Rapids: an L2 of 2 MB, and an L3 that is slow.
constexpr Costs costs_of_xeons() {
  Costs costs = kTwoProducts;
  costs.again_part = 0.5;
  costs.decoding = 0.9;  // by the units that multiply
  costs.near_bytes = kNearBytes;
  costs.kept_bytes = 1900 << 10;
  costs.passing_bytes = 600 << 10;
  costs.traffic = 3;
  costs.unit = kFewestTiles;
  return costs;
}
constexpr Costs kXeons = costs_of_xeons();

// Start of the product of one frequency and group. By AVX2 (Zen 3) groups of 24 and more channels pay from 14x14 pixels
// on, in 0.4 to 0.9 of the time, groups of 16 at 28x28 in 0.5 to 0.8; at 7x7 all take longer.
constexpr double kGroupProduct = 200;

const Costs& costs_of(Isa isa, const CoreRates& rates) {
  if (!has_two_wide_products(isa, rates)) return kOneProduct;
  return rates.adds_beside ? kZen5 : kXeons;
}

// What an algorithm handles, for one channel or one pair of channels.
struct Extent {
  int64_t tiles, group, groups;
  double inputs;       // transformed values of a tile: frequencies of all phases
  double frequencies;  // sums of a tile
  double products;     // multiplications of all tiles; those that are left out do not count
  double matrices;     // of weights
  double calls;        // of products
  double sums;         // that a product is cut into
  bool adds;           // products add to sums that were stored
  bool is_large;       // a form of more than six points
};

// Transformed values along one axis, of all its tiles. Of all tiles at once, one that is not whole saves frequencies.
struct AxisCount {
  int64_t tiles = 0;
  double inputs = 0, products = 0, matrices = 0;
};
using MatricesOf = const WinogradMatrices& (*)(const WinogradForm&, int phase, int part);
AxisCount count_of(int64_t outputs, const WinogradForm& form, int phases, MatricesOf matrices, bool leaves_out,
                   bool shares) {
  AxisCount count;
  const int tile_outputs = matrices(form, 0, 0).outputs, part = static_cast<int>(outputs % tile_outputs);
  count.tiles = divide_up(outputs, tile_outputs);
  for (int phase = 0; phase < phases; ++phase) {
    const WinogradMatrices whole = matrices(form, phase, 0);
    const int size = whole.size();
    const std::vector<bool> needs = needed_points(matrices(form, shares ? phase : 0, leaves_out ? part : 0).output);
    count.inputs += size;
    count.matrices += shares && whole.taps == 1 && size > 1 ? 1 : size;
    count.products += static_cast<double>(size * count.tiles);
    count.products -= static_cast<double>(std::count(needs.begin(), needs.begin() + size, false));
  }
  return count;
}

// Products that weights are streamed for: neither waits only for the other where both take nearly as long.
double together(double products, double streams) {
  constexpr double kSharpness = 6;
  return std::pow(std::pow(products, kSharpness) + std::pow(streams, kSharpness), 1 / kSharpness);
}

struct Cycles {
  double plain;
  double narrow_gain;  // by weights of 24 bits; may be negative
};
Cycles cycles_of(const ConvProblem& problem, Isa isa, int threads, const Extent& extent, bool is_all,
                 const CoreRates& rates) {
  const auto in = static_cast<double>(problem.in_channels_each()), in_blocks = static_cast<double>(problem.in_blocks());
  const auto out_blocks = static_cast<double>(problem.out_blocks()), lanes = static_cast<double>(problem.lanes);
  const auto tiles = static_cast<double>(extent.tiles), groups = static_cast<double>(extent.groups);
  const double per_cycle = products_per_cycle(isa, rates);
  const Costs& costs = costs_of(isa, rates);
  const int64_t tile_rows = has_avx512(isa) ? 14 : 6;
  // Below eight rows the panels are wide, and wait for the weights.
  const double rows = std::max(8.0, static_cast<double>(extent.group)) / static_cast<double>(extent.group);
  const int64_t last_columns = problem.out_channels % problem.lanes;
  const int share = halves_last(last_columns, isa, rates) ? 2
                    : out_blocks > 1                      ? rows_that_share(last_columns, isa, rates)
                                                          : 1;
  const double products = extent.products * rows * in * (out_blocks - 1 + 1.0 / share) / per_cycle * 1.04;
  const int64_t panels = problem.groups * divide_up(columns_of_group(problem), 2 * problem.lanes);
  const auto calls = static_cast<double>(divide_up(extent.group, tile_rows) * panels);
  const double call = extent.adds ? costs.adding_call : costs.tile_call;
  const double start = problem.groups > 1 ? kGroupProduct * static_cast<double>(problem.groups) : costs.product;
  const double starts = extent.calls * groups * (calls * (call + (extent.sums - 1) * kAddingUp) + start);
  const double input = extent.is_large ? costs.large_input : costs.input;
  const double output = extent.is_large ? costs.large_output : costs.output;
  const double transforms = tiles * (extent.inputs * in_blocks * input + extent.frequencies * out_blocks * output);
  // The longest thread's part.
  const double part = is_all ? 1.0 / threads : static_cast<double>(divide_up(extent.groups, threads)) / groups;
  const double weights = extent.matrices * in * out_blocks * lanes * 4;
  const double slower = (threads > 1 && !is_all ? costs.own_streams : 1) * (extent.adds ? costs.adding_streams : 1);
  const double streams = slower * weights / (threads > 1 ? rates.all_memory_bytes : rates.memory_bytes);
  const double group_bytes =
      static_cast<double>(extent.group) * (extent.inputs * in_blocks + extent.frequencies * out_blocks) * lanes * 4;
  const double caches = is_all ? threads : 1;
  const double leaving = group_bytes + std::min(weights, costs.passing_bytes) - costs.kept_bytes * caches;
  const double far = costs.far_traffic * std::max(0.0, group_bytes - costs.far_bytes * caches) / rates.memory_bytes;
  const double traffic = group_bytes > costs.near_bytes * caches
                             ? (costs.traffic * std::max(0.0, leaving) / rates.l3_bytes + far) * groups
                             : 0;
  const double again = weights + group_bytes > costs.near_bytes
                           ? weights / rates.l3_bytes * std::max(0.0, groups * part - 1) * costs.again_part
                           : 0;
  constexpr double kL2Bytes = 1 << 20;
  const bool is_far = costs.far_exchange > 0 && tiles * extent.inputs * in_blocks * lanes * 4 > kL2Bytes;
  const double exchange = group_bytes * part / (is_far ? costs.far_exchange : costs.exchange);
  const double waits = is_all && threads > 1 ? 2 * costs.join + exchange : 0;
  const double busy = (products + starts) * part;
  constexpr double kNarrowPart = static_cast<double>(Bfp24::kGroupWords) / Bfp24::kGroupRows;
  const double decoding = extent.calls * groups * in * out_blocks *
                          static_cast<double>(divide_up(extent.group, tile_rows)) * costs.decoding * part;
  // What adds to sums that were stored waits for these (256 channels of 28x28 pixels with stride 2).
  const double gain = extent.adds ? 0 : together(busy, streams) - together(busy + decoding, streams * kNarrowPart);
  return {std::max(busy, streams) + (transforms + traffic) * part + again + waits + 500, gain};
}

}  // namespace

// Of fewer channels the sums that are stored and read again cost more than the weights: 128 channels at 56x56 take 4 %
// longer.
bool shares_weights(const ConvProblem& problem, const WinogradForm& form, int threads, bool is_all) {
  constexpr int64_t kFewestChannels = 256, kPanelBlocks = 2;
  if (form.stride != 2 || form.taps != 3 || problem.in_channels < kFewestChannels) return false;
  const int64_t panels = divide_up(problem.out_blocks(), kPanelBlocks);
  return !is_all || divide_up(panels, threads) * threads * 10 <= panels * 11;
}

// One thread has nothing to exchange, and no tile that is cut off leaves products out: one group of all tiles does what
// they would do part by part, and stores products over what was multiplied. 14x14 and 28x28 pixels take 1 to 8 % less
// (Xeons), and 5 % less than in smaller groups where all of it stays near.
bool can_be_one_group(const ConvShape& shape, const WinogradForm& form, Isa isa, int threads, const CoreRates& rates) {
  const bool has_whole_tiles = shape.y.out % form.out_rows() == 0 && shape.x.out % form.outputs == 0;
  return threads == 1 && has_whole_tiles && has_slow_l3(isa, rates);
}

WinogradChoice choose_winograd(const ConvProblem& problem, Isa isa, int threads, const CoreRates& rates) {
  // What 24 bits gain is measured on Zen 5, where they let larger forms win: 256 channels of 14x14 pixels at 2 threads
  // by F(4), in 0.8 of the time that F(2) takes. Elsewhere they only make what is chosen anyway wait less.
  const bool is_measured = adds_beside_two(isa, rates);
  const double least_narrow_gain = is_measured ? 0.01 : 0.04;
  const int64_t unit = costs_of(isa, rates).unit;
  WinogradChoice best;
  for (int outputs = 2; outputs <= problem.most_winograd; ++outputs) {
    if (is_winograd_stem(problem, outputs)) {
      const double cycles = winograd_stem_cycles(problem, outputs, isa, threads, rates);
      if (best.outputs == 0 || cycles < best.cycles) best = {outputs, 0, false, cycles};
    }
    if (!is_winograd_of_blocks(problem, outputs)) continue;
    const ConvShape& shape = problem.phases[0];
    const WinogradForm form = winograd_form(problem, outputs);
    for (const bool all : {true, false}) {
      const bool shares = shares_weights(problem, form, threads, all);
      const AxisCount y = count_of(shape.y.out, form, form.row_phases(), row_matrices, all, shares);
      const AxisCount x = count_of(shape.x.out, form, form.column_phases(), column_matrices, all, shares);
      Extent extent{};
      extent.tiles = problem.batch * y.tiles * x.tiles;
      extent.inputs = y.inputs * x.inputs;
      extent.frequencies = form.frequencies();
      extent.products = static_cast<double>(problem.batch) * y.products * x.products;
      extent.matrices = y.matrices * x.matrices;
      extent.calls = shares ? extent.inputs : extent.frequencies;
      extent.adds = shares;
      extent.is_large = is_large(form);
      const int64_t longest_sum = longest_sum_of(form, problem), steps = problem.in_channels_each();
      extent.sums = longest_sum == 0 ? 1 : static_cast<double>(divide_up(steps, longest_sum));
      const double in_bytes = extent.inputs * static_cast<double>(problem.in_blocks() * problem.lanes * 4);
      const double out_bytes = extent.frequencies * static_cast<double>(problem.out_blocks() * problem.lanes * 4);
      const auto fitting = static_cast<int64_t>(static_cast<double>(kNearBytes) / (in_bytes + out_bytes));
      const bool can_be_one = !shares && can_be_one_group(shape, form, isa, threads, rates);
      const bool is_near = static_cast<double>(extent.tiles) * std::max(in_bytes, out_bytes) <= kOneGroupBytes;
      std::vector<int64_t> sizes = {fitting};
      sizes.insert(sizes.end(), std::begin(kGoodTiles), std::end(kGoodTiles));
      for (const int64_t size : sizes) {
        const int64_t wanted = std::max(kFewestTiles, size / unit * unit);
        extent.groups = all ? 1 : divide_up(divide_up(extent.tiles, wanted), threads) * threads;
        extent.groups = std::min(extent.groups, extent.tiles);
        extent.group = divide_up(extent.tiles, extent.groups);
        const auto [plain, narrow_gain] = cycles_of(problem, isa, threads, extent, all, rates);
        const bool is_narrow = can_be_narrow(problem) && narrow_gain > least_narrow_gain * plain;
        const double cycles = is_narrow && is_measured ? plain - narrow_gain : plain;
        if (best.outputs > 0 && cycles >= best.cycles) continue;
        best = {outputs, all ? 0 : static_cast<int>(extent.group), is_narrow, cycles};
        if ((all || is_near) && can_be_one) best.tile_group = static_cast<int>(extent.tiles);
      }
    }
  }
  return best;
}

}  // namespace lathe
