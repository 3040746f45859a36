#pragma once
// One convolution at its exact shapes, and the decisions that turn it into kernels: both plain data.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/conv/conv_direct.h"
#include "jit/kernels/conv/conv_shape.h"
#include "tuner/task.h"

namespace lathe {

// A convolution of volumes is one of pictures: of each of its output's frames, over the input's frames that the frame
// depends on, their channels one behind the other, or their rows one below the other.
struct ConvFrames {
  int64_t out = 1;      // images of one volume; they lie side by side in each block of the target
  int64_t in = 1;       // frames of one volume in the source
  int64_t step = 1;     // source frames from an image to the next
  int64_t joined = 1;   // source frames whose channels are an image's
  int64_t stacked = 1;  // source frames whose rows are an image's
  // The source is [volume][frame][block of channels] instead of [volume][block of channels][frame].
  bool are_outer = false;
  bool operator==(const ConvFrames&) const = default;
};

struct ConvProblem {
  int64_t batch = 1;  // images
  ConvFrames frames;
  int64_t in_channels = 1, out_channels = 1, groups = 1;
  int64_t window_y = 1, window_x = 1;  // extents of the weights' window
  // Weights are [in][out / groups][window] instead of [out][in / groups][window].
  bool is_transposed = false;
  int lanes = 16;                 // channels in a block of the output
  std::vector<ConvShape> phases;  // together they write every output once
  bool has_bias = false;
  ConvEpilogue epilogue;
  int most_winograd = 6;  // the largest Winograd output tile that the accuracy level allows; 0: none
  // Products in one float32 sum of a form of more than six points (WinogradForm::size()), at most; 0: any number.
  int longest_winograd_sum = 32;

  // No weight may be rounded: they are made at run time, or Bfp24 cannot hold what becomes of them.
  bool has_exact_weights = false;
  int longest_sum = 0;  // products in one float32 sum, at most (a block of channels may have more); 0: any number

  // Products by fewer products of blocks: where the accuracy level does not ask for plain sums.
  bool allows_sums_of_blocks() const {
    constexpr int kExact = 2;  // the largest Winograd form where it does
    return most_winograd > kExact;
  }
  // Of a group.
  int64_t in_channels_each() const { return in_channels / groups; }
  int64_t out_channels_each() const { return out_channels / groups; }
  int64_t out_blocks() const { return (out_channels + lanes - 1) / lanes; }
  int in_lanes() const { return phases[0].lanes; }
  int64_t in_blocks() const { return (in_channels + in_lanes() - 1) / in_lanes(); }
  // From a block of channels to the next.
  int64_t source_block_bytes() const { return source_frame_bytes() * (frames.are_outer ? 1 : frames.in); }
  int64_t target_block_bytes() const { return out_pixels() * lanes * 4 * frames.out; }
  // Where an image begins: its volume, and within that its frame, which operands of the output's shape have in common.
  int64_t source_image(int64_t image) const;
  int64_t target_volume(int64_t image) const { return volume(image) * out_blocks() * target_block_bytes(); }
  int64_t target_frame(int64_t image) const { return image % frames.out * out_pixels() * lanes * 4; }
  int64_t volume(int64_t image) const { return image / frames.out; }
  int64_t source_bytes() const { return source_image(batch); }  // of all images
  int64_t target_bytes() const { return target_volume(batch); }
  int64_t out_pixels() const { return phases[0].y.out_extent * phases[0].x.out_extent; }
  // Input blocks that may be summed up at once; 0: all.
  int most_blocks_at_once() const;
  double flop() const;

