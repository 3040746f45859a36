#include "ops/gemm/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/core_cycles.h"
#include "ops/gemm/gemm_strassen.h"
#include "ops/gemm/gemm_tuning.h"
#include "ops/work_split.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Rows this far apart fall into one set of L1.
bool shares_cache_set(int64_t row_stride) { return row_stride > 0 && row_stride % 1024 == 0; }

// Of the last vector, if it is not whole.
int64_t last_columns(const GemmProblem& problem) {
  return (problem.n - problem.zero_columns) % vector_lanes(problem.isa);
}

// Tiles of 6 rows by 64 columns in place of 14 by 32 on Xeons: of short sums, whose ends are a large part, 36 products
// of 64 to 196 rows with k of 64 take 2 to 13 % less, and as long from k 128 and 192 columns on. Their panels come
// twice as fast for each row: with 28 rows that costs 3 to 7 % but for the shortest sums.
bool prefers_four_vectors(const GemmProblem& problem, const CoreRates& rates) {
  constexpr int64_t kShort = 128, kShortest = 32, kFewestRows = 48, kMostWeights = 24 << 10;
  if (problem.has_few_rows() || !has_slow_l3(problem.isa, rates) || problem.n % 64 != 0) return false;
  if (problem.m < kFewestRows) return problem.k <= kShortest;
  return problem.k <= kShort && problem.k * problem.n <= kMostWeights;
}

// Panel width and tile height. With few rows the product only streams B: wide panels, so that enough loads are under
// way; from there on the tile that keeps the multipliers busy with the fewest loads.
void choose_tile(const GemmProblem& problem, const CoreRates& rates, GemmPlan& plan) {
  if (has_avx512(problem.isa)) {
    static constexpr int kVecs[] = {0, 12, 10, 7, 6, 5, 4, 3, 3};
    plan.vecs = problem.has_few_rows() ? kVecs[problem.m] : 2;
    plan.rows = problem.has_few_rows() ? static_cast<int>(problem.m) : 14;
    // Rows of A a multiple of 4 KiB apart share one set of L1, which has 8 ways or more: 98 % of peak against 84.
    // Otherwise, too, fewer broadcasts gain 1 to 4 %, where panels of 48 columns leave little over. A model's own
    // products take them for few rows as well: sequences of all lengths then share packed weights.
    const bool shares_set = shares_cache_set(problem.a_stride > 0 ? problem.a_stride : problem.k);
    const int64_t fewest_rows = problem.allows_strassen ? 15 : 64;
    const bool fits_wide = problem.m >= fewest_rows && (problem.n % 48 == 0 || problem.n >= 1024);
    // Not a panel of a single vector at the end: there nothing is gained where rows share it.
    const bool shares_third = problem.m >= 15 && (rows_that_share(problem, rates) > 1 || halves_last(problem, rates)) &&
                              divide_up(problem.n, vector_lanes(problem.isa)) % 2 == 1;
    if (prefers_four_vectors(problem, rates)) {
      plan.vecs = 4;
      plan.rows = 6;
    } else if (!problem.has_few_rows() && (shares_set || fits_wide || shares_third)) {
      plan.vecs = 3;
      plan.rows = 8;
    }
  } else {
    // Tiles of two vectors let few rows wait for B: 5 to 8 rows by 768 to 4,096 take 1.0 to 1.6 times as long on Zen 4.
    static constexpr int kVecs[] = {0, 8, 6, 3, 3, 4, 4, 4, 4};
    plan.vecs = problem.has_few_rows() ? kVecs[problem.m] : 2;
    plan.rows = !problem.has_few_rows() ? 6 : problem.m <= 4 ? static_cast<int>(problem.m) : 3;
  }
  const int lanes = vector_lanes(problem.isa);
  plan.vecs = static_cast<int>(std::min<int64_t>(plan.vecs, divide_up(problem.n, lanes)));
}

// Of block floating point, all rows at once: an element is decoded for all of them. On Zen 4 two vectors take two
// thirds of the time of four, which are best on Xeons.
void choose_bfp20_tile(const GemmProblem& problem, const CoreRates& rates, GemmPlan& plan) {
  static constexpr int kVecsOfXeons[] = {0, 4, 4, 3, 2, 2, 2, 2, 2}, kVecsOfAvx2[] = {0, 4, 3, 2, 2, 2, 1, 1, 1};
  int vecs = has_avx512(problem.isa) ? kVecsOfXeons[problem.m] : kVecsOfAvx2[problem.m];
  if (has_avx512(problem.isa) && rates.adds_beside) vecs = 2;
  plan.rows = static_cast<int>(problem.m);
  plan.vecs = static_cast<int>(std::min<int64_t>(vecs, divide_up(problem.n, vector_lanes(problem.isa))));
}

