#pragma once
// The products of Winograd's frequencies by fewer products of blocks (ops/gemm/strassen.h), one frequency after the
// other. Frequencies of tiles are stored in blocks of channels: [frequency][channels / lanes][tiles][lanes].
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/conv/conv_problem.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/strassen.h"
#include "ops/winograd/winograd_form.h"

namespace lathe {

// Stride 1, whole blocks of channels with even halves, two tiles or more that are whole, and an accuracy level that
// allows it.
bool can_multiply_fewer(const ConvProblem& problem, Isa isa, int outputs);
// Untuned: the size of groups in which it pays, for a plan with a form of Winograd's; nullopt: it does not.
std::optional<int> choose_fewer_products(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                         const CoreRates& rates);

class FewerProducts {
 public:
  // `problem`: of one frequency; its columns are whole vectors. `offsets`: of each. Throws JitError.
  FewerProducts(const GemmProblem& problem, std::vector<GemmOffsets> offsets);

  int64_t panel_columns() const { return core_.shape().width(); }
  int64_t sums_elements() const { return core_.sums_elements(); }  // floats, of each thread
  void pack(const MatrixView& matrix, float* packed) const { core_.pack(matrix, 1, packed); }
  // Strides in floats, from one block of channels to the next.
  struct Operands {
    const float *a, *b;
    float *c, *sums;
    int64_t a_block, c_block;
    const void* next_weights;  // what is streamed afterwards; may be null
  };
  // Shares are frequencies.
  void run(const Operands& operands, int share, int shares) const noexcept;
  // Where a share begins to read the packed weights `b`.
  const float* first_weights(const float* b, int share, int shares) const noexcept;

 private:
  Strassen core_;
  std::vector<GemmOffsets> offsets_;
};

}  // namespace lathe
