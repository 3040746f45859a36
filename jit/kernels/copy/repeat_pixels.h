#pragma once
// A row of pixels picked from another row, by a table, and written to several rows at once: enlarging by nearest
// neighbours in channel blocks.
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

struct RepeatPixelsArgs {
  const float* from;
  float* to;               // the first of the rows
  const int32_t* offsets;  // of each pixel of the result: bytes into `from`
  int64_t pixels;          // >= 1, of one vector each
  int64_t row_bytes;       // from row to row of the result
  int64_t rows;            // >= 1
};
using RepeatPixelsFn = void(const RepeatPixelsArgs* args);
Kernel<RepeatPixelsFn> repeat_pixels_kernel(Isa isa);

}  // namespace lathe
