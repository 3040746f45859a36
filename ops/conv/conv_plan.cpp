// The choice of plans: what a search may try, and an analytic model for when nobody searched.
#include <algorithm>
#include <cmath>
#include <optional>

#include "ops/conv/conv_problem.h"
#include "ops/conv/conv_program.h"
#include "ops/conv/conv_strassen.h"
#include "ops/conv/conv_tile_sizes.h"
#include "ops/core_cycles.h"
#include "ops/winograd/fewer_products.h"
#include "ops/winograd/winograd_program.h"

namespace lathe {
namespace {

// Costs in cycles, as measured on Zen 4; ratios matter, not their absolute size.
constexpr double kCallCycles = 60;            // start and end of a tile: arguments, latencies
constexpr double kStoreCycles = 2;            // start and store of one accumulator
constexpr double kLatencyCycles = 4;          // of a multiply-add
constexpr int64_t kInputInCache = 384 << 10;  // input that stays in L2 between two visits
constexpr int64_t kGroupInput = 256 << 10;    // input of one tile group
constexpr int64_t kPanelBytes = 256 << 10;    // weights of one chunk
constexpr int64_t kPanelInL1 = 24 << 10;      // weights that stay there from tile to tile
constexpr double kFromL2 = 20;  // bytes of weights in a cycle, by AVX2 (Zen 3; seen only where tiles have few pixels)
constexpr double kStreamSeen = 0.5;  // of the time that weights take from memory beside two products in a cycle

// Cycles of one input channel for a whole tile. `share`: of pixels in the last block, as shared_pixels() says.
double step_cycles(const ConvPlan& plan, int64_t pixels, int64_t blocks, int share, const CoreRates& rates) {
  const auto products = static_cast<double>(pixels * (blocks - 1) + divide_up(pixels, share));
  if (products_per_cycle(plan.isa, rates) == 2) {
    // Two multiply-adds and two loads in a cycle.
    const double broadcasts = plan.embedded ? products : static_cast<double>(pixels) * 1.2;
    return std::max({products / 2, (broadcasts + static_cast<double>(blocks)) / 2, kLatencyCycles});
  }
  // One multiply-add in a cycle. A broadcast as operand is nearly free; one that feeds a single multiply-add is not.
  const double loads =
      plan.embedded ? products * 1.005 : static_cast<double>(pixels) * 1.3 + static_cast<double>(blocks) * 0.5;
  return std::max({products, loads, kLatencyCycles}) + 0.05;
}

// Cycles in which the weights of one input channel arrive.
double weight_cycles(const ConvProblem& problem, Isa isa, int64_t blocks) {
  const int64_t bytes = blocks * problem.lanes * 4, panel = bytes * problem.in_channels_each();
  const bool is_in_l1 = panel * problem.phases[0].taps() <= kPanelInL1;
  return has_avx512(isa) || is_in_l1 ? 0 : static_cast<double>(bytes) / kFromL2;
}

// Of a tile whose sums run along the input's channels: products, with a load for each input, and the adding up of four
// sums at a time across their lanes.
double cycles_of_dots(const ConvProblem& problem, const ConvPlan& plan, int64_t pixels, const CoreRates& rates) {
  constexpr double kTile = 10, kFourSums = 3.5;
  const int64_t outputs = dots_of(problem), together = outputs > 2 || problem.groups > 1 ? 1 : 4 / outputs;
  const auto loads = static_cast<double>(pixels + outputs), products = static_cast<double>(pixels * outputs);
  const int64_t blocks = problem.groups > 1 ? 1 : problem.in_blocks();
  const double step = std::max({products / products_per_cycle(plan.isa, rates), loads / 2, kLatencyCycles});
  return step * static_cast<double>(blocks * problem.phases[0].taps()) + kTile +
         kFourSums * static_cast<double>(divide_up(pixels, together)) + kStoreCycles * static_cast<double>(pixels);
}

// Cycles of the whole problem on one of `threads` threads.
double cost_of(const ConvPlan& plan, const ConvProblem& problem, int threads, const CoreRates& rates) {
  const ConvShape& shape = problem.phases[0];
  const double steps = static_cast<double>(problem.in_channels_each()) * shape.taps();
  double cycles = 0;
  int64_t tiles = 0;
  for_each_tile_size(shape, plan.rows, plan.cols, [&](int64_t pixels, int64_t count) {
    tiles += count;
    if (plan.dots) {
      cycles += static_cast<double>(count * problem.out_blocks()) * cycles_of_dots(problem, plan, pixels, rates);
      return;
    }
    for_each_block_group(problem, plan.blocks, [&](int64_t blocks, int64_t groups) {
      const double step =
          std::max(step_cycles(plan, pixels, blocks, 1, rates), weight_cycles(problem, plan.isa, blocks));
      const double tile = steps * step + kCallCycles + kStoreCycles * static_cast<double>(pixels * blocks);
      cycles += tile * static_cast<double>(count * groups);
    });
    const int64_t last = divide_up(problem.out_blocks(), divide_up(problem.out_blocks(), plan.blocks));
    const int share = shared_pixels(problem, plan, last, rates);
    cycles -= steps * static_cast<double>(count) *
              (step_cycles(plan, pixels, last, 1, rates) - step_cycles(plan, pixels, last, share, rates));
  });
  const int64_t over_channels = threads_over_channels(problem, plan, threads), over_pixels = threads / over_channels;
  const int64_t groups = divide_up(problem.out_blocks(), plan.blocks), units = tiles * problem.batch;
  const double balance = static_cast<double>(divide_up(groups, over_channels)) / static_cast<double>(groups) *
                         static_cast<double>(divide_up(units, over_pixels)) / static_cast<double>(units);
  return cycles * balance * static_cast<double>(problem.batch);
}

int64_t steps_of(const ConvProblem& problem) { return problem.in_channels_each() * problem.phases[0].taps(); }

// Of a picture of some four tiles each comes back to a panel's weights: on Xeons, whose L1 has 48 KB, they shall find
// them there. 3x3 windows of 128 > 32 channels at 7x7 take 24 % less so, of 128 > 192 to 512 > 512 up to 6 %; pointwise
// ones of 832 > 128 and of 2,048 > 512 5 %. Where outputs outnumber what is added up for each, storing sums that are
// not whole takes what is gained (512 > 2,048).
int64_t most_panel_bytes(const ConvPlan& plan, const ConvProblem& problem, const CoreRates& rates) {
  constexpr int64_t kFewestPixels = 25, kMostPixels = 64, kMostInL1 = 40 << 10;
  const int64_t pixels = problem.out_pixels();
  const bool has_few_tiles = pixels >= kFewestPixels && pixels <= kMostPixels;
  const bool has_long_sums = steps_of(problem) > problem.out_channels;
  return has_few_tiles && has_long_sums && has_slow_l3(plan.isa, rates) ? kMostInL1 : kPanelBytes;
}

// How the loops use the caches.
void choose_blocking(ConvPlan& plan, const ConvProblem& problem, const CoreRates& rates) {
  const ConvShape& shape = problem.phases[0];
  const int64_t in_channels = problem.in_channels_each();
  const int64_t input = shape.y.in * shape.x.in * in_channels * 4;
  const int64_t panel_of_block = int64_t{plan.blocks} * problem.lanes * 4 * shape.taps() * problem.in_lanes();
  const int64_t in_blocks = divide_up(in_channels, problem.in_lanes());
  const int64_t most_bytes = most_panel_bytes(plan, problem, rates);
  if (panel_of_block * in_blocks > most_bytes) {
    const int fitting = static_cast<int>(std::max<int64_t>(1, most_bytes / panel_of_block));
    plan.chunk = plan.chunk == 0 ? fitting : std::min(plan.chunk, fitting);
  }
  if (input > kInputInCache) {
    const int64_t tiles = plan.rows == 0 ? 1 : divide_up(shape.y.out, plan.rows) * divide_up(shape.x.out, plan.cols);
    plan.tile_group = static_cast<int>(std::max<int64_t>(4, kGroupInput * tiles / input));
  }
}

// Which part of a window lies on the picture, on average.
double taps_inside(const ConvShape& shape) {
  double part = 1;
  for (const ConvAxis* axis : {&shape.y, &shape.x}) {
    int64_t inside = 0;
    for (const ConvTap& tap : axis->taps) {
      for (int64_t out = 0; out < axis->out; ++out) {
        const int64_t in = out * axis->stride + tap.offset;
        inside += in >= 0 && in < axis->in;
      }
    }
    part *= static_cast<double>(inside) / static_cast<double>(axis->out * static_cast<int64_t>(axis->taps.size()));
  }
  return part;
}

// Cycles in which threads that share the memory wait for a direct convolution's weights: seen where little else is to
// be done for each.
double stream_waits(const ConvProblem& problem, const ConvPlan& plan, int threads, const CoreRates& rates) {
  if (!has_two_wide_products(plan.isa, rates) || threads == 1) return 0;
  const double bytes = problem.flop() / static_cast<double>(problem.batch * problem.out_pixels()) * 2;
  return kStreamSeen * bytes / rates.all_memory_bytes;
}

std::vector<int> winograd_forms(const ConvProblem& problem) {
  std::vector<int> forms = {0};
  for (int outputs = 2; outputs <= problem.most_winograd; ++outputs) {
    if (is_winograd(problem, outputs)) forms.push_back(outputs);
  }
  return forms;
}

bool is_direct_part_equal(ConvPlan a, const ConvPlan& b) {
  a.winograd = b.winograd;
  a.winograd_group = b.winograd_group;
  a.strassen = b.strassen;
  a.narrow = b.narrow;
  return a == b;
}

bool prefers(const ConvPlan& plan, const ConvProblem& problem) {
  // Runs over ends of rows make every tile different code: only where few pixels are computed.
  return plan.rows != 0 || problem.out_pixels() <= 10 * 10;
}

// The output's way to memory binds.
bool has_very_few_steps(const ConvProblem& problem) { return steps_of(problem) < 16; }

// Beside two multipliers, what comes slowly from beyond L2 (Xeons) is asked for as seldom as registers allow: four or
// three blocks of outputs read a large picture half as often as two do. 256 > 64 channels at 56x56 take 7 % less, 96 >
// 96 at 80x80 7 %, 16 > 96 at 112x112 17 %; of 784 pixels nothing is gained.
bool reads_picture_seldom(const ConvPlan& plan, const ConvProblem& problem, const CoreRates& rates) {
  constexpr int64_t kFewestPixels = 900;
  const int64_t alike = blocks_alike(problem);
  return has_slow_l3(plan.isa, rates) && problem.phases[0].taps() == 1 && problem.phases[0].x.out >= kFewestPixels &&
         (alike % 4 == 0 || alike % 3 == 0);
}

// Few channels to multiply for each output: the end of a tile waits for memory. 12 > 96 channels at 160x160 take 14 %
// less. Of few steps each line that is fetched counts: only where the output is not found in L2 afterwards either.
// Two products in a cycle leave less time for what is read beside them: 512 > 1024 channels at 14x14 plus such a
// picture take 5 % less, at 2 threads 9 %. What is read seldom comes in time, unless hardly anything is multiplied.
bool prefers_ahead(const ConvPlan& plan, const ConvProblem& problem, const CoreRates& rates) {
  constexpr int64_t kVeryFewChannels = 64, kFewChannels = 256, kLargeOutput = 512 << 10, kLargeOperand = 256 << 10;
  if (problem.phases[0].taps() != 1 || plan.rows != 1) return false;
  if (reads_picture_seldom(plan, problem, rates) && !has_very_few_steps(problem)) return false;
  const int64_t output = problem.out_blocks() * problem.target_block_bytes();
  if (problem.epilogue.has_residual() && has_two_wide_products(plan.isa, rates) && output > kLargeOperand) return true;
  if (problem.in_channels > kFewChannels) return false;
  const auto l2_bytes = static_cast<int64_t>(cpu_facts().l2_bytes);
  return output > (problem.in_channels < kVeryFewChannels ? 2 * l2_bytes : kLargeOutput);
}

// Of one or two pixels, a panel's weights are read as fast as memory brings them, one behind the other, as the CPU's
// own prefetching likes it: lines asked for out of order cost 5 to 15 % (Zen 5). Four pixels are level, eight better
// with it.
bool prefers_prefetch(const ConvProblem& problem) { return problem.batch * problem.out_pixels() > 2; }

// Of few steps for each output, the end of a tile is a large part: small tiles let it run beside the next one's
// multiply-adds.
void shrink_tile(ConvPlan& plan, const ConvProblem& problem, const CoreRates& rates) {
  constexpr int64_t kFewSteps = 150, kFewOfTwo = 64;
  const ConvShape& shape = problem.phases[0];
  const int64_t steps = steps_of(problem);
  const bool runs_over_rows = plan.rows == 0 && shape.y.out > 1;
  if (!has_avx512(plan.isa) || steps > kFewSteps || runs_over_rows || shape.x.out < 12) return;
  const int64_t alike = blocks_alike(problem);
  ConvPlan small = plan;
  if (has_two_wide_products(plan.isa, rates)) {
    // Two blocks find loads enough for two multiply-adds in a cycle: 16 > 96 channels at 112x112 take 9 % less than
    // with 14 pixels, 64 > 256 at 56x56 4 %, 3x3 stems 6 %. Where very few steps are left 8 pixels are
    // best: 12 > 96 at 160x160 take 18 % less than with one block of 31 pixels.
    if (alike < 2 || alike == 3 || (shape.taps() == 1 && steps > kFewOfTwo)) return;
    small.blocks = 2;
    small.rows = shape.taps() > 1 && shape.y.out > 1 ? 4 : 1;
    small.cols = small.rows > 1 ? 2 : has_very_few_steps(problem) ? 8 : 6;
    small.embedded = false;
  } else {
    // Two blocks of outputs read the input once: 96 > 24 channels at 56x56 takes 5 % less than with one, 64 > 18 6 %,
    // 3x3 stems up to 4 %.
    small.blocks = static_cast<int>(std::min<int64_t>(2, alike));
    small.rows = small.blocks == 1 && shape.y.out > 1 ? 2 : 1;
    small.cols = small.blocks == 2 || small.rows == 2 ? 8 : 12;
    small.embedded = true;
    small.unroll = 16;
  }
  if (is_valid(small, problem)) plan = small;
}

// The code of large windows comes from L2 in each tile, and whole tiles are worth a loop's end. With 4 steps in a round
// 64 taps of 64 channels take 1.28 times as long as with one, 128 taps of 48 channels 1.57 times (Zen 5); by AVX2,
// whose steps are shorter, 64 taps up to 1.2 times as long as with two.
void limit_code(ConvPlan& plan, const ConvProblem& problem) {
  if (problem.in_lanes() == 1) return;                   // few channels, all of them straight code
  const int64_t most = has_avx512(plan.isa) ? 36 : 128;  // steps in straight code
  while (plan.unroll > 1 && plan.unroll * problem.phases[0].taps() > most) plan.unroll /= 2;
}

void widen_tile(ConvPlan& plan, const ConvProblem& problem) {
  ConvPlan wide = plan;
  wide.blocks = blocks_alike(problem) % 4 == 0 ? 4 : 3;
  wide.rows = 1;
  wide.cols = wide.blocks == 4 ? 6 : 8;
  wide.embedded = false;
  if (is_valid(wide, problem)) plan = wide;
}

// A core's other thread, when it is busy (others' virtual machines), leaves Xeons fewer turns for what is not
// multiplied. In tiles of four blocks by 6 pixels, with 10 loads for 24 products in place of 16 for 28, pointwise
// convolutions take 4 to 12 % less beside one, of 32 to 64 channels up to 20 %, and as long as before where the core is
// alone; but of more channels on small pictures 3 to 8 % more, as their panels come too fast. There broadcasts as
// operands take 2 to 5 % less beside another thread, and alone as long or up to 1.5 % more; not of weights that L2 has
// no room for beside the rest.
void spare_turns(ConvPlan& plan, const ConvProblem& problem, int threads, const CoreRates& rates) {
  constexpr int64_t kFewSteps = 320, kManySteps = 512, kManyPixels = 400, kFewestColumns = 12;
  constexpr int64_t kMostWeights = 256 << 10;
  constexpr double kMostCost = 1.03;  // what the tiles leave over, and threads to each other
  if (!has_slow_l3(plan.isa, rates) || problem.phases[0].taps() != 1) return;
  ConvPlan wide = plan;
  widen_tile(wide, problem);
  const int64_t most_steps = problem.out_pixels() >= kManyPixels ? kManySteps : kFewSteps;
  if (blocks_alike(problem) % 4 == 0 && steps_of(problem) <= most_steps &&
      cost_of(wide, problem, threads, rates) <= kMostCost * cost_of(plan, problem, threads, rates)) {
    plan = wide;
  } else if (plan.blocks == 2 && plan.cols >= kFewestColumns &&
             steps_of(problem) * problem.out_channels <= kMostWeights && shared_pixels(problem, plan, 2, rates) == 1) {
    plan.embedded = true;
  }
}

// The widest tile of sums along the input's channels; nullopt: they have too many outputs.
std::optional<ConvPlan> dots_plan(const ConvProblem& problem, Isa isa) {
  const ConvShape& shape = problem.phases[0];
  std::optional<ConvPlan> widest;
  for (int cols = 1; cols <= std::min<int64_t>(vector_registers(isa), shape.x.out); ++cols) {
    ConvPlan plan{.isa = isa, .cols = static_cast<int>(largest_size(shape.x.out, cols)), .prefetch = false};
    plan.dots = true;
    plan.chunk = problem.most_blocks_at_once();
    const int64_t rows = std::min<int64_t>(vector_registers(isa) / plan.cols, shape.y.out);
    for (plan.rows = static_cast<int>(rows); plan.rows > 1 && !is_valid(plan, problem);) --plan.rows;
    if (is_valid(plan, problem)) widest = plan;
  }
  return widest;
}

}  // namespace

ConvPlan choose_conv_plan(const ConvProblem& problem, Isa isa, int threads, const CoreRates& rates) {
  ConvPlan best;
  double best_cost = -1;
  const int registers = vector_registers(isa);
  const ConvShape& shape = problem.phases[0];
  for (int blocks = 1; blocks <= std::min<int64_t>(registers / 2, blocks_alike(problem)); ++blocks) {
    for (int rows = shape.y.out == 1 ? 1 : 0; rows <= std::min<int64_t>(8, shape.y.out); ++rows) {
      const int64_t width = rows == 0 ? shape.y.out * shape.x.out : shape.x.out;
      for (int cols = 1; cols <= std::min<int64_t>(registers, width); ++cols) {
        // Only widths that differ in what they cut.
        if (cols > 1 && cols < width && largest_size(width, cols) < cols) continue;
        for (const bool embedded : {false, true}) {
          ConvPlan plan{isa, blocks, rows, cols, embedded};
          plan.chunk = problem.most_blocks_at_once();
          if ((embedded && blocks > 1) || !is_valid(plan, problem) || !prefers(plan, problem)) continue;
          const double cost = cost_of(plan, problem, threads, rates);
          if (best_cost >= 0 && cost >= best_cost) continue;
          best = plan;
          best_cost = cost;
        }
      }
    }
  }
  limit_code(best, problem);
  if (reads_picture_seldom(best, problem, rates)) {
    widen_tile(best, problem);
  } else {
    shrink_tile(best, problem, rates);
    spare_turns(best, problem, threads, rates);
  }
  choose_blocking(best, problem, rates);
  const std::optional<ConvPlan> dots = dots_plan(problem, isa);
  const double dots_cost = dots ? cost_of(*dots, problem, threads, rates) : best_cost;
  const WinogradChoice winograd = choose_winograd(problem, isa, threads, rates);
  if (winograd.outputs > 0 && winograd.cycles < std::min(best_cost, dots_cost) * taps_inside(shape) +
                                                    stream_waits(problem, best, threads, rates)) {
    best.winograd = winograd.outputs;
    best.winograd_group = winograd.tile_group;
    best.narrow = winograd.narrow;
  }
  // In narrow groups all channels of a block are multiplied otherwise.
  const bool is_narrow = problem.groups > 1;
  if (best.winograd == 0 && dots && (is_narrow || dots_cost < best_cost)) return *dots;
  best.prefetch = prefers_prefetch(problem);
  best.ahead = prefers_ahead(best, problem, rates);
  if (best.winograd == 0) {
    best.strassen = prefers_strassen(problem, isa, threads, rates);
  } else if (const auto group = choose_fewer_products(problem, best, threads, rates)) {
    best.strassen = true;
    best.narrow = false;
    best.winograd_group = *group;
  }
  return best;
}

SearchSpace conv_search_space(const ConvProblem& problem, Isa isa, int threads) {
  SearchSpace space;
  const ConvPlan fallback = choose_conv_plan(problem, isa, threads);
  space.fallback = to_candidate(fallback);
  const ConvShape& shape = problem.phases[0];
  std::vector<int> cols;
  for (int64_t most = 1; most <= std::min<int64_t>(28, shape.y.out * shape.x.out); ++most) {
    if (largest_size(shape.x.out, most) == most || most > 8) cols.push_back(static_cast<int>(most));
  }
  space.knobs = {{"blocks", with_choice({1, 2, 3, 4, 6}, fallback.blocks)},
                 {"rows", with_choice({0, 1, 2, 4, 7}, fallback.rows)},
                 {"cols", with_choice(cols, fallback.cols)},
                 {"embedded", off_or_on(has_avx512(isa))},
                 {"unroll", with_choice({4, 8, 16}, fallback.unroll)},
                 {"chunk", with_choice({0, 4, 8, 16, 32}, fallback.chunk)},
                 {"group", with_choice({0, 4, 8, 16, 32}, fallback.tile_group)},
                 {"prefetch", {0, 1}},
                 {"winograd", winograd_forms(problem)},
                 {"winograd_group", with_choice({0, 16, 28, 56, 112}, fallback.winograd_group)},
                 {"ahead", {0, 1}},
                 {"dots", off_or_on(dots_plan(problem, isa).has_value())},
                 {"strassen", off_or_on(can_be_strassen(fallback, problem))},
                 {"narrow", off_or_on(fallback.winograd > 0 && can_be_narrow(problem))}};
  space.allowed = [problem, isa, fallback](const Candidate& candidate) {
    const ConvPlan plan = plan_of(candidate, isa);
    if (!is_valid(plan, problem)) return false;
    // What one algorithm does not read stands as in the fallback, so that no plan has two names.
    if (plan.winograd == 0 && plan.winograd_group != 0) return false;
    if (plan.winograd > 0 || plan.strassen) return is_direct_part_equal(plan, fallback);
    if (plan.dots && (plan.unroll != fallback.unroll || plan.chunk != fallback.chunk)) return false;
    const int sums = plan.dots ? dots_of(problem) : plan.blocks;
    const int pixels = std::max(plan.rows, 1) * plan.cols * sums;
    return pixels * 3 >= vector_registers(isa);
  };
  return space;
}

}  // namespace lathe
