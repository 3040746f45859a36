#pragma once
// Arguments of the kernels that multiply a few rows with one panel of weights of few bits.
#include <cstdint>

namespace lathe {

struct BitsPanelArgs {
  const void* codes;     // block by block as UnpackBitsFn has them
  const float* scales;   // the same
  const void* a;         // rows of whole blocks
  const void* a_blocks;  // of each row and block, block by block: what the kernel says
  float* c;
  int64_t blocks;  // >= 1
  int64_t a_stride_bytes, a_blocks_stride_bytes, c_stride_bytes;
};

}  // namespace lathe
