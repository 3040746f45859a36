#pragma once
// A pointwise convolution by fewer products of blocks (ops/gemm/strassen.h), bound to its kernels. Its pixels are cut
// into pieces, each a product by itself: threads exchange no sums.
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "jit/kernels/conv/conv_finish.h"
#include "ops/conv/conv_program.h"
#include "ops/gemm/strassen.h"

namespace lathe {

// One tap, stride 1, whole blocks of channels with even halves or thirds, and an accuracy level that allows it.
bool is_strassen(const ConvProblem& problem, Isa isa);
// Untuned: it pays.
bool prefers_strassen(const ConvProblem& problem, Isa isa, int threads, const CoreRates& rates);

class StrassenConv {
 public:
  // Requires: is_strassen(problem, isa). Throws JitError.
  StrassenConv(ConvProblem problem, Isa isa, int threads, std::vector<int64_t> operand_batch_bytes = {});

  const ConvProblem& problem() const { return problem_; }
  // Names the order of the packed weights.
  std::string packing() const;
  int64_t packed_size() const { return core_.packed_elements(); }  // floats
  void pack(const float* weights, float* packed) const;

  static int64_t shared_scratch() { return 0; }
  int64_t own_scratch() const { return core_.sums_elements(); }  // floats
  int shares(int /*part*/) const { return shares_; }
  static bool reads_all(int /*part*/) { return false; }
  static constexpr int parts() { return 1; }
  void run_part(int part, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                int thread) const noexcept;

 private:
  // Pixels [begin, begin + count) of an image.
  struct Piece {
    int64_t image, begin, count;
  };
  Piece piece_of(int64_t number) const;
  int64_t most_pixels() const;  // of a piece
  void run_piece(const ConvArguments& arguments, const Piece& piece, float* sums, const void* next) const noexcept;
  std::span<const float* const> inputs_of(const ConvArguments& arguments, const Piece& piece,
                                          std::array<const float*, kMaxGemmInputs>& inputs) const noexcept;
  void finish(const ConvArguments& arguments, const Piece& piece, int64_t row, int64_t rows,
              int64_t column) const noexcept;

  ConvProblem problem_;
  std::vector<int64_t> operand_batch_bytes_;
  int64_t pieces_;  // of each image; all have the same pixels, or one or two less
  int shares_;
  Strassen core_;                // of the large ones
  std::optional<Strassen> low_;  // of those of less, when there are any
  ConvFinish finish_;            // empty: nothing to do
};

}  // namespace lathe
