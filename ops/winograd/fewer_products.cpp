#include "ops/winograd/fewer_products.h"

#include <algorithm>
#include <utility>

#include "ops/core_cycles.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

int64_t columns_of(const ConvProblem& problem) { return problem.out_blocks() * problem.lanes; }

int64_t depth_of(const ConvProblem& problem, const WinogradForm& form) {
  return problem.in_channels * form.row_phases() * form.column_phases();
}

// Tiles that are whole along both axes, which all frequencies have.
int64_t whole_tiles(const ConvProblem& problem, const WinogradForm& form) {
  const ConvShape& shape = problem.phases[0];
  return problem.batch * (shape.y.out / form.out_rows()) * (shape.x.out / form.outputs);
}

// Beside two multipliers sums wait for their ports, and B comes from memory in the meantime: of all tiles at once,
// where additions take the multipliers' turns (Xeons) and at 1 thread. 256 channels of 56x56 pixels take 6 % less, 512
// of 40x40 15 %; 256 of 40x40 8 % more, 1,024 of 32x32 6 %. On Zen 5 those of 56x56 take 6 % more, 512 of 28x28 15 %.
// Two threads are not measured.
std::optional<int> choose_beside_two(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                     const CoreRates& rates) {
  constexpr int64_t kFewestTiles = 96, kFewestChannels = 256, kFewestValues = 192 * kFewestChannels;
  if (rates.adds_beside || threads > 1) return std::nullopt;
  const WinogradForm form = winograd_form(problem, plan.winograd);
  const int64_t tiles = whole_tiles(problem, form), channels = std::min(columns_of(problem), depth_of(problem, form));
  if (tiles < kFewestTiles || channels < kFewestChannels || tiles * channels < kFewestValues) return std::nullopt;
  return 0;
}

}  // namespace

bool can_multiply_fewer(const ConvProblem& problem, Isa isa, int outputs) {
  constexpr int64_t kFewestTiles = 2;
  if (!problem.allows_sums_of_blocks() || !is_winograd_of_blocks(problem, outputs) || problem.groups > 1) return false;
  const WinogradForm form = winograd_form(problem, outputs);
  return form.stride == 1 && longest_sum_of(form, problem) == 0 && problem.lanes == vector_lanes(isa) &&
         problem.in_channels % problem.lanes == 0 && whole_tiles(problem, form) >= kFewestTiles &&
         has_quadrants(shape_in_blocks(kStrassen222, isa, kFewestTiles, columns_of(problem), depth_of(problem, form)));
}

std::optional<int> choose_fewer_products(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                         const CoreRates& rates) {
  // Two multipliers of half the width wait for sums that are made while B is loaded (AVX2 on Zen 4: 2 to 5 % longer).
  // Frequencies are shared evenly by two threads.
  if (!has_avx512(plan.isa) || !pays_strassen(plan.isa, rates) || threads > 2) return std::nullopt;
  if (!can_multiply_fewer(problem, plan.isa, plan.winograd)) return std::nullopt;
  if (has_two_wide_products(plan.isa, rates)) return choose_beside_two(problem, plan, threads, rates);
  constexpr StrassenOverhead kOverhead{7, 7};
  constexpr double kLeastGain = 0.055, kLeastGainOfTwo = 0.075;
  const WinogradForm form = winograd_form(problem, plan.winograd);
  if (strassen_gain(kStrassen222, columns_of(problem), depth_of(problem, form), kOverhead) <
      (threads == 1 ? kLeastGain : kLeastGainOfTwo))
    return std::nullopt;
  // Below, tiles of half as many rows wait for B: 256 channels of 56x56 pixels take 5 % longer in groups of 16 tiles,
  // and 7 % less in groups of 28. Two threads read all weights each, the more seldom the better, and what one of them
  // would have to sum up from the other's cache takes all that is gained.
  constexpr int64_t kFewestTiles = 24, kGroup = 28, kGroupOfTwo = 49;
  const int64_t tiles = divide_up(whole_tiles(problem, form), threads);
  if (tiles < kFewestTiles) return std::nullopt;
  if (threads == 1 && plan.winograd_group == 0) return 0;
  return static_cast<int>(std::min(tiles, threads == 1 ? std::max<int64_t>(plan.winograd_group, kGroup) : kGroupOfTwo));
}

FewerProducts::FewerProducts(const GemmProblem& problem, std::vector<GemmOffsets> offsets)
    : core_(shape_in_blocks(kStrassen222, problem.isa, problem.m, problem.n, problem.k)),
      offsets_(std::move(offsets)) {}

void FewerProducts::run(const Operands& operands, int share, int shares) const noexcept {
  const int64_t lanes = vector_lanes(core_.shape().isa);
  const Range mine = split_evenly(static_cast<long>(offsets_.size()), share, shares);
  Strassen::Operands bound;
  bound.a_layout = {lanes, operands.a_block};
  bound.c_layout = {lanes, operands.c_block};
  bound.sums = operands.sums;
  for (long i = mine.begin; i < mine.end; ++i) {
    const GemmOffsets& at = offsets_[static_cast<size_t>(i)];
    bound.a = operands.a + at.a;
    bound.b = operands.b + at.b;
    bound.c = operands.c + at.c;
    bound.next_weights = i + 1 < mine.end ? operands.b + offsets_[static_cast<size_t>(i) + 1].b : operands.next_weights;
    core_.sum(bound.a, bound.a_layout, operands.sums, 0, 1);
    core_.run(bound, 0, 1, [](int64_t, int64_t, int64_t, int64_t) {});
  }
}

const float* FewerProducts::first_weights(const float* b, int share, int shares) const noexcept {
  const Range mine = split_evenly(static_cast<long>(offsets_.size()), share, shares);
  return mine.begin < mine.end ? b + offsets_[static_cast<size_t>(mine.begin)].b : nullptr;
}

}  // namespace lathe
