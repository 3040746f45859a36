#pragma once
// A convolution of integers bound to its kernels: packing of its weights and the loops over channels and tiles.
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/conv/conv_int8.h"
#include "ops/conv/conv_problem.h"
#include "ops/conv/conv_program.h"
#include "ops/int8/int8_pack.h"

namespace lathe {

struct ConvInt8Problem {
  // `lanes`: channels in a block of the output; channels of the input and ConvShape::lanes count 32-bit groups.
  ConvProblem shape;
  int64_t in_channels = 1;  // as they are
  // Of outputs that read their own part of the input. More than one: all blocks of the input are whole, and an output
  // block reads those in which it has channels, with zeros for weights where another group's are.
  int64_t channel_groups = 1;
  // From one position of the input to the next; other than a group's 4 where pixels of few channels lie end to end.
  int unit_bytes = 4;
  Int8Dot dot = Int8Dot::pairs;
  Isa isa = Isa::avx2;
  ConvEpilogue epilogue;
  Int8Store store = {DType::i32};
  int64_t out_bytes() const { return bits_of(store.dtype) / 8; }
  int64_t source_block_bytes() const { return shape.source_block_bytes() / 4 * unit_bytes; }
  int64_t target_block_bytes() const { return shape.out_pixels() * shape.lanes * out_bytes(); }
  int64_t depth() const;  // 32-bit groups that an output block reads, at most
  double flop() const { return shape.flop() * group_of(dot) / static_cast<double>(channel_groups); }
  // Twice the products of 32-bit groups, those with zeros for weights among them.
  double dots() const { return shape.flop() * static_cast<double>(depth()) / static_cast<double>(shape.in_channels); }
  // The real channels of input and output, which blocks go with which.
  ConvProblem channels() const;
  std::string key() const;  // the tuning task's text
};

// Products can be crossed (Int8Dot): all taps of all outputs are inside the input, the first of them at the output's
// origin, and groups come in twos.
bool can_cross(const ConvInt8Problem& problem);

// What is computed together.
struct ConvInt8Tile {
  int blocks = 1;          // of the output
  int rows = 1, cols = 1;  // pixels; rows 0: runs of `cols` pixels over ends of rows
  int group = 0;           // tiles that are done for all channels before the next; 0: all
  int ahead = 0;           // ConvInt8Plan::ahead
};
// Throws JitError when there is none.
ConvInt8Tile choose_conv_int8_tile(const ConvInt8Problem& problem, const CoreRates& rates = core_rates());
// Where finishing the outputs takes a good part of the time: tiles that do so beside the next one's sums, the best
// first. May not fit the registers that the epilogue leaves.
std::vector<ConvInt8Tile> overlapped_conv_int8_tiles(const ConvInt8Problem& problem,
                                                     const CoreRates& rates = core_rates());

// How an epilogue that runs beside products meets bytes with constants.
BytesTimesConstants bytes_beside_products(const ConvInt8Problem& problem, const CoreRates& rates = core_rates());

struct ConvInt8Arguments {
  const void* source = nullptr;
  const void* weights = nullptr;      // packed
  const int32_t* init = nullptr;      // padded to whole blocks
  const int32_t* terms = nullptr;     // ConvInt8Call::terms, of every position, image after image
  const LargeBytes* large = nullptr;  // ConvInt8Call::large: [image][input block][tile]
  void* target = nullptr;
  const void* operands[ConvEpilogue::kMaxOperands] = {};
  const void* next_weights = nullptr;  // streamed by whatever runs next; may be null
  bool is_first = true;                // of the shares that follow each other on a thread
};

constexpr int64_t kFewPixelsOfBytes = 14 * 14;  // kFewPixels of conv_program.h; sooner exchanged than floats

class ConvInt8Program {
 public:
  // `operand_batch_bytes`: from one image to the next in each operand of the epilogue. `tile`: nullopt: the rule's.
  // Throws JitError.
  ConvInt8Program(ConvInt8Problem problem, int threads, std::vector<int64_t> operand_batch_bytes,
                  const std::optional<ConvInt8Tile>& tile = std::nullopt);

  const ConvInt8Problem& problem() const { return problem_; }
  int threads() const { return threads_; }
  std::string plan_text() const;
  std::string packing() const;  // names the order of the packed weights
  int64_t packed_bytes() const;
  // `weights`: one row for each output channel, [in][taps]. `sums`: of each output channel's packed values, padded;
  // where products are crossed, what they add to a sum of it.
  void pack(const ByteMatrix& weights, const ByteZeros& zeros, void* packed, int32_t* sums) const;

  const ConvTiling& tiling() const { return tiling_; }  // of an image

  int shares() const { return split_.count(); }
  // Each share reads the whole input.
  bool reads_all() const { return split_.pixels == 1; }
  void run(const ConvInt8Arguments& arguments, int share) const noexcept;

 private:
  // Some block groups, alike, one after the other over the same tiles.
  struct Panel {
    const ConvBlockGroup* group;
    int64_t groups;
    int64_t unit_begin, unit_end;
    const char* next;
    int64_t next_bytes;
  };
  // From a tile on, tiles of the same shape at the same distances: one call.
  struct TileRun {
    int64_t tiles = 1, source_step = 0, target_step = 0;
  };
  void cut(const ConvInt8Tile& tile);
  void set_groups();
  void set_units();
  void order_tiles();
  static std::vector<TileRun> find_runs(const std::vector<ConvTile>& tiles);
  void make_kernels();
  void fetch_code() const noexcept;
  int64_t weights_at(const ConvBlockGroup& group) const { return group.weights * problem_.shape.phases[0].taps() * 4; }
  int64_t weights_bytes(const ConvBlockGroup& group) const;
  int64_t groups_read(const ConvBlockGroup& group) const;  // of 32 bits
  int64_t groups_alike(int64_t first, int64_t end) const noexcept;
  bool is_one_run(int64_t unit_begin, int64_t unit_end) const noexcept;
  void set_turns(const Panel& panel, int64_t tiles, ConvInt8Call& call) const noexcept;
  void run_panel(const ConvInt8Arguments& arguments, const Panel& panel) const noexcept;
  void set_operands(const ConvInt8Arguments& arguments, const ConvBlockGroup& group, int64_t image, int64_t element,
                    ConvInt8Call& call) const noexcept;

  ConvInt8Problem problem_;
  ConvInt8Tile plan_;
  int threads_;
  ConvSplit split_;
  std::vector<int64_t> operand_batch_bytes_;
  std::vector<ConvBlockGroup> groups_;
  ConvTiling tiling_;
  std::vector<TileRun> runs_;             // by tile
  std::vector<ConvInt8Kernels> kernels_;  // by number of output blocks - 1; empty where unused
};

}  // namespace lathe