// Of 16 bits. By AVX2 two rows by six vectors come to a panel again: on Zen 4 that takes 0.6 to 0.8 times as long as
// three or four rows at once.
void choose_half_tile(const GemmProblem& problem, GemmPlan& plan) {
  if (has_avx512(problem.isa) || problem.m == 1) return;
  plan.rows = 2;
  plan.vecs = static_cast<int>(std::min<int64_t>(6, divide_up(problem.n, vector_lanes(problem.isa))));
}

// Whether an element is decoded and multiplied in less time than it takes to come from memory as float32. What is half
// as long always does.
bool pays_narrow(const GemmProblem& problem, const CoreRates& rates) {
  if (has_16_bits(problem.narrow)) return true;
  // As many multiply-adds take as long. Zen 5 converts beside them.
  const bool is_cheap = problem.narrow == WeightFormat::bfp24 && adds_beside_two(problem.isa, rates);
  const double decoding = is_cheap ? 1 : problem.narrow == WeightFormat::bfp24 || has_avx512(problem.isa) ? 3 : 6;
  const double cycles = (static_cast<double>(problem.m) + decoding) / products_per_cycle(problem.isa, rates);
  const double bytes = problem.threads > 1 ? rates.all_memory_bytes / problem.threads : rates.memory_bytes;
  return cycles < vector_lanes(problem.isa) * 4 / bytes;
}

// How much longer the thread with most of these items takes than it would if all were cut.
double imbalance(int64_t items, int threads) {
  return static_cast<double>(divide_up(items, threads) * threads) / static_cast<double>(items);
}

// The same of columns, which come in panels; a product's last one may be narrower.
double columns_imbalance(const SplitProblem& problem) {
  const int64_t panels = divide_up(problem.n, problem.panel_columns);
  const int64_t missing = panels * problem.panel_columns - problem.n;
  int64_t most = 0;
  for (int thread = 0; thread < problem.threads; ++thread) {
    const Range mine = split_evenly(static_cast<long>(problem.batches * panels), thread, problem.threads);
    const int64_t narrow = mine.end / panels - mine.begin / panels;
    most = std::max(most, (mine.end - mine.begin) * problem.panel_columns - narrow * missing);
  }
  return static_cast<double>(most * problem.threads) / static_cast<double>(problem.batches * problem.n);
}

void choose_fast_tile(const GemmProblem& problem, int64_t columns, GemmPlan& plan) {
  plan.vecs = 2;
  plan.rows = has_avx512(problem.isa) ? 14 : 6;
  if (!has_avx512(problem.isa)) return;
  const bool is_wide = columns % 64 == 0;
  if (columns % 48 == 0 && !(is_wide && scheme_of(plan.fast).packs_sums)) {
    plan.vecs = 3;
    plan.rows = 8;
  } else if (is_wide) {
    plan.vecs = 4;
    plan.rows = 6;
  }
}

constexpr double kMostImbalance = 1.1;

bool splits_columns_evenly(const GemmProblem& problem, const GemmPlan& fast) {
  const int64_t width = int64_t{scheme_of(fast.fast).columns} * fast.vecs * vector_lanes(problem.isa);
  return imbalance(problem.n / width, problem.threads) <= kMostImbalance;
}

// Rows of one thread that pay for packed sums beside two multipliers: seven products for eight save less, and memory
// has to bring 1.67 to 1.75 times the bytes in the meantime.
int64_t fewest_of_two(const GemmPlan& fast, const CoreRates& rates) {
  constexpr double kRowsForBytes = 384;  // 48 rows at 8 bytes a cycle, 87 at 4.4
  const auto streamed = static_cast<int64_t>(kRowsForBytes / rates.memory_bytes);
  return std::max<int64_t>(streamed, fast.fast == FastProduct::hopcroft_kerr ? 48 : 80);
}

