#pragma once
// An input of the scores that is a sum of two, as biases of positions by rows and columns of pictures are: for key k
// element k / run of the one and k % run of the other. Made for a block of rows and keys at a time, so that the whole
// is never in memory.
#include "jit/kernels/pointwise/pointwise.h"
#include "src/base/thread_team.h"

namespace lathe {

class RunSums {
 public:
  // Throws JitError. Requires: run > 0.
  RunSums(Isa isa, int64_t run);

  // Rows of dense elements, `stride` elements apart.
  struct Rows {
    const float* data = nullptr;
    int64_t stride = 0;
  };
  struct Sums {
    float* data = nullptr;
    int64_t stride = 0;
  };
  // `out`: element 0 is that of the first row and key. A block of keys begins and ends anywhere in a run.
  void make(const Rows& first, const Rows& second, const Range& rows, const Range& keys,
            const Sums& out) const noexcept;

 private:
  void add(const float* first, const float* second, int64_t length, int64_t runs, float* out) const noexcept;

  int64_t run_;
  Kernel<void(const PointwiseArgs*)> sum_;
};

}  // namespace lathe
