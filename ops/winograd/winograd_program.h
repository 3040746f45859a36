#pragma once
// Winograd's convolution bound to its kernels: tiles of pixels become frequencies, each frequency is one packed matrix
// product (tiles x input channels x output channels), and the products become tiles of the output.
#include <vector>

#include "jit/kernels/winograd/winograd.h"
#include "ops/conv/conv_problem.h"
#include "ops/conv/conv_program.h"
#include "ops/gemm/gemm_product.h"
#include "ops/winograd/fewer_products.h"
#include "ops/winograd/winograd_form.h"
#include "ops/winograd/winograd_weights.h"

namespace lathe {

class WinogradProgram {
 public:
  // Requires: is_winograd_of_blocks(problem, plan.form.outputs). `pool`: as of WinogradOutputPlan; if 2, outputs are
  // even along both axes. Throws JitError.
  WinogradProgram(ConvProblem problem, const WinogradPlan& plan, int threads,
                  std::vector<int64_t> operand_batch_bytes = {}, int pool = 1);

  const ConvProblem& problem() const { return problem_; }
  // Names the order of the packed weights.
  std::string packing() const;
  int64_t packed_size() const { return packed_size_; }  // floats
  void pack(const float* weights, float* packed) const;

  int64_t shared_scratch() const;  // floats
  int64_t own_scratch() const;
  // All threads finish a part before one begins the next.
  int parts() const { return plan_.tile_group > 0 ? 1 : 3; }
  // Into which a part is cut; transforms alone are soon made.
  int shares(int part) const { return parts() == 1 || part == 1 ? shares_ : threads_; }
  void run_part(int part, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                int thread) const noexcept;
  // Each thread reads the whole input, if others are far.
  bool reads_all(int part) const { return part == 0 && has_own_inputs_; }

 private:
  // Tiles along one axis.
  struct Axis {
    int64_t tiles = 0, outputs = 0, first_input = 0;
    int64_t tile_outputs = 1, step = 1;                    // outputs and inputs from tile to tile
    std::vector<int> kind;                                 // of each tile
    std::vector<std::vector<std::pair<int, int>>> inputs;  // by kind and phase: the pixels that exist, [first, last)
    std::vector<int> stored;                               // by kind: outputs
    int64_t whole_tiles() const { return outputs / tile_outputs; }
    int part() const { return static_cast<int>(outputs % tile_outputs); }  // outputs of a last tile that has fewer
  };
  // Tiles of one image that lie together in the order of all tiles.
  struct Area {
    int64_t y_begin, y_end, x_begin, x_end;
    int64_t tiles() const { return (y_end - y_begin) * (x_end - x_begin); }
  };
  struct Tiles {
    int64_t begin, end;  // over areas, images, rows and columns of tiles
  };
  struct Products {
    size_t part = 0;  // which class's
    // Of groups of group_tiles_ and of one less; by one way or the other.
    std::vector<GemmProduct> by_count;
    std::vector<FewerProducts> fewer_by_count;
  };
  // One kind's run in a row of tiles.
  struct Run {
    int64_t image, y, x, count, first;  // `first`: of the group's tiles
  };

  // `sizes`: frequencies of each phase.
  Axis make_axis(const ConvAxis& axis, const std::vector<int>& sizes, int outputs) const;
  // Those at the ends of the axes that are not whole take a part of the points; in groups all tiles are treated alike.
  bool has_part_tiles() const { return parts() > 1; }
  void make_areas();
  Tiles tiles_of(const WinogradClass& part) const;
  void make_kernels();
  void make_products();
  WeightFormat weight_format() const { return plan_.narrow ? WeightFormat::bfp24 : WeightFormat::f32; }
  // Of one matrix of a class, packed.
  int64_t matrix_words(const WinogradClass& part) const {
    return words_of(weight_format(), part.slots * problem_.in_channels_each()) * columns_of_group(problem_);
  }
  void add_products(GemmProblem product, GemmPlan plan, const Tiles& tiles);
  template <class Body>
  void for_runs(const Tiles& tiles, Body body) const;
  // body(run, kind of row, kind of column, block of channels).
  template <class Body>
  void for_runs_of_blocks(const Tiles& tiles, int64_t first_block, int64_t last_block, Body body) const;
  Tiles group_of(int64_t group) const;
  int64_t own_frequencies() const;  // floats of each thread
  int64_t inputs_of_group() const;  // from its products on
  void transform_input(const ConvArguments& arguments, float* frequencies, const Tiles& tiles, int64_t first_block,
                       int64_t last_block) const noexcept;
  void pad_tiles(float* frequencies, int64_t tiles, int64_t first_block, int64_t last_block) const noexcept;
  void multiply(const ConvArguments& arguments, const float* inputs, float* products, float* sums, const Tiles& tiles,
                const void* next, int share, int shares) const noexcept;
  void transform_output(const ConvArguments& arguments, const float* frequencies, const Tiles& tiles,
                        int64_t first_block, int64_t last_block) const noexcept;

  ConvProblem problem_;
  WinogradPlan plan_;
  int threads_, shares_ = 1;
  int pool_;
  // Each thread has room for the frequencies of the whole input, and transforms it for itself: if others are far, or
  // lines do not come fast from those that are near either.
  bool has_own_inputs_ = false, shares_near_inputs_ = false;
  FrequencyFetch fetch_ = FrequencyFetch::none;  // lines: transforms go from line to line of each
  std::vector<int64_t> operand_batch_bytes_;
  Axis y_, x_;
  int64_t tiles_, groups_, group_tiles_;  // of all images; of the largest group
  int64_t in_stride_, out_stride_;        // floats from tile to tile within a frequency
  int64_t in_block_, out_block_;          // and from block to block of channels
  int64_t in_frequency_, out_frequency_;  // floats from frequency to frequency
  std::vector<Area> areas_;
  std::vector<std::vector<std::vector<WinogradKernel>>> in_;  // by kind of row and of column, and by phases
  std::vector<std::vector<WinogradKernel>> out_;              // by kind of row and of column
  std::vector<WinogradClass> classes_;
  std::vector<Products> products_;  // of classes that have tiles
  int64_t packed_size_ = 0;
  int64_t sums_ = 0;  // floats of each thread, for fewer products
};

}  // namespace lathe
