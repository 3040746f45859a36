#pragma once
// Convolutions (and a pool) that read each other's results, computed together in bands of rows: what lies between two
// of them is a few rows in scratch memory, near the core, instead of a picture in the outer caches. No row is computed
// twice, except where the part of one thread ends.
#include <array>
#include <memory>
#include <vector>

#include "jit/kernels/pool/pool.h"
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

// The rows [first, first + rows) of a convolution's output, as an axis of their own that reads rows from `source` on.
struct BandAxis {
  ConvAxis axis;
  int64_t source = 0;
};
BandAxis band_of(const ConvAxis& whole, int64_t first, int64_t rows);

class ConvChain {
 public:
  static constexpr size_t kMostStages = 4;
  struct StageArguments {
    const float* weights = nullptr;  // packed
    const float* bias = nullptr;     // padded to whole blocks
    const void* operands[ConvEpilogue::kMaxOperands] = {};
  };
  struct Arguments {
    const float* source = nullptr;
    float* target = nullptr;
    std::array<StageArguments, kMostStages> stages;
    const void* next_weights = nullptr;  // streamed by whatever runs next; may be null
  };

  // `band_rows`: of the last stage's output, about. Requires: 2 to kMostStages stages, each reading the one before, in
  // blocks; pictures are not empty. Throws JitError.
  ConvChain(std::vector<ChainStage> stages, Isa isa, int threads, int64_t band_rows);

  const std::vector<ChainStage>& stages() const { return stages_; }
  // Multiplications of the thread that has most, over an even share of all: rows may not divide evenly, and a thread
  // that begins within a picture does those over that lie above its own.
  double longest_share() const;
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
    ConvAxis y;
    std::unique_ptr<ConvProgram> dense;
    std::unique_ptr<DepthwiseProgram> depthwise;
    PoolKernels pool;
  };
  // What a stage does for one band: rows [first, first + rows) from input rows `source` on. Its results lie behind
  // rows [kept, first) of the band before.
  struct StageBand {
    int program = -1;  // of the stage; none: no rows to compute
    int64_t kept = 0, first = 0, rows = 0, source = 0;
    int64_t end() const { return first + rows; }
  };
  using Band = std::array<StageBand, kMostStages>;
  struct Rows {  // between two stages
    int64_t offset = 0, block_bytes = 0, row_bytes = 0;
  };
  struct Moment;

  int64_t last_row(size_t stage, int64_t band) const;
  Band make_band(int64_t band, bool is_fresh);
  int program_of(size_t stage, const ConvAxis& y);
  const ConvProgram& dense(size_t stage) const { return *programs_[stage].front().dense; }
  void place_rows();
  void keep_rows(const Moment& moment, size_t stage, int64_t begin, int64_t end) const noexcept;
  ConvArguments arguments_of(const Moment& moment, size_t stage) const noexcept;
  static void pool_blocks(const PoolKernels& pool, const ConvArguments& call, int64_t begin, int64_t end) noexcept;
  void run_blocks(const Moment& moment, size_t stage, int64_t begin, int64_t end) const noexcept;
  void run_band(const Moment& moment) const noexcept;

  std::vector<ChainStage> stages_;
  Isa isa_;
  int threads_;
  int64_t band_rows_, bands_;                   // of one picture
  std::vector<std::vector<Program>> programs_;  // by stage
  std::array<std::vector<Band>, 2> schedule_;   // after the band before, and without
  std::array<Rows, kMostStages> rows_ = {};
  int64_t scratch_bytes_ = 0;
};

}  // namespace lathe
