#include "ops/conv/conv_int8_large.h"

#include <algorithm>
#include <cstring>
#include <span>
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

// Of one input block.
class LargeTiles {
 public:
  LargeTiles(const PixelReaders& readers, std::span<LargeBytes> large) : readers_(readers), large_(large) {
    std::fill(large.begin(), large.end(), LargeBytes::none);
  }

  // Whether fours still count, or are taken to be everywhere: see are_mixed().
  bool tells_fours() const { return tells_fours_; }
  void mark(int64_t pixel, LargeBytes what) noexcept {
    const auto at = static_cast<size_t>(pixel);
    for (int32_t i = readers_.begin[at]; i < readers_.begin[at + 1]; ++i) {
      LargeBytes& of_tile = large_[static_cast<size_t>(readers_.tiles[static_cast<size_t>(i)])];
      marked_ += of_tile == LargeBytes::none;
      of_tile = std::max(of_tile, what);
    }
    if (!tells_fours_ || !are_mixed(marked_, large_.size())) return;
    tells_fours_ = false;
    prefer_one_way(large_);
  }

 private:
  const PixelReaders& readers_;
  const std::span<LargeBytes> large_;
  size_t marked_ = 0;
  bool tells_fours_ = true;
};

void find_large_bytes(const uint8_t* block, int64_t pixels, int most, LargeTiles& large) noexcept {
  constexpr int64_t kTogether = 4 * kVectorPixels;
  uint8_t rest[kLargeTogether] = {};
  for (int64_t pixel = 0; pixel < pixels;) {
    const uint8_t* bytes = block + pixel * kPixelBytes;
    if (pixels - pixel >= kTogether && !has_large(bytes, large.tells_fours(), most)) {
      pixel += kTogether;
      continue;
    }
    if (pixels - pixel < kVectorPixels) {
      std::memcpy(rest, bytes, static_cast<size_t>((pixels - pixel) * kPixelBytes));
      bytes = rest;
    }
    const LargeBits bits = large_bits(bytes, most);
    uint32_t left = large.tells_fours() ? bits.fours : bits.neighbours, neighbours = bits.neighbours;
    for (int64_t at = pixel; left != 0; ++at, left >>= kPixelBytes, neighbours >>= kPixelBytes) {
      if ((left & 0xff) == 0) continue;
      large.mark(at, (neighbours & 0xff) != 0 ? LargeBytes::neighbours : LargeBytes::fours);
    }
    pixel += kVectorPixels;
  }
}

}  // namespace

BufferId add_large_bytes(const LowerContext& context, const ConvInt8Program& program, BufferId source, int most) {
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
      static_cast<int>(std::min<int64_t>(blocks, worthwhile_threads(step.bytes * 20, context.target.threads)));
  step.run = [=, readers = readers_of(program.tiling(), block_bytes / kPixelBytes)](const StepArgs& args) {
    const Range range = split_evenly(blocks, args.share, args.shares);
    for (int64_t block = range.begin; block < range.end; ++block) {
      LargeTiles large(readers, {args.at<LargeBytes>(to) + block * tiles, static_cast<size_t>(tiles)});
      find_large_bytes(args.at<const uint8_t>(source) + block * block_bytes, block_bytes / kPixelBytes, most, large);
    }
  };
  context.add(std::move(step));
  return to;
}

}  // namespace lathe
