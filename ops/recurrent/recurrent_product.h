#pragma once
// The products with R of one time step, by float32 weights or by bytes.
#include <memory>
#include <string>
#include <vector>

#include "ops/gemm/gemm_product.h"
#include "ops/int8/dynamic_product.h"

namespace lathe {

// Rows of `hidden` elements, `stride` elements apart; one for each batch entry.
struct HiddenRows {
  float* data = nullptr;
  int64_t stride = 0;
};
struct ConstHiddenRows {
  const float* data = nullptr;
  int64_t stride = 0;
};

ValueRange range_of_rows(const ConstHiddenRows& rows, int64_t count, int64_t hidden) noexcept;

// gates = H * R^T [+ added]
struct RecurrentProductArgs {
  ConstHiddenRows hidden;
  const void* weights = nullptr;   // packed
  const float* r_scale = nullptr;  // of bytes: one, or one for each column
  float* gates = nullptr;
  int64_t gates_stride = 0;
  const float* added = nullptr;  // null: nothing
  int64_t added_stride = 0;
  void* own = nullptr;                // own_bytes() of this share's own
  const ValueRange* range = nullptr;  // by which H is rounded; null: that of these rows
  // Every second time step goes from the last columns to the first: what came last in one step is still near in the
  // next, where all weights would push one another out of the cache (256 hidden units of an LSTM are all of 1 MB).
  bool goes_back = false;
};

class RecurrentProduct {
 public:
  virtual ~RecurrentProduct() = default;
  // Weights: their form, and from one direction's R.
  virtual std::string packed_text() const = 0;
  virtual int64_t packed_bytes() const = 0;
  virtual void pack(const void* r, const ByteZeros& zeros, void* out) const noexcept = 0;

  virtual int64_t own_bytes() const { return 0; }
  virtual void run(const RecurrentProductArgs& args, int share, int shares) const noexcept = 0;
  virtual std::string text() const = 0;
};

// Columns [first_column, first_column + columns) of R^T.
struct RecurrentProductTask {
  int64_t batch = 0, hidden = 0;
  int64_t first_column = 0, columns = 0;
  bool adds = false;
  Isa isa = Isa::avx2;
  int shares = 1;
};

// R: float32, a row for each column of the product.
class FloatRecurrentProduct : public RecurrentProduct {
 public:
  // Throws JitError.
  FloatRecurrentProduct(const RecurrentProductTask& task, PlanSource& plans);
  std::string packed_text() const override;
  int64_t packed_bytes() const override;
  void pack(const void* r, const ByteZeros& zeros, void* out) const noexcept override;
  void run(const RecurrentProductArgs& args, int share, int shares) const noexcept override;
  std::string text() const override { return product_.plan().key(); }

 private:
  RecurrentProductTask task_;
  GemmProduct product_;
};

// R: bytes, a column for each column of the product, of which there are no others. H is rounded to bytes at every time
// step.
class DynamicRecurrentProduct : public RecurrentProduct {
 public:
  // Throws JitError.
  DynamicRecurrentProduct(const RecurrentProductTask& task, const ByteWeights& weights, PlanSource& plans);
  std::string packed_text() const override { return product_.packed_text(); }
  int64_t packed_bytes() const override { return product_.packed_bytes(); }
  void pack(const void* r, const ByteZeros& zeros, void* out) const noexcept override { product_.pack(r, zeros, out); }
  int64_t own_bytes() const override { return product_.rows_bytes(); }
  void run(const RecurrentProductArgs& args, int share, int shares) const noexcept override;
  std::string text() const override { return product_.text(); }

 private:
  int64_t batch_, hidden_;
  DynamicProduct product_;
};

}  // namespace lathe
