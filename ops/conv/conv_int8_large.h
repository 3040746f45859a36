#pragma once
// Where bytes are large in the input of a convolution of integers, so that products are halved (Int8Dot::u8s8_halved).
#include <cstdint>
#include <memory>
#include <vector>

#include "jit/kernels/conv/conv_tiling.h"
#include "ops/lower.h"

namespace lathe {

class ConvInt8Program;

// The tiles that read each pixel of an input block.
struct PixelReaders {
  std::vector<int32_t> begin;  // of each pixel in `tiles`, and the end of the last one's
  std::vector<int32_t> tiles;
};
PixelReaders readers_of(const ConvTiling& tiling, int64_t pixels, int64_t pixel_bytes);

// large[tile] = 1 where a pixel of the block, of 8 channels, has neighbours of more than kMostOfNeighbours.
void find_large_bytes(const uint8_t* block, const PixelReaders& readers, uint8_t* large) noexcept;

// The step that finds them in all input blocks: gives ConvInt8Arguments::large.
BufferId add_large_bytes(const LowerContext& context, const std::shared_ptr<const ConvInt8Program>& program,
                         BufferId source);

}  // namespace lathe
