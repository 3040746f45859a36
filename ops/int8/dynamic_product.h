#pragma once
// Rows of float32 times a matrix of bytes, as dynamic quantization has it: the rows are rounded to bytes by their
// common range, multiplied as integers, and what comes out is scaled back.
//
//   C[m x n] = (a_scale * b_scale[j]) * sum over k of (bytes(A)[i][k] - a_zero) * (B[k][j] - b_zero[j]) + added...
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ops/int8/int8_pack.h"
#include "ops/int8/int8_product.h"
#include "ops/int8/quantize_floats.h"
#include "src/base/thread_team.h"

namespace lathe {

struct ByteWeights {
  bool is_signed = true;
  std::vector<int32_t> zeros = {};  // of one element when all are equal; empty: not known before they are packed
  bool has_column_scales = false;   // else one scale for all columns
  int most = 128;                   // the largest one in size; 128: not known
};

struct DynamicProblem {
  int64_t m = 0, n = 0, k = 0;
  ByteWeights b;
  int added = 0;  // matrices, or vectors for all rows, that are added: 0 to 2
  Isa isa = Isa::avx2;
  int threads = 1;
};

struct DynamicOperands {
  const void* rows = nullptr;     // quantized: rows_bytes()
  const void* weights = nullptr;  // packed
  const float* b_scale = nullptr;
  float* c = nullptr;
  int64_t c_stride = 0;  // elements
  std::array<const float*, 2> added = {};
  std::array<int64_t, 2> added_strides = {};  // elements from row to row
  const void* next_weights = nullptr;         // what the next step streams first; may be null
};

class DynamicProduct {
 public:
  // Throws JitError.
  DynamicProduct(const DynamicProblem& problem, PlanSource& plans);

  std::string packed_text() const;  // of the format
  int64_t packed_bytes() const;
  // `b`: rows of n bytes; `zeros`: of its columns.
  void pack(const void* b, const ByteZeros& zeros, void* out) const noexcept;

  // The quantized rows with what products need besides. Rows can be quantized in parts; begin() belongs to all of them.
  int64_t rows_bytes() const;
  void quantize_rows(const float* a, int64_t stride, const Range& range, const Quantization& q,
                     void* rows) const noexcept;
  void begin(const Quantization& q, const DynamicOperands& operands, void* rows) const noexcept;

  void run(const DynamicOperands& operands, int share, int shares) const noexcept;
  // Shares that are one panel of columns each, in any order; 1: the product is split by rows.
  int panels() const;
  std::string text() const;

 private:
  struct Terms;
  int32_t b_zero() const;  // as packed
  int shift_of_rows() const { return shift_of_a(format_.dot, false); }

  DynamicProblem problem_;
  Int8Problem product_problem_;
  Int8PanelFormat format_;
  GemmPlan plan_;
  std::optional<Int8Product> product_;
  std::optional<Int8ColumnSums> column_sums_;
  NegatedRowSums row_sums_;
};

}  // namespace lathe