// Threads with rows of their own make A's sums of these only, and read what they wrote themselves, product after
// product; but each streams all of B, so that the rows have to be many. Two multipliers want more of them yet: in tiles
// for half as many rows they wait for B, and columns take 2 to 8 % less from 128 to 256 rows at 2 threads.
bool splits_rows(const GemmProblem& problem, const GemmPlan& fast, const CoreRates& rates) {
  constexpr int64_t kFewest = 64, kManyOfTwo = 192;
  if (!pays_own_copies(problem.threads)) return false;
  if (!has_two_wide_products(problem.isa, rates)) return problem.m >= kFewest * problem.threads;
  return problem.m >=
         problem.threads * (splits_columns_evenly(problem, fast) ? kManyOfTwo : fewest_of_two(fast, rates));
}

// Two multipliers are through with B so soon that fewer rows wait for its packed sums: of 32 rows and 768 by 768 the
// plain product takes 12 % less, of 48 about 5 % more. Sums of A and visits to C count for more, too: found at 128 to
// 1,568 rows by 192 to 1,024 and k of 96 to 1,024. Where additions take the multipliers' turns, sums cost more still.
bool prefers_packed_sums(const GemmProblem& problem, const GemmPlan& fast, const CoreRates& rates) {
  const BilinearScheme& scheme = scheme_of(fast.fast);
  // A split by rows has as many for each thread: splits_rows().
  if (problem.threads == 1 || fast.split == GemmSplit::rows) {
    constexpr int64_t kManyRows = 128;
    const StrassenOverhead overhead = rates.adds_beside ? StrassenOverhead{25, 14} : StrassenOverhead{30, 30};
    const double least_gain = problem.m >= kManyRows * problem.threads ? 0.0125 : 0.07;
    return problem.m >= fewest_of_two(fast, rates) &&
           strassen_gain(scheme, problem.n, problem.k, overhead) >= least_gain;
  }
  const double each = rates.adds_beside ? 22 : 30;
  const StrassenOverhead overhead{each, each};
  if (!splits_columns_evenly(problem, fast)) return false;
  constexpr int64_t kFewestRows = 96;
  if (pays_own_copies(problem.threads)) {  // near each other
    constexpr int64_t kFewestNear = 64;
    const double least_gain = problem.m >= kFewestRows ? 0.035 : 0.08;
    return problem.m >= std::max(kFewestNear, fewest_of_two(fast, rates)) &&
           strassen_gain(scheme, problem.n, problem.k, overhead) >= least_gain;
  }
  constexpr int64_t kMostSumsBytes = 4 << 20;
  constexpr double kLeastGain = 0.08;
  return problem.m >= kFewestRows && problem.m * scheme.sums_per_row(problem.k) * 4 <= kMostSumsBytes &&
         strassen_gain(scheme, problem.n / problem.threads, problem.k, overhead) >= kLeastGain;
}

// Packed sums of B are 1.67 or 1.75 times what B is: with few rows for each thread the memory would not keep up. Sums
// that are made while B is loaded are made for each tile, and cost short products more. Threads make A's sums each for
// itself, or exchange them.
bool prefers_fast(const GemmProblem& problem, const GemmPlan& fast, const CoreRates& rates) {
  constexpr StrassenOverhead kOverhead{14, 14};
  const BilinearScheme& scheme = scheme_of(fast.fast);
  const bool is_packed = scheme.packs_sums;
  if (has_two_wide_products(problem.isa, rates)) return prefers_packed_sums(problem, fast, rates);
  const bool is_costly = !is_packed && !has_avx512(problem.isa);  // lower tiles of narrower vectors load B more often
  const bool by_rows = fast.split == GemmSplit::rows;
  // Threads with many rows of their own gain as one does: 256 rows by 256 to 1,024 columns and k 2 to 17 % at 2
  // threads, where 64 rows for each lose 2 to 4 % below a gain of 0.05.
  const bool is_alone = problem.threads == 1 || (by_rows && problem.m >= 128 * problem.threads);
  const double least_gain = !is_alone ? (by_rows ? 0.05 : 0.06) : is_costly ? 0.045 : 0.015;
  const int64_t columns = by_rows ? problem.n : problem.n / problem.threads;
  if (strassen_gain(scheme, columns, problem.k, kOverhead) < least_gain) return false;
  if (!by_rows && !splits_columns_evenly(problem, fast)) return false;
  if (is_packed) return problem.m >= std::max(24, 16 * problem.threads);
  return problem.m >= (problem.k >= 512 && !is_costly ? 32 : 96);
}

