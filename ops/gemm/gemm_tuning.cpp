#include "ops/gemm/gemm_tuning.h"

#include <algorithm>
#include <array>
#include <memory>

#include "ops/bench_operands.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/gemm_strassen.h"
#include "ops/work_split.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

int64_t b_elements(const GemmProblem& problem) { return problem.batches * problem.k * round_up(problem.n, 16); }

std::vector<GemmOffsets> offsets_of(const GemmProblem& problem) {
  std::vector<GemmOffsets> offsets(static_cast<size_t>(problem.batches));
  for (int64_t i = 0; i < problem.batches; ++i) {
    GemmOffsets& at = offsets[static_cast<size_t>(i)];
    at.a = i * problem.m * std::max(problem.k, problem.a_stride);
    at.b = i * (b_elements(problem) / problem.batches);
    at.c = i * problem.m * problem.n;
  }
  return offsets;
}

// One candidate's product, by any algorithm.
class AnyProduct {
 public:
  AnyProduct(const GemmProblem& problem, const GemmPlan& plan) : flop_(problem.flop()) {
    if (plan.fast != FastProduct::none) {
      strassen_ = std::make_unique<StrassenProduct>(problem, plan);
      const int owners = strassen_->has_own_sums() ? problem.threads : 1;
      sums_ = bench_tensor(DType::f32, owners * strassen_->sums_elements());
    } else {
      plain_ = std::make_unique<GemmProduct>(problem, plan, offsets_of(problem));
    }
  }

  const Tensor& sums() const { return sums_; }  // of blocks; may be none
  int64_t scratch_elements() const { return strassen_ ? strassen_->scratch_elements() : plain_->scratch_elements(); }
  // Of a packed B: some schemes have sums of its blocks in place of B.
  int64_t packed_elements(const GemmProblem& problem) const {
    if (strassen_) return strassen_->packed_elements();
    return plain_->plan().weights == WeightFormat::f32 ? b_elements(problem) : plain_->packed_elements();
  }
  void run(const GemmOperands& operands, ThreadTeam& team) {
    const auto mine = [&](int thread) {
      GemmOperands own = operands;
      own.scratch += thread * scratch_elements();
      return own;
    };
    const int threads = team.size(), shares = worthwhile_shares(flop_, threads);
    if (plain_)
      return team.run(threads, shares, [&](int share, int thread) { plain_->run(mine(thread), share, shares); });
    const StrassenProduct::Sums sums{sums_.mutable_data<float>(), strassen_->sums_elements()};
    const bool are_far = team.is_far();
    for (int round = 0; round < strassen_->rounds(); ++round)
      team.run(threads, shares, [&](int share, int thread) {
        strassen_->run(round, mine(thread), sums, share, shares, thread, are_far);
      });
  }

 private:
  double flop_;
  std::unique_ptr<GemmProduct> plain_;
  std::unique_ptr<StrassenProduct> strassen_;
  Tensor sums_;
};

// Operands of one candidate.
class Bench {
 public:
  Bench(const GemmProblem& problem, const GemmPlan& plan)
      : product_(problem, plan),
        team_(problem.threads),
        a_(bench_tensor(DType::f32, problem.batches * problem.m * std::max(problem.k, problem.a_stride))),
        c_(bench_tensor(DType::f32, problem.batches * problem.m * problem.n)),
        input_(bench_tensor(DType::f32, problem.batches * problem.m * problem.n)),
        scratch_(bench_tensor(DType::f32, problem.threads * std::max<int64_t>(1, product_.scratch_elements()))),
        is_constant_(problem.b == GemmOperandB::packed),
        b_(DType::f32, is_constant_ ? product_.packed_elements(problem) : 1) {
    if (!is_constant_) written_b_ = bench_tensor(DType::f32, std::max(b_elements(problem), b_extent(problem)));
    operands_.a = a_.data<float>();
    operands_.c = c_.mutable_data<float>();
    operands_.scratch = scratch_.mutable_data<float>();
    operands_.a_stride = std::max(problem.k, problem.a_stride);
    operands_.c_stride = problem.n;
    operands_.b_stride = b_stride(problem);
    operands_.inputs.fill(input_.data<float>());
  }

