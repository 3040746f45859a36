#pragma once
// The k first elements of each row along an axis, by value and then by place. NaN counts as larger than any number, as
// in NumPy; -0 equals +0.
#include <cstdint>
#include <optional>

#include "jit/kernels/copy/transpose.h"
#include "jit/kernels/select/column_places.h"
#include "lathe/dtype.h"
#include "ops/numbers.h"
#include "ops/rows/topk_scan.h"
#include "src/base/thread_team.h"

namespace lathe {

struct TopKProblem {
  DType dtype = DType::f32;
  AxisSplit split;    // an extent of less than 2^31
  int64_t count = 1;  // 1 .. split.extent
  bool is_largest = true;
};

class TopKSelect {
 public:
  // nullopt: not these types or extents.
  static std::optional<TopKSelect> make(Isa isa, const TopKProblem& problem);

  size_t scratch_bytes() const { return list_offset_ + kListBytes; }  // of each thread
  int64_t rows() const { return problem_.split.outer * problem_.split.inner; }
  // Either result may be null. Allocates nothing.
  void run(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept;

 private:
  TopKSelect(Isa isa, const TopKProblem& problem) : isa_(isa), problem_(problem) {}
  SelectOrder order() const { return problem_.is_largest ? SelectOrder::largest_first : SelectOrder::smallest_first; }
  void add_kernels();
  int64_t turned_columns() const;
  int64_t run_side_by_side(const uint32_t* from, uint32_t* values, int64_t* places, void* scratch,
                           Range rows) const noexcept;
  // One row of neighbouring elements; of the results, each `step` behind the last.
  template <class Element>
  void run_row(const typename Element::Bits* elements, void* scratch, typename Element::Bits* values, int64_t* places,
               int64_t step) const noexcept;
  template <class Element>
  void run_as(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept;

  // Of groups, or the places of columns side by side.
  static constexpr size_t kListBytes = sizeof(int32_t) * FloatScan::kListed;

  Isa isa_;
  TopKProblem problem_;
  int64_t capacity_ = 0;                        // of the pool
  size_t turned_offset_ = 0, list_offset_ = 0;  // into the scratch, behind the pool
  FloatScan scan_;                              // this and the next one: of float32
  Kernel<ColumnPlacesFn> column_places_;        // null: row by row
  Kernel<KeepFn> keep_keys_;                    // of 32 bits
  Kernel<TransposeFn> turn_;                    // turned_columns() of 4 bytes; null: element by element
};

}  // namespace lathe
