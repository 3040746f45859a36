#pragma once
// A row of vectors picked from another row, by a table, and written to several rows at once: enlarging by nearest
// neighbours. In channel blocks a pixel is a vector as it lies; elsewhere a vector is permuted from one of the row.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct RepeatPixelsPlan {
  Isa isa = Isa::avx2;
  bool permutes = false;  // pixels are 32-bit elements
};

// The table of a kernel that permutes. The last vector ends with the row, and may share elements with the one before.
struct ElementPicks {
  std::vector<int32_t> offsets;  // of each vector of the result: bytes into the source row
  std::vector<int32_t> order;    // of each of its lanes: the element there
};
// Element i of the result is element places[i] of `extent`. nullopt: a row is shorter than a vector, or somewhere
// neighbours in a vector lie further apart than it is wide.
std::optional<ElementPicks> element_picks(std::span<const int32_t> places, int64_t extent, Isa isa);

struct RepeatPixelsArgs {
  const float* from;
  float* to;               // the first of the rows
  const int32_t* offsets;  // of each vector of the result: bytes into `from`
  const int32_t* order;    // of each of its lanes, where the kernel permutes
  int64_t elements;        // of a row: whole vectors, but where the kernel permutes
  int64_t row_bytes;       // from row to row of the result
  int64_t rows;            // >= 1
};
using RepeatPixelsFn = void(const RepeatPixelsArgs* args);
Kernel<RepeatPixelsFn> repeat_pixels_kernel(const RepeatPixelsPlan& plan);

}  // namespace lathe