  void prepare() {
    b_.advance();
    std::array scratch = {product_.sums(), scratch_};
    caches_.prepare(team_, a_, b_.current(), scratch);
  }
  void run() {
    operands_.b = is_constant_ ? b_.current().data<float>() : written_b_.data<float>();
    operands_.next_weights = b_.next().raw();
    product_.run(operands_, team_);
  }

 private:
  static int64_t b_stride(const GemmProblem& problem) {
    if (problem.b_stride > 0) return problem.b_stride;
    return problem.b == GemmOperandB::transposed ? problem.k : problem.n;
  }
  static int64_t b_extent(const GemmProblem& problem) {
    const int64_t rows = problem.b == GemmOperandB::transposed ? problem.n : problem.k;
    return b_elements(problem) / problem.batches * (problem.batches - 1) + rows * b_stride(problem);
  }

  AnyProduct product_;
  ThreadTeam team_;
  Tensor a_, c_, input_, scratch_, written_b_;
  bool is_constant_;
  ColdWeights b_;
  ModelCaches caches_;
  GemmOperands operands_;
};

std::vector<int> weight_formats(const GemmProblem& problem) {
  if (problem.narrow == WeightFormat::f32) return {0};
  return {0, static_cast<int>(problem.narrow)};
}

// So many sums at a time hide the latency of their products; decoding takes as long as several.
int fewest_sums(const GemmPlan& plan, Isa isa) {
  if (plan.weights == WeightFormat::bfp20) return 2;
  return has_avx512(isa) ? 12 : 6;
}

}  // namespace

TuningTask gemm_tuning_task(const GemmProblem& problem) {
  TuningTask task;
  task.family = "gemm.5";
  task.key = problem.key();
  task.threads = problem.threads;
  task.flop = problem.flop();
  const double batches = static_cast<double>(problem.batches) * 4;
  const GemmPlan rule = default_gemm_plan(problem);
  const double b_bytes = batches * static_cast<double>(words_of(rule.weights, problem.k) * problem.n);
  task.weight_bytes = problem.b == GemmOperandB::packed ? b_bytes : 0;
  task.written_bytes = batches * static_cast<double>(problem.m * problem.n);
  task.bytes = batches * static_cast<double>(problem.m * problem.k) + b_bytes + task.written_bytes;
  const bool wide = has_avx512(problem.isa);
  const std::vector<int> rows = wide ? std::vector<int>{14, 13, 12, 9, 7, 6, 28, 25} : std::vector<int>{6, 5, 4, 3, 12};
  task.space.knobs = {{"rows", with_choice(rows, rule.rows)},
                      {"vecs", with_choice({1, 2, 3, 4, 6}, rule.vecs)},
                      {"k_unroll", {1, 2, 4, 8}},
                      {"k_block", {256, 512, 1024, 2048, 4096}},
                      {"row_block", with_choice({64, 128, 256, 512, 1 << 20}, rule.row_block)},
                      {"embed", off_or_on(wide)},
                      {"pack_b", off_or_on(problem.b == GemmOperandB::row_major)},
                      {"split_rows", off_or_on(problem.threads > 1)},
                      {"weights", weight_formats(problem)},
                      {"strassen", problem.allows_strassen ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0}}};
  task.space.fallback = rule.to_candidate();
  task.space.allowed = [problem, rule](const Candidate& candidate) {
    const GemmPlan plan = GemmPlan::from_candidate(candidate);
    // What one algorithm does not read stands as in the rule, so that no plan has two names.
    const bool unrolls = plan.fast == FastProduct::none && plan.weights != WeightFormat::bfp20;
    if (!unrolls && plan.k_unroll != rule.k_unroll) return false;
    return is_valid(plan, problem) && plan.rows * plan.vecs >= fewest_sums(plan, problem.isa);
  };
  task.build = [problem](const Candidate& candidate) {
    return bench_runner<Bench>(problem, GemmPlan::from_candidate(candidate));
  };
  return task;
}

}  // namespace lathe
