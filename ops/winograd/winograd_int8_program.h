#pragma once
// Winograd's convolution in whole numbers bound to its kernels: tiles of pixels become frequencies, each frequency is
// one packed matrix product of 16-bit integers (tiles x input channels x output channels), and the products become
// tiles of the output.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "jit/kernels/winograd/winograd_int8.h"
#include "ops/int8/int8_crossed.h"
#include "ops/int8/int8_product.h"
#include "ops/winograd/winograd_int8_weights.h"
#include "src/base/thread_team.h"

namespace lathe {

// Stride and dilation 1, a 3x3 window.
bool is_winograd_int8(const ConvProblem& shape);
struct WinogradInt8Plan {
  int64_t tile_group = 0;  // tiles that go through all parts before the next ones; 0: all, part by part
  // Frequencies of the weights are made in each run, panel by panel: for CPUs that are through with the products before
  // memory has delivered what is 8 times the weights. Only where all tiles of a thread are one group.
  bool makes_weights = false;
};
// nullopt: a direct convolution with `dot` is faster.
std::optional<WinogradInt8Plan> choose_winograd_int8(const WinogradInt8Problem& problem, Int8Dot dot, int threads,
                                                     const CoreRates& rates = core_rates());

// Outputs along an axis whose last tile is a small one (WinogradInt8::kSmallOutputs). Only where all tiles are one
// group.
inline bool ends_small(int64_t outputs) {
  const int64_t left = outputs % WinogradInt8::kOutputs;
  return left >= 1 && left <= WinogradInt8::kSmallOutputs;
}

// Its products are crossed (Int8Dot::crossed): where they are long enough to pay for shorter tiles. Frequencies of the
// input are within 50 * 255, those of the weights within 49 * 255, so that sums of both fit 16 bits.
inline bool crosses_winograd_int8(const WinogradInt8Problem& problem, int64_t tile_group) {
  constexpr int64_t kFewestChannels = 256;
  return tile_group > 0 && can_cross(problem.conv.isa) && problem.conv.in_channels >= kFewestChannels;
}

class WinogradInt8Program {
 public:
  // Requires: is_winograd_int8(), stays_exact(). Throws JitError.
  WinogradInt8Program(WinogradInt8Problem problem, WinogradInt8Plan plan, int threads,
                      std::vector<int64_t> operand_batch_bytes);

  const WinogradInt8Problem& problem() const { return problem_; }
  int threads() const { return threads_; }
  std::string plan_text() const;
  std::string packing() const;  // names the order of the packed weights
  int64_t packed_bytes() const;
  void pack(const ByteMatrix& weights, const ByteZeros& zeros, void* packed) const;

  // With one part, for each thread that runs it; else for all threads together.
  int64_t scratch_bytes() const {
    const int64_t terms = is_crossed() ? group_tiles_ * 4 : 0;
    return WinogradInt8::kFrequencies * (in_frequency_ + out_frequency_ + terms) + made_bytes();
  }
  bool reads_all() const { return has_own_channels_; }  // each share the whole input
  // All threads finish a part before one begins the next.
  int parts() const { return tile_group_ > 0 || has_own_channels_ ? 1 : 3; }
  // A share of a part, of as many as the program was made for threads.
  void run_part(int part, const ConvInt8Arguments& arguments, char* scratch, int share) const noexcept;

 private:
  // Tiles along one axis.
  struct Axis {
    int64_t tiles = 0, outputs = 0, inputs = 0, first_input = 0;
    // Tiles of one input kind have the same pixels, those of one output kind store the same outputs.
    std::vector<int> in_kind, out_kind;       // of each tile
    std::vector<std::pair<int, int>> pixels;  // by input kind: those that exist, [first, last)
    std::vector<int> in_size;                 // by input kind: of the input
    std::vector<int> stored, out_size;        // by output kind: outputs; of the input
    bool has_small = false;                   // the last tile

    int64_t large() const { return tiles - (has_small ? 1 : 0); }
  };
  struct Tiles {
    int64_t begin, end;  // over images, rows and columns of tiles
  };
  using Kinds = std::vector<int> Axis::*;
  // One kind's run in a row of tiles.
  struct Run {
    int64_t image, y, x, count, first;  // `first`: of the group's tiles
  };

  struct InputKernels {
    WinogradInt8Kernel single, pairs;  // of blocks
  };
  // Frequencies that are made for the same tiles, which lie behind each other: all; those of large tiles along y, along
  // x, along both.
  struct FrequencyClass {
    bool is_large_y, is_large_x;
    int64_t first, count;  // tiles
  };

