#pragma once
// The k first elements of each row along an axis, by value and then by place. NaN counts as larger than any number, as
// in NumPy; -0 equals +0.
#include <cstdint>
#include <optional>

#include "jit/kernels/copy/transpose.h"
#include "jit/kernels/rows/find_beyond.h"
#include "lathe/dtype.h"
#include "ops/numbers.h"
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

  size_t scratch_bytes() const;  // of each thread
  int64_t rows() const { return problem_.split.outer * problem_.split.inner; }
  // Either result may be null. Allocates nothing.
  void run(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept;

 private:
  explicit TopKSelect(const TopKProblem& problem) : problem_(problem) {}
  bool keeps_few() const;
  size_t choice_bytes() const;
  int64_t turned_columns() const;
  // One row of neighbouring elements; of the results, each `step` behind the last.
  template <class Element>
  void run_row(const typename Element::Bits* elements, void* scratch, typename Element::Bits* values, int64_t* places,
               int64_t step) const noexcept;
  template <class Element>
  void run_as(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept;

  TopKProblem problem_;
  Kernel<FindBeyondFn> find_beyond_;  // for float32
  Kernel<TransposeFn> turn_;          // turned_columns() of 4 bytes; null: element by element
};

}  // namespace lathe
