#include "ops/gemm_tuning.h"

#include <algorithm>
#include <memory>

#include "lathe/tensor.h"
#include "ops/gemm_product.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr size_t kColdBytes = size_t{64} << 20;  // weights rotate through this much, so that they come from memory
constexpr int64_t kMostCopies = 64;

// Operands of one candidate.
struct Bench {
  Bench(const GemmProblem& problem, const GemmPlan& plan)
      : product(problem, plan, offsets_of(problem)),
        team(problem.threads),
        a(DType::f32, {problem.batches, problem.m, std::max(problem.k, problem.a_stride)}),
        c(DType::f32, {problem.batches, problem.m, problem.n}),
        input(DType::f32, {problem.batches, problem.m, problem.n}) {
    const int64_t size = b_elements(problem);
    const bool is_constant = problem.b == GemmOperandB::packed;
    const int64_t copies =
        is_constant
            ? std::clamp<int64_t>(static_cast<int64_t>(kColdBytes) / (4 * std::max<int64_t>(1, size)), 1, kMostCopies)
            : 1;
    for (int64_t i = 0; i < copies; ++i) b.emplace_back(DType::f32, Dims{size});
    scratch = Tensor(DType::f32, {problem.threads, product.scratch_elements()});
    operands.a = a.data<float>();
    operands.c = c.mutable_data<float>();
    operands.a_stride = problem.k;
    operands.c_stride = problem.n;
    operands.b_stride = problem.b == GemmOperandB::transposed ? problem.k : problem.n;
    operands.inputs.fill(input.data<float>());
    if (problem.epilogue) {
      for (size_t i = 0; i < problem.epilogue->inputs.size(); ++i) operands.input_strides[i] = 0;
    }
  }

  static int64_t b_elements(const GemmProblem& problem) {
    return problem.batches * problem.k * ((problem.n + 15) / 16 * 16);
  }
  static std::vector<GemmOffsets> offsets_of(const GemmProblem& problem) {
    std::vector<GemmOffsets> offsets(static_cast<size_t>(problem.batches));
    for (int64_t i = 0; i < problem.batches; ++i) {
      GemmOffsets& at = offsets[static_cast<size_t>(i)];
      at.a = i * problem.m * problem.k;
      at.b = i * (b_elements(problem) / problem.batches);
      at.c = i * problem.m * problem.n;
    }
    return offsets;
  }

  void run() {
    operands.b = b[turn % b.size()].data<float>();
    operands.next_weights = b[(turn + 1) % b.size()].raw();
    ++turn;
    team.run(team.size(), [this](int thread) {
      GemmOperands mine = operands;
      mine.scratch = scratch.mutable_data<float>() + thread * product.scratch_elements();
      product.run(mine, thread, team.size());
    });
  }

  GemmProduct product;
  ThreadTeam team;
  Tensor a, c, input, scratch;
  std::vector<Tensor> b;
  GemmOperands operands;
  size_t turn = 0;
};

}  // namespace

TuningTask gemm_tuning_task(const GemmProblem& problem) {
  TuningTask task;
  task.family = "gemm.1";
  task.key = problem.key();
  task.threads = problem.threads;
  task.flop = problem.flop();
  const bool wide = has_avx512(problem.isa);
  const GemmPlan rule = default_gemm_plan(problem);
  std::vector<int> rows = wide ? std::vector<int>{14, 13, 12, 9, 7, 6, 28, 25} : std::vector<int>{6, 5, 4, 3, 12};
  if (std::find(rows.begin(), rows.end(), rule.rows) == rows.end()) rows.push_back(rule.rows);
  std::vector<int> vecs = {1, 2, 3, 4, 6};
  if (std::find(vecs.begin(), vecs.end(), rule.vecs) == vecs.end()) vecs.push_back(rule.vecs);
  std::vector<int> row_blocks = {64, 128, 256, 512, 1 << 20};
  row_blocks.push_back(rule.row_block);
  task.space.knobs = {{"rows", rows},
                      {"vecs", vecs},
                      {"k_unroll", {1, 2, 4, 8}},
                      {"k_block", {256, 512, 1024, 2048}},
                      {"row_block", row_blocks},
                      {"embed", wide ? std::vector<int>{0, 1} : std::vector<int>{0}},
                      {"pack_b", problem.b == GemmOperandB::row_major ? std::vector<int>{0, 1} : std::vector<int>{0}},
                      {"split_rows", problem.threads > 1 ? std::vector<int>{0, 1} : std::vector<int>{0}}};
  task.space.fallback = rule.to_candidate();
  task.space.allowed = [problem](const Candidate& candidate) {
    const GemmPlan plan = GemmPlan::from_candidate(candidate);
    return is_valid(plan, problem) && plan.rows * plan.vecs >= (has_avx512(problem.isa) ? 12 : 6);
  };
  task.build = [problem](const Candidate& candidate) -> Runner {
    try {
      auto bench = std::make_shared<Bench>(problem, GemmPlan::from_candidate(candidate));
      return [bench] { bench->run(); };
    } catch (const JitError&) {
      return {};
    }
  };
  return task;
}

}  // namespace lathe
