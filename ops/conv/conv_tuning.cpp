#include "ops/conv/conv_tuning.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "ops/bench_operands.h"
#include "ops/conv/conv_program.h"
#include "ops/conv/conv_strassen.h"
#include "ops/winograd/winograd_program.h"
#include "ops/winograd/winograd_stem.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// One candidate's program, by any algorithm.
class AnyProgram {
 public:
  AnyProgram(const ConvProblem& problem, const ConvPlan& plan, int threads) {
    if (plan.winograd > 0 && is_winograd_stem(problem, plan.winograd)) {
      stem_ = std::make_unique<WinogradStem>(problem, winograd_plan(plan), threads);
      give_scratch(*stem_, threads);
    } else if (plan.winograd > 0) {
      winograd_ = std::make_unique<WinogradProgram>(problem, winograd_plan(plan), threads);
      give_scratch(*winograd_, threads);
    } else if (plan.strassen) {
      strassen_ = std::make_unique<StrassenConv>(problem, plan.isa, threads);
      give_scratch(*strassen_, threads);
    } else {
      direct_ = std::make_unique<ConvProgram>(problem, plan, threads);
    }
  }

  int64_t packed_size() const {
    if (winograd_) return winograd_->packed_size();
    if (stem_) return stem_->packed_size();
    return strassen_ ? strassen_->packed_size() : direct_->packed_size();
  }

  // A model's steps share theirs.
  std::span<Tensor> scratch() { return scratch_tensors_; }

  void run(const ConvArguments& arguments, ThreadTeam& team) {
    if (winograd_) return run_parts(*winograd_, arguments, team);
    if (stem_) return run_parts(*stem_, arguments, team);
    if (strassen_) return run_parts(*strassen_, arguments, team);
    team.run(team.size(), direct_->shares(), [&](int share, int) { direct_->run(arguments, share); });
  }

 private:
  template <class Program>
  void give_scratch(const Program& program, int threads) {
    auto& [shared, own] = scratch_tensors_;
    shared = bench_tensor(DType::f32, program.shared_scratch());
    own = bench_tensor(DType::f32, threads * program.own_scratch());
    scratch_ = {shared.mutable_data<float>(), own.mutable_data<float>(), program.own_scratch()};
  }

  template <class Program>
  void run_parts(const Program& program, const ConvArguments& arguments, ThreadTeam& team) {
    for (int part = 0; part < program.parts(); ++part) {
      team.run(team.size(), program.shares(part),
               [&](int share, int thread) { program.run_part(part, arguments, scratch_, share, thread); });
    }
  }

  std::unique_ptr<ConvProgram> direct_;
  std::unique_ptr<WinogradProgram> winograd_;
  std::unique_ptr<WinogradStem> stem_;
  std::unique_ptr<StrassenConv> strassen_;
  std::array<Tensor, 2> scratch_tensors_;
  ConvScratch scratch_;
};

int64_t source_size(const ConvProblem& problem) { return problem.source_bytes() / 4; }
int64_t target_size(const ConvProblem& problem) { return problem.target_bytes() / 4; }

// Operands of one candidate.
class Bench {
 public:
  Bench(const ConvProblem& problem, const ConvPlan& plan, int threads)
      : program_(problem, plan, threads),
        team_(threads),
        planes_(planes_shared(problem)),
        source_(bench_tensor(DType::f32, source_size(problem))),
        target_(bench_tensor(DType::f32, target_size(problem))),
        channels_(bench_tensor(DType::f32, problem.out_blocks() * problem.lanes)),
        weights_(DType::f32, program_.packed_size()) {
    arguments_.source = source_.data<float>();
    arguments_.target = target_.mutable_data<float>();
    arguments_.bias = channels_.data<float>();
    for (size_t i = 0; i < problem.epilogue.operands.size(); ++i) {
      const bool is_full = problem.epilogue.operands[i] == ConvOperand::full;
      if (is_full && !operand_.defined()) operand_ = bench_tensor(DType::f32, target_.size());
      arguments_.operands[i] = is_full ? operand_.raw() : channels_.raw();
    }
  }

  void prepare() {
    weights_.advance();
    caches_.prepare(team_, source_, weights_.current(), program_.scratch(), planes_);
  }
  void run() {
    arguments_.weights = weights_.current().data<float>();
    arguments_.next_weights = weights_.next().raw();
    arguments_.are_far = team_.is_far();
    program_.run(arguments_, team_);
  }

 private:
  AnyProgram program_;
  ThreadTeam team_;
  int64_t planes_;
  Tensor source_, target_, channels_, operand_;
  ColdWeights weights_;
  ModelCaches caches_;
  ConvArguments arguments_;
};

}  // namespace

TuningTask conv_tuning_task(const ConvProblem& problem, Isa isa, int threads) {
  TuningTask task;
  task.family = "conv.10";
  task.key = std::string(name_of(isa)) + " " + to_string(problem);
  task.threads = threads;
  task.flop = problem.flop();
  const int64_t weights = problem.out_channels * problem.in_channels_each() * problem.window_y * problem.window_x;
  const auto full = std::count(problem.epilogue.operands.begin(), problem.epilogue.operands.end(), ConvOperand::full);
  task.weight_bytes = 4.0 * static_cast<double>(weights);
  task.written_bytes = 4.0 * static_cast<double>(target_size(problem));
  task.bytes = 4.0 * static_cast<double>(source_size(problem)) + static_cast<double>(1 + full) * task.written_bytes +
               task.weight_bytes;
  task.space = conv_search_space(problem, isa, threads);
  task.build = [problem, isa, threads](const Candidate& candidate) {
    return bench_runner<Bench>(problem, plan_of(candidate, isa), threads);
  };
  return task;
}

}  // namespace lathe
