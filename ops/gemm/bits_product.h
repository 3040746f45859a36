#pragma once
// C[m x n] = A[m x k] * B[k x n] (+ bias), where B has 2, 4 or 8 bits an element and a scale and maybe an offset for
// each block of rows and each column. B stays small in memory. Three ways, a file each: for a few rows of A it becomes
// float32 in registers (bits_rows_product.cpp), for more a piece of a panel at a time does so in cache
// (bits_panel_product.cpp); where A may be rounded to bytes, products are of integers (bits_int8_product.cpp).
#include <memory>
#include <string>

#include "ops/gemm/gemm_pack.h"
#include "src/base/cpu.h"
#include "src/base/divide.h"

namespace lathe {

struct BitsProblem {
  int64_t m = 0, n = 0, k = 0;
  int bits = 4;
  int64_t block = 32;        // rows of B that share scales; a multiple of 16
  bool has_offsets = false;  // else the code 2^(bits - 1) stands for 0
  bool has_bias = false;
  bool rounds_a = false;  // A may become bytes, with a scale for each row and block
  Isa isa = Isa::avx2;
  int threads = 1;

  int64_t group() const { return 32 / bits; }  // rows in 32 bits of a column
  int64_t blocks() const { return divide_up(k, block); }
  // The same panels for every m, so that prompts and single tokens share the packed weights.
  PanelFormat format() const { return {int64_t{2} * vector_lanes(isa), vector_lanes(isa)}; }
  int64_t panels() const { return format().panels(n); }
  int panel_vecs(int64_t panel) const { return static_cast<int>(format().width_of(panel, n) / format().lanes); }
  int64_t scales_of_block(int64_t width) const { return (has_offsets ? 2 : 1) * width; }
};

struct BitsOperands {
  const float* a = nullptr;
  const uint8_t* codes = nullptr;  // panels as PanelFormat says, of blocks() * block rows, as UnpackBitsFn's
  const float* scales = nullptr;   // panels; for each block those of the columns, then the offsets, as UnpackBitsFn's
  const float* bias = nullptr;     // [n]
  float* c = nullptr;
  float* scratch = nullptr;  // scratch_elements() of this thread's own
};

class BitsProduct {
 public:
  explicit BitsProduct(const BitsProblem& problem) : problem_(problem) {}
  virtual ~BitsProduct() = default;
  BitsProduct(const BitsProduct&) = delete;
  BitsProduct& operator=(const BitsProduct&) = delete;

  virtual int64_t scratch_elements() const = 0;
  virtual std::string key() const = 0;
  // This thread's share.
  virtual void run(const BitsOperands& operands, int thread, int threads) const noexcept = 0;

 protected:
  const uint8_t* codes_at(const BitsOperands& operands, int64_t panel) const;
  const float* scales_at(const BitsOperands& operands, int64_t panel) const;
  // Dense rows of a panel of C into their places, the bias added.
  void store_rows(const BitsOperands& operands, int64_t panel, int64_t first_row, int64_t rows,
                  const float* from) const noexcept;

  const BitsProblem problem_;
};

// By the quickest way. Throws JitError. Requires: no extent is 0.
std::unique_ptr<const BitsProduct> make_bits_product(const BitsProblem& problem);

// So few that make_bits_rows_product() takes them.
bool has_few_rows(const BitsProblem& problem);
// The ways. Each throws JitError where it lacks something: rows, instructions.
std::unique_ptr<const BitsProduct> make_bits_rows_product(const BitsProblem& problem);
std::unique_ptr<const BitsProduct> make_bits_panel_product(const BitsProblem& problem);
std::unique_ptr<const BitsProduct> make_bits_int8_product(const BitsProblem& problem);

}  // namespace lathe