 private:
  int64_t source_frame_bytes() const { return phases[0].y.in / frames.stacked * phases[0].x.in * in_lanes() * 4; }
};

// A pointwise convolution sees the picture as one row.
void merge_axes(ConvProblem& problem);

// A 1x1 window over all channels, at any stride, whose outputs stand side by side.
bool has_one_tap(const ConvProblem& problem);

// Of a pointwise convolution with a stride: the one over the pixels that it reads, side by side, where this is worth a
// copy. nullopt where it is not.
std::optional<ConvProblem> with_taken_pixels(const ConvProblem& problem);

// The same convolution of a picture that has its zeros in memory, so that no window ends at a border: all tiles are
// then the same code. nullopt where none does.
std::optional<ConvProblem> padded(const ConvProblem& problem);

// Names what decides speed: shapes, types, epilogue. The tuner's key.
std::string to_string(const ConvProblem& problem);

// Outputs for each input that ConvKernelPlan::dots may be; 0: too many, or groups of other sizes.
int dots_of(const ConvProblem& problem);

struct ConvPlan {
  Isa isa = Isa::avx2;
  int blocks = 1;          // output blocks in registers
  int rows = 1, cols = 1;  // pixels in registers; rows 0: runs of `cols` pixels over ends of rows
  bool embedded = false;   // broadcasts as operands of the multiply-adds
  int unroll = 4;          // channels in one round
  int chunk = 0;           // input blocks between two visits to an output tile; 0: all
  int tile_group = 0;      // tiles that are done for all channels before the next; 0: all
  bool prefetch = true;    // weights of the next panel
  // 2, 4 or 6: Winograd's F(n x n) instead of all the above, which then is what a direct convolution would do.
  int winograd = 0;
  int winograd_group = 0;  // tiles of one group; 0: all
  bool ahead = false;      // prefetch what the end of a tile reads and writes; for pointwise ones
  bool dots = false;  // sums run along the input's channels (ConvKernelPlan::dots), of few outputs or narrow groups
  // Fewer products of blocks: instead of all the above (conv_strassen.h), or of Winograd's frequencies
  // (winograd/fewer_products.h).
  bool strassen = false;
  bool narrow = false;  // Winograd's weights are of 24 bits (jit/kernels/gemm/bfp24.h)
  bool operator==(const ConvPlan&) const = default;
};

std::string to_string(const ConvPlan& plan);
Candidate to_candidate(const ConvPlan& plan);
ConvPlan plan_of(const Candidate& candidate, Isa isa);
// The plan can be emitted for this problem.
bool is_valid(const ConvPlan& plan, const ConvProblem& problem);
// ConvPlan::strassen, by what else the plan says.
bool can_be_strassen(const ConvPlan& plan, const ConvProblem& problem);
// ConvPlan::narrow, of a plan by Winograd's algorithm without `strassen`.
bool can_be_narrow(const ConvProblem& problem);

// Output blocks [first, first + count) read input blocks [in_first, in_first + in_count) and are computed together.
struct ConvBlockGroup {
  int first = 0, count = 1;
  int in_first = 0, in_count = 0;  // with the partial last block, if any
  bool has_tail = false;           // the last input block is the partial one of the tensor
  ConvChannels channels;           // of these blocks, unless its count is 0: all
  int64_t weights = 0;             // floats from the phase's weights to the group's
  bool operator==(const ConvBlockGroup&) const = default;
};
// Output blocks that read the same input, so that they may be computed together.
int64_t blocks_alike(const ConvProblem& problem);
// Pixels whose sums share a register of the last of `blocks` blocks (ConvKernelPlan::last_share), as
// rows_that_share() says.
int shared_pixels(const ConvProblem& problem, const ConvPlan& plan, int64_t blocks, const CoreRates& rates);
// `even_for`: a number of groups divisible by this is preferred (threads).
std::vector<ConvBlockGroup> make_block_groups(const ConvProblem& problem, int blocks, int even_for);
// Lets them read exactly the channels that they need: for plans that visit outputs once.
void read_exactly(const ConvProblem& problem, std::vector<ConvBlockGroup>& groups);

// The choice without measurements, and what the tuner may try instead.
ConvPlan choose_conv_plan(const ConvProblem& problem, Isa isa, int threads, const CoreRates& rates = core_rates());
SearchSpace conv_search_space(const ConvProblem& problem, Isa isa, int threads);

}  // namespace lathe
