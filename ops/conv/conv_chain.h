#pragma once
// Convolutions (and a pool) that read each other's results, computed together in bands of rows: what lies between two
// of them is a few rows in scratch memory, near the core, instead of a picture in the outer caches. No row is computed
// twice, except where the part of one thread ends.
#include <array>
#include <memory>
#include <vector>

#include "jit/kernels/pool/pool.h"
#include "ops/conv/chain_schedule.h"
#include "ops/conv/conv_depthwise_program.h"
#include "ops/conv/conv_program.h"

namespace lathe {

enum class ChainKind : uint8_t { dense, depthwise, max_pool };

struct ChainStage {
  ChainKind kind = ChainKind::dense;
  // At whole pictures, with one phase; a pool has channels and windows only. Operands of kind full: last stage only.
  ConvProblem problem;
  ConvPlan plan;  // of dense ones: what a direct convolution would do
  std::vector<int64_t> operand_batch_bytes;
};

// The stages' rows, for so many threads. `band_rows`: of the last stage's output, about.
ChainSchedule schedule_of(const std::vector<ChainStage>& stages, int threads, int64_t band_rows);

class ConvChain {
 public:
  struct StageArguments {
    const float* weights = nullptr;  // packed
    const float* bias = nullptr;     // padded to whole blocks
    const void* operands[ConvEpilogue::kMaxOperands] = {};
  };
  struct Arguments {
    const float* source = nullptr;
    float* target = nullptr;
    std::array<StageArguments, kMostChainStages> stages;
    const void* next_weights = nullptr;  // streamed by whatever runs next; may be null
  };

  // Requires: each stage reads the one before, in blocks; `schedule` is theirs. Throws JitError.
  ConvChain(std::vector<ChainStage> stages, Isa isa, ChainSchedule schedule);

  const std::vector<ChainStage>& stages() const { return stages_; }
  bool has_weights(size_t stage) const { return stages_[stage].kind != ChainKind::max_pool; }
  // Of a stage with weights.
  std::string packing(size_t stage) const;
  int64_t packed_size(size_t stage) const;  // floats
  void pack(size_t stage, const float* weights, float* packed) const;

  int64_t scratch_bytes() const { return scratch_bytes_; }  // of each thread
  // One share for each thread: more would compute rows twice more often. `scratch`: scratch_bytes(), aligned to 64.
  void run(const Arguments& arguments, void* scratch, int share) const noexcept;
  std::string plan_text() const;

 private:
  // One stage at one number of rows and position of the border. One of the three.
  struct Program {
    std::unique_ptr<ConvProgram> dense;
    std::unique_ptr<DepthwiseProgram> depthwise;
    PoolKernels pool;
  };
  struct Rows {  // between two stages
    int64_t offset = 0, block_bytes = 0, row_bytes = 0;
  };
  struct Moment;

  Program program_of(size_t stage, const ConvAxis& y) const;
  const ConvProgram& dense(size_t stage) const { return *programs_[stage].front().dense; }
  void place_rows();
  void keep_rows(const Moment& moment, size_t stage, int64_t begin, int64_t end) const noexcept;
  ConvArguments arguments_of(const Moment& moment, size_t stage) const noexcept;
  static void pool_blocks(const PoolKernels& pool, const ConvArguments& call, int64_t begin, int64_t end) noexcept;
  void run_blocks(const Moment& moment, size_t stage, int64_t begin, int64_t end) const noexcept;
  void run_band(const Moment& moment) const noexcept;

  std::vector<ChainStage> stages_;
  Isa isa_;
  ChainSchedule schedule_;
  std::vector<std::vector<Program>> programs_;  // by stage, and by its axes
  std::array<Rows, kMostChainStages> rows_ = {};
  int64_t scratch_bytes_ = 0;
};

}  // namespace lathe
