#include "ops/conv_tuning.h"

#include <algorithm>
#include <memory>

#include "lathe/tensor.h"
#include "ops/conv_program.h"
#include "ops/winograd_program.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kColdBytes = 64 << 20;  // weights rotate through this much, so that they come from memory
constexpr int64_t kMostCopies = 64;

Tensor floats(int64_t count) { return Tensor(DType::f32, {count}); }

// One candidate's program, by any algorithm.
class AnyProgram {
 public:
  AnyProgram(const ConvProblem& problem, const ConvPlan& plan, int threads) {
    if (plan.winograd > 0) {
      winograd_ = std::make_unique<WinogradProgram>(problem, winograd_plan(plan), threads);
      scratch_ = floats(winograd_->scratch_size());
    } else {
      direct_ = std::make_unique<ConvProgram>(problem, plan, threads);
    }
  }

  int64_t packed_size() const { return winograd_ ? winograd_->packed_size() : direct_->packed_size(); }

  void run(const ConvArguments& arguments, ThreadTeam& team) {
    if (direct_) {
      team.run(team.size(), [&](int thread) { direct_->run(arguments, thread); });
      return;
    }
    for (int part = 0; part < winograd_->parts(); ++part) {
      team.run(team.size(),
               [&](int thread) { winograd_->run_part(part, arguments, scratch_.mutable_data<float>(), thread); });
    }
  }

 private:
  std::unique_ptr<ConvProgram> direct_;
  std::unique_ptr<WinogradProgram> winograd_;
  Tensor scratch_;
};

// Operands of one candidate.
class Bench {
 public:
  Bench(const ConvProblem& problem, const ConvPlan& plan, int threads)
      : program_(problem, plan, threads),
        team_(threads),
        source_(floats(problem.batch * problem.in_blocks() * problem.source_block_bytes() / 4)),
        target_(floats(problem.batch * problem.out_blocks() * problem.target_block_bytes() / 4)),
        channels_(floats(problem.out_blocks() * problem.lanes)) {
    const int64_t copies =
        std::clamp<int64_t>(kColdBytes / (4 * std::max<int64_t>(1, program_.packed_size())), 1, kMostCopies);
    for (int64_t i = 0; i < copies; ++i) weights_.push_back(floats(program_.packed_size()));
    arguments_.source = source_.data<float>();
    arguments_.target = target_.mutable_data<float>();
    arguments_.bias = channels_.data<float>();
    for (size_t i = 0; i < problem.epilogue.operands.size(); ++i) {
      const bool is_full = problem.epilogue.operands[i] == ConvOperand::full;
      if (is_full && !operand_.defined()) operand_ = floats(target_.size());
      arguments_.operands[i] = is_full ? operand_.raw() : channels_.raw();
    }
  }

  void run() {
    arguments_.weights = weights_[turn_ % weights_.size()].data<float>();
    arguments_.next_weights = weights_[(turn_ + 1) % weights_.size()].raw();
    ++turn_;
    program_.run(arguments_, team_);
  }

 private:
  AnyProgram program_;
  ThreadTeam team_;
  Tensor source_, target_, channels_, operand_;
  std::vector<Tensor> weights_;
  ConvArguments arguments_;
  size_t turn_ = 0;
};

}  // namespace

TuningTask conv_tuning_task(const ConvProblem& problem, Isa isa, int threads) {
  TuningTask task;
  task.family = "conv.2";
  task.key = std::string(name_of(isa)) + " " + to_string(problem);
  task.threads = threads;
  task.flop = problem.flop();
  task.space = conv_search_space(problem, isa, threads);
  task.build = [problem, isa, threads](const Candidate& candidate) -> Runner {
    try {
      auto bench = std::make_shared<Bench>(problem, plan_of(candidate, isa), threads);
      return [bench] { bench->run(); };
    } catch (const JitError&) {
      return {};
    }
  };
  return task;
}

}  // namespace lathe
