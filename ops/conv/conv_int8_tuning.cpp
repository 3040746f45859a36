#include "ops/conv/conv_int8_tuning.h"

#include <algorithm>

#include "ops/bench_operands.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

int64_t source_bytes(const ConvInt8Problem& problem) {
  return problem.shape.batch * problem.shape.in_blocks() * problem.shape.source_block_bytes();
}
int64_t target_bytes(const ConvInt8Problem& problem) {
  return problem.shape.batch * problem.shape.out_blocks() * problem.target_block_bytes();
}
int64_t weight_bytes(const ConvInt8Problem& problem) {
  return problem.shape.out_blocks() * problem.shape.lanes * problem.depth() * problem.shape.phases[0].taps() * 4;
}

// Bytes of one image of an operand of the epilogue, where it is as large as the output.
int64_t operand_bytes(const ConvInt8Problem& problem, size_t operand) {
  if (problem.epilogue.operands[operand] != ConvOperand::full) return 0;
  const DType dtype = problem.epilogue.expression->inputs[operand + 1];
  return problem.shape.out_blocks() * problem.shape.out_pixels() * problem.shape.lanes * bits_of(dtype) / 8;
}

std::vector<int64_t> operand_batch_bytes(const ConvInt8Problem& problem) {
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < problem.epilogue.operands.size(); ++i) bytes.push_back(operand_bytes(problem, i));
  return bytes;
}

// Operands of one candidate.
class Bench {
 public:
  Bench(const ConvInt8Problem& problem, const std::optional<ConvInt8Tile>& tile, int threads)
      : program_(problem, threads, operand_batch_bytes(problem), tile),
        team_(threads),
        planes_(planes_shared(problem.shape, kFewPixelsOfBytes)),
        source_(bench_tensor(DType::u8, source_bytes(problem))),
        target_(bench_tensor(DType::u8, target_bytes(problem))),
        init_(bench_tensor(DType::i32, problem.shape.out_blocks() * problem.shape.lanes)),
        terms_(bench_tensor(DType::i32, source_bytes(problem) / 4)),
        large_(DType::u8,
               {problem.shape.batch * problem.shape.in_blocks(), static_cast<int64_t>(program_.tiling().tiles.size())}),
        channels_(bench_tensor(DType::f32, init_.size())),
        weights_(DType::u8, program_.packed_bytes()) {
    arguments_.source = source_.raw();
    arguments_.target = target_.mutable_raw();
    if (problem.dot == Int8Dot::crossed) arguments_.terms = terms_.data<int32_t>();
    if (is_halved(problem.dot)) arguments_.large = static_cast<const LargeBytes*>(large_.raw());
    arguments_.init = init_.data<int32_t>();
    for (size_t i = 0; i < problem.epilogue.operands.size(); ++i) {
      const int64_t bytes = problem.shape.batch * operand_bytes(problem, i);
      if (bytes > 0) operands_.push_back(bench_tensor(DType::u8, bytes));
      arguments_.operands[i] = bytes > 0 ? operands_.back().raw() : channels_.raw();
    }
  }

  void prepare() {
    weights_.advance();
    caches_.prepare(team_, source_, weights_.current(), {}, planes_);
  }
  void run() {
    arguments_.weights = weights_.current().raw();
    arguments_.next_weights = weights_.next().raw();
    team_.run(team_.size(), program_.shares(), [this](int share, int) { program_.run(arguments_, share); });
  }

 private:
  ConvInt8Program program_;
  ThreadTeam team_;
  int64_t planes_;
  Tensor source_, target_, init_, terms_, large_, channels_;
  std::vector<Tensor> operands_;
  ColdWeights weights_;
  ModelCaches caches_;
  ConvInt8Arguments arguments_;
};

// blocks 0: the rule's tile, whatever the other knobs would be.
SearchSpace space_of(const ConvInt8Problem& problem) {
  const int registers = vector_registers(problem.isa);
  const bool can_overlap = !overlapped_conv_int8_tiles(problem).empty();
  const auto up_to = [](int most) {
    std::vector<int> choices;
    for (int i = 0; i <= most; ++i) choices.push_back(i);
    return choices;
  };
  SearchSpace space;
  space.knobs = {{"blocks", up_to(static_cast<int>(std::min<int64_t>(4, blocks_alike(problem.channels()))))},
                 {"rows", up_to(4)},
                 {"cols", up_to(registers)},
                 {"group", {0, 4, 16, 64}},
                 {"ahead", !can_overlap                 ? up_to(0)
                           : problem.channel_groups > 1 ? up_to(1)
                                                        : std::vector<int>{0, 1, 2, 4, 8, 16}}};
  space.fallback = {{"blocks", 0}, {"rows", 0}, {"cols", 0}, {"group", 0}, {"ahead", 0}};
  space.allowed = [registers, shape = problem.shape.phases[0], fallback = space.fallback](const Candidate& candidate) {
    if (candidate == fallback) return true;
    const int blocks = candidate.at("blocks"), rows = candidate.at("rows"), cols = candidate.at("cols");
    const int64_t width = rows == 0 ? shape.y.out * shape.x.out : shape.x.out;
    const int sums = blocks * std::max(rows, 1) * cols;
    return blocks > 0 && cols > 0 && rows <= shape.y.out && cols <= width && sums < registers &&
           sums * 3 >= registers && (candidate.at("ahead") == 0 || (rows == 1 && 2 * sums < registers));
  };
  return space;
}

}  // namespace

std::optional<ConvInt8Tile> conv_int8_tile_of(const Candidate& candidate) {
  const auto get = [&](const char* name) { return candidate.at(name); };
  if (get("blocks") < 1 || get("cols") < 1) return std::nullopt;
  return ConvInt8Tile{get("blocks"), get("rows"), get("cols"), get("group"), get("ahead")};
}

TuningTask conv_int8_tuning_task(const ConvInt8Problem& problem, int threads) {
  TuningTask task;
  task.family = "conv_int8.3";
  task.key = problem.key();
  task.threads = threads;
  task.arithmetic = is_wide(problem.dot) ? Arithmetic::pairs : Arithmetic::bytes;
  task.flop = problem.flop();
  task.weight_bytes = static_cast<double>(weight_bytes(problem));
  task.written_bytes = static_cast<double>(target_bytes(problem));
  task.bytes = static_cast<double>(source_bytes(problem)) + task.weight_bytes + task.written_bytes;
  for (size_t i = 0; i < problem.epilogue.operands.size(); ++i)
    task.bytes += static_cast<double>(problem.shape.batch * operand_bytes(problem, i));
  task.space = space_of(problem);
  task.build = [problem, threads](const Candidate& candidate) {
    return bench_runner<Bench>(problem, conv_int8_tile_of(candidate), threads);
  };
  return task;
}

}  // namespace lathe