  static Axis make_axis(const ConvAxis& axis, bool takes_small);
  bool has_small() const { return y_.has_small || x_.has_small; }
  std::vector<FrequencyClass> frequency_classes() const;
  int64_t place_of(int64_t image, int64_t y, int64_t x) const;
  void make_kernels();
  void make_products();
  Tiles group_of(int64_t group) const;
  template <class Body>
  void for_runs(const Tiles& tiles, Kinds kinds, Body body) const;
  void transform_input(const ConvInt8Arguments& arguments, char* frequencies, const Tiles& tiles,
                       Range blocks) const noexcept;
  template <class Product>
  void multiply(const ConvInt8Arguments& arguments, char* scratch, const Tiles& tiles, int64_t panel, const void* next,
                Product each) const noexcept;
  void sum_crossed_rows(char* scratch, int64_t tiles) const noexcept;
  void run_panels(const ConvInt8Arguments& arguments, char* scratch, const Tiles& tiles, Range panels,
                  const void* next) const noexcept;
  void transform_output(const ConvInt8Arguments& arguments, const char* frequencies, const Tiles& tiles,
                        Range blocks) const noexcept;
  void multiply_by_made(const ConvInt8Arguments& arguments, char* scratch, int64_t panel,
                        const void* next) const noexcept;
  Int8Operands operands_of(const ConvInt8Arguments& arguments, char* scratch) const;
  // Products are made class by class.
  bool has_classes() const { return has_small() || makes_weights_; }
  bool is_crossed() const { return crosses_winograd_int8(problem_, tile_group_); }
  int64_t terms_at() const { return WinogradInt8::kFrequencies * (in_frequency_ + out_frequency_); }
  int64_t column_terms_at() const { return WinogradInt8::kFrequencies * winograd_int8_matrix_bytes(problem_); }
  int64_t columns() const { return problem_.conv.shape.out_blocks() * problem_.conv.shape.lanes; }
  int64_t sums_at() const { return WinogradInt8::kFrequencies * in_frequency_; }
  int64_t panels() const { return (problem_.conv.shape.out_blocks() + panel_blocks_ - 1) / panel_blocks_; }
  // The first of a panel, in the first product.
  const char* weights_at(const ConvInt8Arguments& arguments, int64_t panel) const {
    const int64_t columns = panel * panel_blocks_ * problem_.conv.shape.lanes;
    const int64_t column_bytes =
        makes_weights_ ? winograd_int8_window_bytes(problem_, 1) : problem_.in_blocks() * problem_.conv.shape.lanes * 2;
    return static_cast<const char*>(arguments.weights) + columns * column_bytes;
  }
  // Frequencies of the weights of a panel and a class.
  int64_t made_at() const { return scratch_bytes() - made_bytes(); }
  int64_t made_bytes() const;
  int64_t made_frequency() const;
  Int8Problem product_of(int64_t tiles, int64_t frequencies) const;
  void add_product(int64_t tiles, int64_t first, const std::vector<int>& frequencies);

  WinogradInt8Problem problem_;
  int64_t tile_group_;
  bool makes_weights_;
  int threads_;
  // Of all tiles at once: each thread transforms the whole input for itself, and has the same channels of the output
  // in all frequencies. Nothing but the picture goes from one to the other, and nobody waits in between.
  bool has_own_channels_ = false;
  std::vector<int64_t> operand_batch_bytes_;
  Axis y_, x_;
  int64_t tiles_, groups_, group_tiles_;  // of all images; of the largest group
  int64_t in_stride_, out_stride_;        // bytes from tile to tile within a frequency
  int64_t in_frequency_, out_frequency_;  // bytes from frequency to frequency
  GemmPlan plan_;                         // of the products
  int64_t panel_blocks_ = 1;              // of the output, in a panel of the weights
  // By kind of row and of column.
  std::vector<std::vector<InputKernels>> in_;
  std::vector<std::vector<WinogradInt8Kernel>> out_;
  // Of groups of group_tiles_ and of one less; or, with small tiles, by class of frequencies.
  std::vector<Int8Product> products_;
  std::vector<WinogradInt8WeightsKernel> makers_;          // by product, where weights are made
  std::vector<int64_t> weights_from_;                      // by product: its first matrix, in bytes
  std::array<int, WinogradInt8::kFrequencies> matrix_of_;  // by frequency: where its weights lie
  std::vector<int32_t> zeros_;                             // what products begin with
};

}  // namespace lathe
