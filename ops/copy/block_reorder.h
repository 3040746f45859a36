#pragma once
// Between plain planes of channels and blocks of channels, in which a pixel's lanes lie together.
#include <cstdint>

#include "jit/kernels/copy/transpose.h"
#include "ops/step.h"
#include "src/base/cpu.h"
#include "src/base/thread_team.h"

namespace lathe {

class BlockReorder {
 public:
  // `dims`: [batch][channels] and what a plane has. `block`: lanes. Elements are of whole bytes.
  BlockReorder(Isa isa, DType dtype, const Dims& dims, int block, bool to_blocked);

  bool is_empty() const { return batch_ * blocks_ * spatial_ == 0; }
  double bytes() const;  // read and written
  Step step(BufferId from, BufferId to, int threads) const;

 private:
  void run(const char* from, char* to, int share, int shares) const;
  void copy_pixels(const char* from, char* to, Range images) const;
  void run_block(int64_t index, Range pixels, const char* from, char* to) const;
  template <int kBlock>
  int64_t reorder_bytes(const char* source, int64_t count, int64_t width, char* target) const;
  void copy_elements(const char* from, char* to, int64_t count, Range pixels) const;

  int64_t batch_, channels_, blocks_, spatial_ = 1, block_;
  int64_t element_bytes_;
  bool to_blocked_;
  Kernel<TransposeFn> whole_, tail_;  // of a whole block and of the last one; null: element by element
};

}  // namespace lathe
