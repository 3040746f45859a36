#pragma once
// A pointwise convolution by Strassen's seven half-sized products (ops/strassen.h), bound to its kernels.
#include <optional>
#include <vector>

#include "jit/kernels/conv_finish.h"
#include "ops/conv_program.h"
#include "ops/strassen.h"

namespace lathe {

// One tap, stride 1, whole blocks of channels with even halves, and an accuracy level that allows it.
bool is_strassen(const ConvProblem& problem, Isa isa);
// Untuned: it pays.
bool prefers_strassen(const ConvProblem& problem, Isa isa, int threads);

// Of a pointwise convolution with a stride: the one over the pixels that it reads, when Strassen's products make their
// copy worth it.
std::optional<ConvProblem> taken_for_strassen(const ConvProblem& problem, Isa isa, int threads);

class StrassenConv {
 public:
  // Requires: is_strassen(problem, isa). Throws JitError.
  StrassenConv(ConvProblem problem, Isa isa, int threads, std::vector<int64_t> operand_batch_bytes = {});

  const ConvProblem& problem() const { return problem_; }
  // Names the order of the packed weights.
  std::string packing() const;
  int64_t packed_size() const { return core_.packed_elements(); }  // floats
  void pack(const float* weights, float* packed) const;

  int64_t shared_scratch() const { return problem_.batch * core_.sums_elements(); }  // floats
  static int64_t own_scratch() { return 0; }
  // Into which a part is cut; sums are soon made.
  int shares(int part) const { return part == 0 ? threads_ : shares_; }
  // All threads finish a part before one begins the next: sums of the input, products.
  static constexpr int parts() { return 2; }
  void run_part(int part, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                int thread) const noexcept;

 private:
  void finish(const ConvArguments& arguments, int64_t image, int64_t row, int64_t rows, int64_t column) const noexcept;

  ConvProblem problem_;
  int threads_, shares_;
  std::vector<int64_t> operand_batch_bytes_;
  Strassen core_;
  ConvFinish finish_;  // empty: nothing to do
};

}  // namespace lathe
