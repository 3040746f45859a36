#include "ops/conv/conv_int8_large.h"

#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "ops/conv/conv_int8_program.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kPixelBytes = 8;
constexpr int64_t kVectorPixels = 4;

// Bits of the bytes of four pixels in whose pairs the sum is too large.
[[gnu::target("avx2")]] uint32_t large_pairs(__m256i bytes) noexcept {
  const __m256i sums = _mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1));
  return static_cast<uint32_t>(
      _mm256_movemask_epi8(_mm256_cmpgt_epi16(sums, _mm256_set1_epi16(int16_t{kMostOfNeighbours}))));
}

void mark(const PixelReaders& readers, int64_t pixel, uint8_t* large) noexcept {
  const auto at = static_cast<size_t>(pixel);
  for (int32_t i = readers.begin[at]; i < readers.begin[at + 1]; ++i) {
    large[readers.tiles[static_cast<size_t>(i)]] = 1;
  }
}

void mark_pixel(const uint8_t* bytes, const PixelReaders& readers, int64_t pixel, uint8_t* large) noexcept {
  for (int64_t i = 0; i < kPixelBytes; i += 2) {
    if (bytes[i] + bytes[i + 1] > kMostOfNeighbours) return mark(readers, pixel, large);
  }
}

}  // namespace

PixelReaders readers_of(const ConvTiling& tiling, int64_t pixels, int64_t pixel_bytes) {
  std::vector<std::pair<int32_t, int32_t>> reads;  // pixel, tile
  for (size_t number = 0; number < tiling.tiles.size(); ++number) {
    const ConvTile& tile = tiling.tiles[number];
    for (const ConvTapRun& tap : tiling.shapes[static_cast<size_t>(tile.shape)].taps) {
      for (const ConvUse& use : tap.uses) {
        const auto first = static_cast<int32_t>((tile.source + use.source) / pixel_bytes);
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

[[gnu::target("avx2")]] void find_large_bytes(const uint8_t* block, const PixelReaders& readers,
                                              uint8_t* large) noexcept {
  const auto load = [&](int64_t pixel) __attribute__((target("avx2"))) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + pixel * kPixelBytes));
  };
  constexpr int64_t kTogether = 4 * kVectorPixels;
  const auto pixels = static_cast<int64_t>(readers.begin.size()) - 1;
  int64_t pixel = 0;
  for (; pixel + kTogether <= pixels; pixel += kTogether) {
    const __m256i first = _mm256_or_si256(load(pixel), load(pixel + kVectorPixels));
    const __m256i second = _mm256_or_si256(load(pixel + 2 * kVectorPixels), load(pixel + 3 * kVectorPixels));
    // Neighbours below 128 are never too large.
    if (_mm256_movemask_epi8(_mm256_or_si256(first, second)) == 0) continue;
    for (int64_t i = pixel; i < pixel + kTogether; i += kVectorPixels) {
      uint32_t bits = large_pairs(load(i));
      for (int64_t at = i; bits != 0; ++at, bits >>= kPixelBytes) {
        if ((bits & 0xff) != 0) mark(readers, at, large);
      }
    }
  }
  for (; pixel < pixels; ++pixel) mark_pixel(block + pixel * kPixelBytes, readers, pixel, large);
}

BufferId add_large_bytes(const LowerContext& context, const std::shared_ptr<const ConvInt8Program>& program,
                         BufferId source) {
  const ConvProblem& shape = program->problem().shape;
  const int64_t blocks = shape.batch * shape.in_blocks(), tiles = program->tiles();
  const int64_t block_bytes = program->problem().source_block_bytes();
  const BufferId to = context.scratch(checked_bytes(DType::u8, {blocks, tiles}));
  Step step;
  step.kernel = "find large bytes";
  step.reads = {source};
  step.writes = {to};
  step.bytes = static_cast<double>(blocks * (block_bytes + tiles));
  step.threads =
      static_cast<int>(std::min<int64_t>(blocks, worthwhile_threads(step.bytes * 2, context.target.threads)));
  step.run = [=, readers = program->readers()](const StepArgs& args) {
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
