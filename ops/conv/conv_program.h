#pragma once
// A convolution bound to its kernels: packing of its weights and the loops over channels, chunks and tiles.
#include <vector>

#include "ops/conv/conv_problem.h"

namespace lathe {

struct ConvArguments {
  const float* source = nullptr;
  const float* weights = nullptr;  // packed
  const float* bias = nullptr;     // padded to whole blocks
  float* target = nullptr;
  const void* operands[ConvEpilogue::kMaxOperands] = {};
  const void* next_weights = nullptr;  // streamed by whatever runs next; may be null
  bool are_far = false;                // as StepArgs has it
  // From one channel block to the next, for planes that are parts of larger ones (conv_chain.h); 0: as in the problem.
  int64_t source_block_bytes = 0, target_block_bytes = 0;
};

// Memory to work in, in floats: some of all threads together, some of each thread's own. Either may be none.
struct ConvScratch {
  float *shared = nullptr, *own = nullptr;
  int64_t from_thread_to_thread = 0;
  float* of(int thread) const { return own + thread * from_thread_to_thread; }
};

// How many threads should split the channels; the others split the pixels. Where both are as even, pictures of up to
// `few_pixels` have their channels split: they have the largest weights, and each thread then streams only its own.
// Larger ones have their pixels split: threads read and write lines of their own, layer after layer.
constexpr int64_t kFewPixels = 10 * 10;
int threads_over_channels(const ConvProblem& problem, const ConvPlan& plan, int threads,
                          int64_t few_pixels = kFewPixels);
// Equal parts of the input, of each of which every thread has written its share, if the step before splits alike.
inline int64_t planes_shared(const ConvProblem& problem, int64_t few_pixels = kFewPixels) {
  return problem.out_pixels() > few_pixels ? problem.batch * problem.in_blocks() : 1;
}

// Shares of a convolution's work. Each thread begins with a run of neighbours, which have the channels in common, or
// the pixels: then it reads and writes lines that no other thread does.
struct ConvSplit {
  int channels = 1, pixels = 1;
  bool keeps_pixels = false;  // neighbours have the pixels in common

  int count() const { return channels * pixels; }
  int channel_part(int share) const { return keeps_pixels ? share % channels : share / pixels; }
  int pixel_part(int share) const { return keeps_pixels ? share / channels : share % pixels; }
  // Cut for `threads` threads; as worthwhile_shares() says of `flop`, it is cut further: the channels where each share
  // of the pixels would read too many weights again. `groups`: of channels.
  void refine(double flop, int threads, double weight_bytes, int64_t groups);
};

class ConvProgram {
 public:
  // `operand_batch_bytes`: from one image to the next in each operand of the epilogue. Throws JitError.
  ConvProgram(ConvProblem problem, const ConvPlan& plan, int threads, std::vector<int64_t> operand_batch_bytes = {});

  const ConvProblem& problem() const { return problem_; }
  // Names the order of the packed weights.
  std::string packing() const;
  int64_t packed_size() const;  // floats
  void pack(const float* weights, float* packed) const;

  int shares() const { return split_.count(); }
  // Each share reads the whole input.
  bool reads_all() const { return split_.pixels == 1; }
  void run(const ConvArguments& arguments, int share) const noexcept;

  // Blocks of outputs that are computed together, and some of them. Requires: made for one thread.
  const std::vector<ConvBlockGroup>& groups() const { return groups_; }
  void run_groups(const ConvArguments& arguments, int64_t begin, int64_t end) const noexcept;

 private:
  struct Phase {
    ConvTiling tiling;
    int64_t weights = 0;               // floats from the start of the packed weights
    std::vector<ConvKernels> kernels;  // by block group
  };
  struct Share {
    int64_t group_begin, group_end;  // block groups
    int part, parts;                 // of the tiles of all images
  };
  struct Chunk {
    int begin = 0, count = 0;  // whole input blocks, relative to the group's
    bool has_tail = false;
    bool is_first = true, is_last = true;
  };
  struct Panel;

  void make_kernels(Phase& phase);
  bool has_half_block(const ConvBlockGroup& group) const;
  bool is_alike(const ConvBlockGroup& a, const ConvBlockGroup& b) const;
  std::vector<ConvChannelPart> channel_parts(const ConvBlockGroup& group) const;
  Share share_of(int index) const;
  void run_share(const ConvArguments& arguments, const Share& share) const noexcept;
  std::vector<Chunk> chunks_of(const ConvBlockGroup& group) const;
  int64_t weights_at(const Phase& phase, const ConvBlockGroup& group, int in_block) const;
  void set_operands(const ConvArguments& arguments, const ConvBlockGroup& group, int64_t volume, int64_t plane,
                    ConvCall& call) const noexcept;
  void run_panel(const ConvArguments& arguments, const Phase& phase, const Panel& panel) const noexcept;

  ConvProblem problem_;
  ConvPlan plan_;
  ConvSplit split_;
  std::vector<int64_t> operand_batch_bytes_;
  std::vector<ConvBlockGroup> groups_;
  std::vector<std::vector<Chunk>> chunks_;  // by group
  std::vector<Phase> phases_;
};

}  // namespace lathe
