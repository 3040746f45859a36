// The choice of plans for products of integers: the rule, and what a search may try instead.
#include <fmt/format.h>

#include <algorithm>

#include "lathe/tensor.h"
#include "ops/bench_operands.h"
#include "ops/core_cycles.h"
#include "ops/int8/int8_product.h"
#include "ops/work_split.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Panel width and tile height, as for float32: few rows stream wide panels, many keep the multipliers busy.
void choose_tile(const Int8Problem& problem, const CoreRates& rates, GemmPlan& plan) {
  const bool needs_temp = dot_needs_temp(int8_isa(problem.isa), problem.dot);
  if (has_avx512(problem.isa)) {
    static constexpr int kVecs[] = {0, 12, 10, 7, 6, 5, 4, 3, 3};
    plan.vecs = problem.m <= 8 ? kVecs[problem.m] : 2;
    // Two rows by 4096x4096 and by 2304x768 take 20 % less than in panels of ten vectors (Zen 5).
    if (problem.m == 2 && adds_beside_two(problem.isa, rates)) plan.vecs = 6;
    plan.rows = problem.m <= 8 ? static_cast<int>(problem.m) : needs_temp ? 13 : 14;
    // Leaves registers to finish one tile's outputs beside the next one's products.
    constexpr int64_t kLeastRows = 24;
    if (problem.epilogue && problem.m >= kLeastRows && problem.groups() >= 8) {
      plan.rows = 8;
      plan.k_unroll = 2;
    }
    // Rows of A a multiple of 4 KiB apart share one set of L1.
    const int64_t stride = problem.a_stride > 0 ? problem.a_stride : problem.groups() * 4;
    if (problem.m > 8 && stride % 4096 == 0) {
      plan.vecs = 3;
      plan.rows = 8;
    }
  } else if (problem.dot == Int8Dot::crossed) {
    plan.vecs = 2;
    plan.rows = static_cast<int>(std::min<int64_t>(problem.m, 4));
  } else {
    static constexpr int kVecs[] = {0, 8, 5, 3, 2};
    // By signs a row of A takes two registers, and so it does where four products are added.
    const int most_rows = problem.dot == Int8Dot::s8s8 || has_fours(problem.dot) ? 5 : 6;
    plan.vecs = problem.m <= 4 ? kVecs[problem.m] : 2;
    plan.rows = problem.m <= 4 ? static_cast<int>(problem.m) : most_rows;
  }
  // Fewer bytes have their own code where one of them is large.
  if (is_halved(problem.dot)) plan.k_unroll = 2;
  plan.vecs = static_cast<int>(std::min<int64_t>(plan.vecs, divide_up(problem.n, vector_lanes(problem.isa))));
}

// Operands of one candidate.
struct Bench {
  Bench(const Int8Problem& problem, const GemmPlan& plan)
      : product(problem, plan, offsets_of(problem)),
        team(problem.threads),
        shares(worthwhile_shares(problem.flop() / 4, problem.threads)),
        a(bench_tensor(DType::u8, problem.batches * problem.m * a_stride(problem))),
        c(bench_tensor(DType::i32, problem.batches * problem.m * problem.n)),
        columns(bench_tensor(DType::i32, padded(problem))),
        rows(bench_tensor(DType::i32, problem.m)),
        input(bench_tensor(DType::f32, problem.m * problem.n + padded(problem))),
        large(DType::u8, {problem.m, large_parts(problem, plan)}),
        b(DType::u8, problem.batches * padded(problem) * problem.groups() * 4) {
    operands.a = a.raw();
    operands.c = c.mutable_raw();
    operands.a_stride = a_stride(problem);
    operands.c_stride = problem.n * out_bytes(problem);
    operands.columns = columns.data<int32_t>();
    operands.rows = rows.data<int32_t>();
    if (is_halved(problem.dot)) operands.large = static_cast<const LargeBytes*>(large.raw());
    operands.inputs.fill(input.raw());
  }
  static int64_t a_stride(const Int8Problem& problem) { return std::max(problem.groups() * 4, problem.a_stride); }
  static int64_t padded(const Int8Problem& problem) { return divide_up(problem.n, 16) * 16; }
  static int64_t out_bytes(const Int8Problem& problem) {
    return problem.epilogue ? bits_of(problem.epilogue->expression.output) / 8 : 4;
  }
  static std::vector<Int8Offsets> offsets_of(const Int8Problem& problem) {
    std::vector<Int8Offsets> offsets(static_cast<size_t>(problem.batches));
    for (int64_t i = 0; i < problem.batches; ++i) {
      Int8Offsets& at = offsets[static_cast<size_t>(i)];
      at.a = i * problem.m * a_stride(problem);
      at.b = i * padded(problem) * problem.groups() * 4;
      at.c = i * problem.m * problem.n * out_bytes(problem);
    }
    return offsets;
  }
  void prepare() {
    b.advance();
    caches.prepare(team, a, b.current());
  }
  void run() {
    operands.b = b.current().raw();
    operands.next_weights = b.next().raw();
    team.run(team.size(), shares, [this](int share, int) { product.run(operands, share, shares); });
  }