// The sums of a wave of rows shall stay near L2 while all panels pass. But each wave streams all of B, which two
// multipliers wait for: 197 rows and k 3,072 are 8 % faster in one wave than in two. Threads whose sums fill L3 lose
// more by that: 1,024 rows by 768 and k 3,072 take 4 % less in waves of 128 for each of two threads than of 256.
int rows_of_wave(const GemmProblem& problem, const GemmPlan& fast, const CoreRates& rates) {
  constexpr int64_t kSumsBytes = 2 << 20, kMostOfThread = 4 << 20, kMostRows = 512;
  const BilinearScheme& scheme = scheme_of(fast.fast);
  if (!scheme.packs_sums) return kMostRows;
  const int64_t sums_of_row = std::max<int64_t>(1, scheme.sums_per_row(std::min<int64_t>(problem.k, kLongestSums)) * 4);
  int64_t fewest = 128;
  if (has_two_wide_products(problem.isa, rates))
    fewest = fast.split == GemmSplit::rows ? std::clamp<int64_t>(kMostOfThread / sums_of_row, fewest, 256) : 256;
  return static_cast<int>(std::clamp<int64_t>(kSumsBytes / sums_of_row, fewest, kMostRows));
}

GemmPlan plan_by(FastProduct scheme, const GemmProblem& problem, const GemmPlan& plan, const CoreRates& rates) {
  GemmPlan fast = plan;
  fast.fast = scheme;
  fast.k_block = scheme == FastProduct::hopcroft_kerr ? kLongestSums : 1024;
  choose_fast_tile(problem, problem.n / scheme_of(scheme).columns, fast);
  fast.split = splits_rows(problem, fast, rates) ? GemmSplit::rows : GemmSplit::columns;
  fast.row_block = rows_of_wave(problem, fast, rates);
  return fast;
}

// The plan itself where no scheme pays, or where the extents are odd. Fifteen products for eighteen gain more than
// seven for eight. Beside two multipliers the seven have packed sums, too: with sums of B for each tile they are up to
// 4 % faster than the plain product from 256 rows on and 2 to 20 % slower below, with packed ones 4 to 18 % faster.
GemmPlan fast_plan(const GemmProblem& problem, const GemmPlan& plan, const CoreRates& rates) {
  const bool is_of_two = has_two_wide_products(problem.isa, rates);
  for (const FastProduct scheme :
       {FastProduct::hopcroft_kerr, is_of_two ? FastProduct::packed_strassen : FastProduct::strassen}) {
    const GemmPlan fast = plan_by(scheme, problem, plan, rates);
    if (is_valid(fast, problem) && prefers_fast(problem, fast, rates)) return fast;
  }
  return plan;
}

GemmSplit split_of(const GemmProblem& problem, const GemmPlan& plan) {
  const int64_t panel_columns = int64_t{plan.vecs} * vector_lanes(problem.isa);
  return choose_split({problem.batches, problem.m, problem.n, panel_columns, plan.rows, problem.threads});
}

bool can_use_narrow(const GemmProblem& problem, const GemmPlan& plan) {
  if (problem.narrow != plan.weights || problem.b != GemmOperandB::packed || problem.k == 0 ||
      plan.fast != FastProduct::none) {
    return false;
  }
  if (plan.weights == WeightFormat::bfp24) return problem.k % Bfp24::kGroupRows == 0;
  if (problem.batches != 1) return false;
  return plan.k_block >= 2 * unit_rows(plan.weights) &&
         (plan.weights != WeightFormat::bfp20 || problem.k % Bfp20::kGroupRows == 0);
}

}  // namespace

std::string GemmProblem::key() const {
  static constexpr std::string_view kForms[] = {"packed", "row_major", "transposed"};
  std::string text =
      fmt::format("f32 b{} m{} n{} k{} {} {}", batches, m, n, k, kForms[static_cast<size_t>(b)], name_of(isa));
  if (a_stride > 0) text += fmt::format(" lda{}", a_stride);
  if (b_stride > 0) text += fmt::format(" ldb{}", b_stride);
  if (allows_strassen) text += " strassen";
  if (narrow != WeightFormat::f32) text += fmt::format(" {}", name_of(narrow));
  if (accumulates) text += " accumulates";
  if (zero_columns > 0) text += fmt::format(" zeros{}", zero_columns);
  if (longest_sum > 0) text += fmt::format(" sums{}", longest_sum);
  if (epilogue) text += " " + to_string(*epilogue);
  return text;
}

