#include "ops/conv/conv_int8_large.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "ops/int8/large_bytes.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kPixelBytes = 8, kVectorPixels = kLargeTogether / kPixelBytes;

// The tiles that read each pixel of an input block.
struct PixelReaders {
  std::vector<int32_t> begin;  // of each pixel in `tiles`, and the end of the last one's
  std::vector<int32_t> tiles;
};

PixelReaders readers_of(const ConvTiling& tiling, int64_t pixels) {
  std::vector<std::pair<int32_t, int32_t>> reads;  // pixel, tile
  for (size_t number = 0; number < tiling.tiles.size(); ++number) {
    const ConvTile& tile = tiling.tiles[number];
    for (const ConvTapRun& tap : tiling.shapes[static_cast<size_t>(tile.shape)].taps) {
      for (const ConvUse& use : tap.uses) {
        const auto first = static_cast<int32_t>((tile.source + use.source) / kPixelBytes);
        for (int32_t i = 0; i < tap.run; ++i) reads.emplace_back(first + i, static_cast<int32_t>(number));
      }
    }
  }
  std::sort(reads.begin(), reads.end());
  reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
  PixelReaders readers;
  readers.begin.assign(static_cast<size_t>(pixels) + 1, 0);
  for (const auto& [pixel, tile] : reads) {
    ++readers.begin[static_cast<size_t>(pixel) + 1];
    readers.tiles.push_back(tile);
  }
  for (size_t i = 1; i < readers.begin.size(); ++i) readers.begin[i] += readers.begin[i - 1];
  return readers;
}

void mark(const PixelReaders& readers, int64_t pixel, uint8_t* large) noexcept {
  const auto at = static_cast<size_t>(pixel);
  for (int32_t i = readers.begin[at]; i < readers.begin[at + 1]; ++i) {
    large[readers.tiles[static_cast<size_t>(i)]] = 1;
  }
}

// Neighbours below 128 are never too large.
[[gnu::target("avx2")]] bool are_below_128(const uint8_t* bytes) noexcept {
  const auto load = [&](int i) __attribute__((target("avx2"))) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes) + i);
  };
  return _mm256_movemask_epi8(_mm256_or_si256(_mm256_or_si256(load(0), load(1)), _mm256_or_si256(load(2), load(3)))) ==
         0;
}

// large[tile] = 1 where a pixel of the block has neighbours that are large together.
void find_large_bytes(const uint8_t* block, const PixelReaders& readers, uint8_t* large) noexcept {
  constexpr int64_t kTogether = 4 * kVectorPixels;
  const auto pixels = static_cast<int64_t>(readers.begin.size()) - 1;
  uint8_t rest[kLargeTogether] = {};
  for (int64_t pixel = 0; pixel < pixels;) {
    const uint8_t* bytes = block + pixel * kPixelBytes;
    if (pixels - pixel >= kTogether && are_below_128(bytes)) {
      pixel += kTogether;
      continue;
    }
    if (pixels - pixel < kVectorPixels) {
      std::memcpy(rest, bytes, static_cast<size_t>((pixels - pixel) * kPixelBytes));
      bytes = rest;
    }
    uint32_t bits = large_neighbours(bytes);
    for (int64_t at = pixel; bits != 0; ++at, bits >>= kPixelBytes) {
      if ((bits & 0xff) != 0) mark(readers, at, large);
    }
    pixel += kVectorPixels;
  }
}

}  // namespace

BufferId add_large_bytes(const LowerContext& context, const ConvInt8Program& program, BufferId source) {
  const ConvProblem& shape = program.problem().shape;
  const int64_t blocks = shape.batch * shape.in_blocks();
  const auto tiles = static_cast<int64_t>(program.tiling().tiles.size());
  const int64_t block_bytes = program.problem().source_block_bytes();
  const BufferId to = context.scratch(checked_bytes(DType::u8, {blocks, tiles}));
  Step step;
  step.kernel = "find large bytes";
  step.reads = {source};
  step.writes = {to};
  step.bytes = static_cast<double>(blocks * (block_bytes + tiles));
  step.threads =
      static_cast<int>(std::min<int64_t>(blocks, worthwhile_threads(step.bytes * 2, context.target.threads)));
  step.run = [=, readers = readers_of(program.tiling(), block_bytes / kPixelBytes)](const StepArgs& args) {
    const Range range = split_evenly(blocks, args.share, args.shares);
    for (int64_t block = range.begin; block < range.end; ++block) {
      uint8_t* large = args.at<uint8_t>(to) + block * tiles;
      std::fill_n(large, tiles, uint8_t{0});
      find_large_bytes(args.at<const uint8_t>(source) + block * block_bytes, readers, large);
    }
  };
  context.add(std::move(step));
  return to;
}

}  // namespace lathe
