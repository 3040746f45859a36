#pragma once
// A strided copy brought into its simplest form, with the inner loop that suits it: a run of bytes, a transpose of two
// axes, or single elements.
#include <cstdint>
#include <string>
#include <vector>

#include "jit/kernels/copy/transpose.h"
#include "ops/copy/copy_elements.h"
#include "src/base/cpu.h"

namespace lathe {

class CopyNest {
 public:
  // Strides of `axes` in elements of `element_bytes` (1, 2, 4, 8 or 16).
  CopyNest(std::vector<MoveAxis> axes, size_t element_bytes, Isa isa);

  // `from` and `to` are at the first element.
  void run(const void* from, void* to) const;

  struct Part;
  // What thread `thread` of `threads` copies; parts may be empty.
  Part part(int thread, int threads) const;

  double bytes() const;           // read and written
  std::string to_string() const;  // "copy runs of 256 bytes", "transpose 64x128"

 private:
  enum class Inner : uint8_t { run, transpose, elements };
  bool repeats() const;  // rows of one element each
  void walk(size_t axis, const char* from, char* to) const;
  void inner(const char* from, char* to) const;
  void transpose(const char* from, char* to) const;

  std::vector<MoveAxis> outer_;  // strides in bytes from here on; by decreasing stride of the output
  MoveAxis rows_, columns_;      // transpose: rows_ are contiguous in the output, columns_ in the input
  Inner kind_ = Inner::run;
  size_t element_bytes_;
  int64_t run_bytes_ = 0;
  bool is_empty_ = false;
  Kernel<TransposeFn> kernel_;
};

struct CopyNest::Part {
  CopyNest nest;
  int64_t from_bytes = 0, to_bytes = 0;  // where it begins
};

}  // namespace lathe