std::string GemmPlan::key() const {
  static constexpr std::string_view kFast[] = {"", "strassen", "strassen 2x3x3", "strassen packed"};
  static constexpr std::string_view kSplits[] = {"columns", "rows", "same columns"};
  if (fast != FastProduct::none)
    return fmt::format("gemm {} {}x{} kb{} rb{}{}{}", kFast[static_cast<size_t>(fast)], rows, vecs, k_block, row_block,
                       embed_broadcast ? " embed" : "", split == GemmSplit::rows ? " rows" : "");
  std::string text = fmt::format("gemm {}x{} k{} kb{} rb{}{}{}", rows, vecs, k_unroll, k_block, row_block,
                                 embed_broadcast ? " embed" : "", pack_b ? " pack" : "");
  if (weights != WeightFormat::f32) text += fmt::format(" {}", name_of(weights));
  return text + fmt::format(" {}", kSplits[static_cast<size_t>(split)]);
}

Candidate GemmPlan::to_candidate() const {
  return {{"rows", rows},
          {"vecs", vecs},
          {"k_unroll", k_unroll},
          {"k_block", k_block},
          {"row_block", row_block},
          {"embed", embed_broadcast},
          {"pack_b", pack_b},
          {"weights", static_cast<int>(weights)},
          {"split_rows", split == GemmSplit::rows},
          {"strassen", static_cast<int>(fast)}};
}

GemmPlan GemmPlan::from_candidate(const Candidate& candidate) {
  const auto get = [&](const char* name, int fallback) {
    const auto found = candidate.find(name);
    return found == candidate.end() ? fallback : found->second;
  };
  GemmPlan plan;
  plan.rows = get("rows", plan.rows);
  plan.vecs = get("vecs", plan.vecs);
  plan.k_unroll = get("k_unroll", plan.k_unroll);
  plan.k_block = get("k_block", plan.k_block);
  plan.row_block = get("row_block", plan.row_block);
  plan.embed_broadcast = get("embed", 0) != 0;
  plan.pack_b = get("pack_b", 0) != 0;
  plan.weights = static_cast<WeightFormat>(std::clamp(get("weights", 0), 0, static_cast<int>(WeightFormat::bfp24)));
  plan.split = get("split_rows", 0) != 0 ? GemmSplit::rows : GemmSplit::columns;
  plan.fast = static_cast<FastProduct>(std::clamp(get("strassen", 0), 0, 3));
  return plan;
}

bool is_valid(const GemmPlan& plan, const GemmProblem& problem) {
  if (plan.k_block < 1 || plan.row_block < 1 || problem.m < 1 || problem.n < 1 || problem.k < 0) return false;
  if (plan.weights != WeightFormat::f32 && !can_use_narrow(problem, plan)) return false;
  if (plan.fast != FastProduct::none && !can_use_strassen(problem, plan)) return false;
  GemmTilePlan tile;
  tile.isa = problem.isa;
  tile.rows = plan.rows;
  tile.vecs = plan.vecs;
  tile.k_unroll = plan.k_unroll;
  tile.longest_sum = problem.longest_sum;
  tile.embed_broadcast = plan.embed_broadcast;
  tile.weights = plan.weights;
  tile.b_in_place = problem.b == GemmOperandB::row_major && !plan.pack_b;
  tile.masked = problem.n % vector_lanes(problem.isa) != 0;
  tile.epilogue = problem.epilogue;
  return tile.is_valid();
}

int rows_that_share(const GemmProblem& problem, const CoreRates& rates) {
  if (problem.b != GemmOperandB::packed) return 1;
  return rows_that_share(last_columns(problem), problem.isa, rates);
}

bool halves_last(const GemmProblem& problem, const CoreRates& rates) {
  return halves_last(last_columns(problem), problem.isa, rates);
}

bool fetches_weights(const GemmProblem& problem, WeightFormat weights, const CoreRates& rates) {
  if (!fetches_into_l2(rates) || problem.b != GemmOperandB::packed || !problem.has_few_rows()) return false;
  if (adds_beside_two(problem.isa, rates)) return problem.m >= (has_16_bits(weights) ? 2 : 3);
  return problem.m > 1 || weights != WeightFormat::f32;
}

