#pragma once
// Winograd's convolution with stride 2 straight from a plain picture of few channels
// (jit/kernels/winograd/winograd_stem.h): a row of tiles at a time, by each thread for itself.
#include <string>
#include <vector>

#include "jit/kernels/winograd/winograd_stem.h"
#include "ops/winograd/winograd_program.h"

namespace lathe {

// Cycles of one thread, as the model of the other algorithms.
double winograd_stem_cycles(const ConvProblem& problem, int outputs, Isa isa, int threads, const CoreRates& rates);

class WinogradStem {
 public:
  // Requires: is_winograd_stem(problem, plan.form.outputs). Throws JitError.
  WinogradStem(ConvProblem problem, const WinogradPlan& plan, int threads,
               std::vector<int64_t> operand_batch_bytes = {});

  const ConvProblem& problem() const { return problem_; }
  std::string packing() const;
  int64_t packed_size() const { return packed_size_; }  // floats
  void pack(const float* weights, float* packed) const;

  static int64_t shared_scratch() { return 0; }
  int64_t own_scratch() const { return own_scratch_; }  // floats
  static int parts() { return 1; }
  int shares(int /*part*/) const { return threads_; }  // more would transform rows twice more often
  static bool reads_all(int /*part*/) { return false; }
  void run_part(int part, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                int thread) const noexcept;

 private:
  // By rows of tiles in registers: the most, and one less. By vectors of output channels: a panel, and the last one.
  struct Products {
    Kernel<void(StemProductCall*)> by_rows[2][2];
  };
  struct PictureRows;
  struct Work;  // places within a thread's scratch

  void make_kernels(Isa isa);
  Work work_of(float* scratch) const;
  void transform_row(const ConvArguments& arguments, const Work& work, int64_t image, int64_t y) const noexcept;
  void transform_tiles(const Work& work, int64_t tile_row) const noexcept;
  void fetch_rows(const ConvArguments& arguments, const PictureRows& rows, int frequency) const noexcept;
  void multiply(const ConvArguments& arguments, const Work& work, const PictureRows& next) const noexcept;
  void transform_output(const ConvArguments& arguments, const Work& work, int64_t image,
                        int64_t tile_row) const noexcept;

  ConvProblem problem_;
  WinogradForm form_;
  int threads_;
  std::vector<int64_t> operand_batch_bytes_;
  int64_t tile_rows_, tiles_;     // tiles of one row
  int64_t blocks_, tall_blocks_;  // of tiles in registers; the first ones have a tile more
  int64_t row_floats_;            // of pixels with zeros around
  int64_t out_stride_, out_frequency_, packed_size_ = 0, own_scratch_ = 0;
  std::vector<WinogradClass> classes_;
  std::vector<Products> products_;  // by class
  Kernel<void(StemAcrossCall*)> across_;
  Kernel<void(StemDownCall*)> down_;
  std::vector<std::vector<WinogradKernel>> out_;  // by: last row, last column of tiles
};

}  // namespace lathe
