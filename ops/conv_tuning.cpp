#include "ops/conv_tuning.h"

#include <algorithm>
#include <memory>

#include "lathe/tensor.h"
#include "ops/conv_program.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kColdBytes = 64 << 20;  // weights rotate through this much, so that they come from memory
constexpr int64_t kMostCopies = 64;

Tensor floats(int64_t count) { return Tensor(DType::f32, {count}); }

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
    team_.run(team_.size(), [this](int thread) { program_.run(arguments_, thread); });
  }

 private:
  ConvProgram program_;
  ThreadTeam team_;
  Tensor source_, target_, channels_, operand_;
  std::vector<Tensor> weights_;
  ConvArguments arguments_;
  size_t turn_ = 0;
};

}  // namespace

TuningTask conv_tuning_task(const ConvProblem& problem, Isa isa, int threads) {
  TuningTask task;
  task.family = "conv.1";
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
