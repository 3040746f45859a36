#pragma once
// Copies whose places are known ahead, from indices that are constants: runs of elements, as long as both sides go on.
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/copy/index_check.h"
#include "ops/step.h"

namespace lathe {

class ElementRuns {
 public:
  // In elements.
  void add(int64_t from, int64_t to, int64_t count);
  // Worth more than to look each place up.
  bool are_long() const;
  // No element is written twice: any order gives the same.
  bool are_apart() const;

  // One step that copies them from buffer to buffer, `times` times, from and to so many elements further on.
  struct Repeats {
    int64_t times = 1, from_step = 0, to_step = 0;
  };
  Step copy_step(BufferId from, BufferId to, int64_t element_bytes, const Repeats& repeats, int threads) const;

 private:
  struct Run {
    int64_t from, to, count;
  };
  std::vector<Run> runs_;
  int64_t elements_ = 0, added_ = 0;
};

// Of `count` elements each, one behind the other, to the places of constant tuples of indices; nullopt: they are not
// constant, or one is out of its range.
std::optional<ElementRuns> scattered_runs(const IndexTuples& indices, const std::vector<int64_t>& strides,
                                          int64_t count);

// `out` begins as `data`, of so many bytes: a copy, or the same memory where nobody else reads it.
Step take_over_step(BufferId data, BufferId out, size_t bytes, int threads);

}  // namespace lathe