RowTiles row_tiles(const GemmPlan& plan, int64_t rows, int threads) {
  const int64_t tiles = divide_up(rows, plan.rows);
  return {rows, plan.split == GemmSplit::rows ? std::min(rows, round_up(tiles, threads)) : tiles};
}

const BilinearScheme& scheme_of(FastProduct fast) {
  switch (fast) {
    case FastProduct::hopcroft_kerr:
      return kHopcroftKerr233;
    case FastProduct::packed_strassen:
      return kPackedStrassen222;
    default:
      return kStrassen222;
  }
}

bool makes_own_sums(const GemmProblem& problem, bool are_far, const CoreRates& rates) {
  return pays_own_copies(problem.threads) && (are_far || !has_two_wide_products(problem.isa, rates));
}

GemmSplit choose_split(const SplitProblem& problem) {
  // As many rows take as long as it costs to stream B for them (Zen 5, 2 threads: 128 rows by 768 by 768 take 10 %
  // longer by rows, 512 as long, bytes 16 % longer and 3 % less).
  constexpr double kRowsForB = 6.5;
  constexpr double kExchange = 1.03;  // A comes from the other threads' caches
  if (problem.threads == 1 || problem.m < 1 || problem.n < 1) return GemmSplit::columns;
  const double rows = static_cast<double>(problem.m) / problem.threads;
  const double by_rows = imbalance(divide_up(problem.m, problem.tile_rows), problem.threads) * (1 + kRowsForB / rows);
  const double by_columns = columns_imbalance(problem) * (problem.batches == 1 ? kExchange : 1);
  return by_columns <= by_rows ? GemmSplit::columns : GemmSplit::rows;
}

GemmPlan bfp24_plan(const GemmProblem& problem, GemmPlan plan) {
  plan.weights = WeightFormat::bfp24;
  plan.k_unroll = Bfp24::kGroupRows;
  plan.rows = has_avx512(problem.isa) ? 14 : 6;
  plan.vecs = static_cast<int>(std::min<int64_t>(2, divide_up(problem.n, vector_lanes(problem.isa))));
  plan.split = split_of(problem, plan);
  return plan;
}

GemmPlan default_gemm_plan(const GemmProblem& problem, const CoreRates& rates) {
  GemmPlan plan;
  choose_tile(problem, rates, plan);
  plan.split = split_of(problem, plan);
  // A block of A's rows shall stay in L2 beside two panels of B.
  constexpr int64_t kRowBlockFloats = 96 << 10;
  plan.row_block = static_cast<int>(
      std::clamp<int64_t>(kRowBlockFloats / std::clamp<int64_t>(problem.k, 1, 1024), 2 * plan.rows, int64_t{1} << 20));
  // Rows of B far apart cost a TLB entry each; the copy pays when several tiles use it.
  plan.pack_b = problem.b == GemmOperandB::row_major && problem.m >= 4 * plan.rows &&
                (problem.n >= 512 || shares_cache_set(problem.b_stride > 0 ? problem.b_stride : problem.n));
  while (!is_valid(plan, problem) && plan.vecs > 1) --plan.vecs;  // AVX2's mask takes a register
  if (problem.narrow == WeightFormat::bfp24 && pays_narrow(problem, rates)) return bfp24_plan(problem, plan);
  if (problem.narrow != WeightFormat::f32 && problem.has_few_rows() && pays_narrow(problem, rates)) {
    GemmPlan narrow = plan;
    narrow.weights = problem.narrow;
    problem.narrow == WeightFormat::bfp20 ? choose_bfp20_tile(problem, rates, narrow)
                                          : choose_half_tile(problem, narrow);
    if (is_valid(narrow, problem)) return narrow;
  }
  return problem.allows_strassen && pays_strassen(problem.isa, rates) ? fast_plan(problem, plan, rates) : plan;
}

GemmPlan choose_gemm_plan(const GemmProblem& problem, PlanSource& plans) {
  const GemmPlan plan = GemmPlan::from_candidate(plans.choose(gemm_tuning_task(problem)));
  return is_valid(plan, problem) ? plan : default_gemm_plan(problem);
}

}  // namespace lathe
