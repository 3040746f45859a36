#pragma once
// Memory of results that a caller has let go of, for the next run: memory fresh from the system costs a page fault for
// each 4 KiB, more than what most kernels take to fill them.
#include <cstddef>
#include <memory>

#include "graph/graph.h"
#include "lathe/tensor.h"

namespace lathe {

class ResultMemory {
 public:
  // Keeps at most `blocks` that are not in use; small ones are left to malloc.
  explicit ResultMemory(size_t blocks);
  // Together with `other` keeps what either does not use, and at least `blocks`: for graphs that run in turn, such as
  // one graph at shapes that change from run to run.
  ResultMemory(const ResultMemory& other, size_t blocks);

  // A tensor whose elements are not set, of memory of its own as long as it or a copy lives, even beyond this object.
  // Throws Error(limit). Thread-safe.
  Tensor make(const TensorType& type) const;

 private:
  struct Idle;
  std::shared_ptr<Idle> idle_;
};

}  // namespace lathe