  Int8Product product;
  ThreadTeam team;
  int shares;
  Tensor a, c, columns, rows, input, large;
  ColdWeights b;
  ModelCaches caches;
  Int8Operands operands;
};

}  // namespace

TuningTask int8_tuning_task(const Int8Problem& problem) {
  TuningTask task;
  task.family = "gemm_int8.5";
  task.key = problem.key();
  task.threads = problem.threads;
  task.flop = problem.flop();
  task.arithmetic = is_wide(problem.dot) ? Arithmetic::pairs : Arithmetic::bytes;
  const auto batches = static_cast<double>(problem.batches);
  task.weight_bytes = batches * static_cast<double>(problem.n * problem.groups() * 4);
  task.written_bytes = batches * static_cast<double>(problem.m * problem.n * Bench::out_bytes(problem));
  task.bytes = batches * static_cast<double>(problem.m * problem.groups() * 4) + task.weight_bytes + task.written_bytes;
  const bool wide = has_avx512(problem.isa);
  const GemmPlan rule = default_int8_plan(problem);
  const std::vector<int> rows = wide ? std::vector<int>{14, 13, 12, 9, 8, 7, 6} : std::vector<int>{6, 5, 4, 3};
  task.space.knobs = {{"rows", with_choice(rows, rule.rows)},
                      {"vecs", with_choice({1, 2, 3, 4, 6}, rule.vecs)},
                      {"k_unroll", {1, 2, 4, 8}},
                      {"row_block", with_choice({64, 128, 256, 512, 1 << 20}, rule.row_block)},
                      {"split_rows", off_or_on(problem.threads > 1)}};
  task.space.fallback = {{"rows", rule.rows},
                         {"vecs", rule.vecs},
                         {"k_unroll", rule.k_unroll},
                         {"row_block", rule.row_block},
                         {"split_rows", rule.split == GemmSplit::rows}};
  task.space.allowed = [problem](const Candidate& candidate) {
    const GemmPlan plan = GemmPlan::from_candidate(candidate);
    return is_valid(plan, problem) && plan.rows * plan.vecs >= (has_avx512(problem.isa) ? 12 : 6);
  };
  task.build = [problem](const Candidate& candidate) {
    return bench_runner<Bench>(problem, GemmPlan::from_candidate(candidate));
  };
  return task;
}

std::string Int8Problem::key() const {
  std::string text = fmt::format("{} b{} m{} n{} k{} {}{}", to_string(dot), batches, m, n, k, name_of(int8_isa(isa)),
                                 has_rows ? " rows" : "");
  if (a_stride > 0) text += fmt::format(" lda{}", a_stride);
  if (epilogue) text += " " + to_string(*epilogue);
  return text;
}

std::string int8_plan_text(const GemmPlan& plan, Int8Dot dot) {
  return fmt::format("gemm int8 {} {}x{} k{} rb{} {}", to_string(dot), plan.rows, plan.vecs, plan.k_unroll,
                     plan.row_block, plan.split == GemmSplit::rows ? "rows" : "columns");
}

int64_t large_parts(const Int8Problem& problem, const GemmPlan& plan) {
  return std::max<int64_t>(1, divide_up(problem.groups(), plan.k_unroll));
}

bool is_valid(const GemmPlan& plan, const Int8Problem& problem) {
  if (plan.row_block < 1 || problem.m < 1 || problem.n < 1 || problem.k < 0) return false;
  GemmInt8TilePlan tile;
  tile.isa = int8_isa(problem.isa);
  tile.dot = problem.dot;
  tile.rows = plan.rows;
  tile.vecs = plan.vecs;
  tile.k_unroll = plan.k_unroll;
  tile.has_rows = problem.has_rows;
  tile.epilogue = problem.epilogue;
  return tile.is_valid();
}

GemmPlan default_int8_plan(const Int8Problem& problem, const CoreRates& rates) {
  GemmPlan plan;
  choose_tile(problem, rates, plan);
  while (!is_valid(plan, problem) && plan.vecs > 1) --plan.vecs;
  const int64_t panel_columns = int64_t{plan.vecs} * vector_lanes(problem.isa);
  plan.split = choose_split({problem.batches, problem.m, problem.n, panel_columns, plan.rows, problem.threads});
  // A block of A's rows shall stay in L2 beside two panels of B.
  constexpr int64_t kRowBlockBytes = 384 << 10;
  plan.row_block = static_cast<int>(std::clamp<int64_t>(kRowBlockBytes / std::max<int64_t>(1, problem.groups() * 4),
                                                        2 * plan.rows, int64_t{1} << 20));
  return plan;
}

GemmPlan choose_int8_plan(const Int8Problem& problem, PlanSource& plans) {
  const GemmPlan plan = GemmPlan::from_candidate(plans.choose(int8_tuning_task(problem)));
  return is_valid(plan, problem) ? plan : default_int8_plan(problem);
}

}  // namespace lathe
