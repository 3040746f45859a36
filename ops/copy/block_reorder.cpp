#include "ops/copy/block_reorder.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ops/copy/byte_transpose.h"
#include "ops/copy/copy_elements.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kTile = 16;  // pixels

}  // namespace

BlockReorder::BlockReorder(Isa isa, DType dtype, const Dims& dims, int block, bool to_blocked)
    : batch_(dims[0]),
      channels_(dims[1]),
      blocks_(divide_up(dims[1], static_cast<int64_t>(block))),
      block_(block),
      element_bytes_(static_cast<int64_t>(whole_element_bytes(dtype))),
      to_blocked_(to_blocked) {
  for (size_t i = 2; i < dims.size(); ++i) spatial_ *= dims[i];
  const bool fits = block == 8 || (block == 16 && has_avx512(isa));
  if (element_bytes_ != 4 || !fits || is_empty()) return;
  const Isa kernel_isa = block == 16 ? Isa::avx512 : Isa::avx2;
  const auto kernel = [&](int64_t count) {
    return transpose_kernel(to_blocked_ ? plan_transpose(kernel_isa, count, spatial_, true)
                                        : plan_transpose(kernel_isa, spatial_, count));
  };
  whole_ = kernel(block);
  if (const int64_t rest = channels_ % block; rest != 0) tail_ = kernel(rest);
}

double BlockReorder::bytes() const {
  return static_cast<double>(batch_ * (channels_ + blocks_ * block_) * spatial_ * element_bytes_);
}

Step BlockReorder::step(BufferId from, BufferId to, int threads) const {
  Step step{.kernel = (to_blocked_ ? "block channels by " : "unblock channels by ") + std::to_string(block_),
            .reads = {from},
            .writes = {to}};
  step.bytes = bytes();
  step.threads = threads;
  step.run = [reorder = *this, from, to](const StepArgs& args) {
    reorder.run(args.at<const char>(from), args.at<char>(to), args.share, args.shares);
  };
  return step;
}

// Blocks are split over threads, or pixels where there are too few blocks.
void BlockReorder::run(const char* from, char* to, int share, int shares) const {
  if (spatial_ == 1) return copy_pixels(from, to, split_evenly(batch_, share, shares));
  if (batch_ * blocks_ >= shares || spatial_ < 4 * kTile * shares) {
    const Range range = split_evenly(batch_ * blocks_, share, shares);
    for (long i = range.begin; i < range.end; ++i) run_block(i, {0, spatial_}, from, to);
    return;
  }
  const Range tiles = split_evenly(divide_up(spatial_, kTile), share, shares);
  for (long i = 0; i < batch_ * blocks_; ++i)
    run_block(i, {tiles.begin * kTile, std::min<long>(tiles.end * kTile, spatial_)}, from, to);
}

// One pixel of an image: the same bytes, but for what a last block has behind its channels.
void BlockReorder::copy_pixels(const char* from, char* to, Range images) const {
  const auto bytes = static_cast<size_t>(channels_ * element_bytes_);
  const auto padding = static_cast<size_t>((blocks_ * block_ - channels_) * element_bytes_);
  const size_t from_bytes = bytes + (to_blocked_ ? 0 : padding), to_bytes = bytes + (to_blocked_ ? padding : 0);
  for (auto image = static_cast<size_t>(images.begin); image < static_cast<size_t>(images.end); ++image) {
    char* out = to + image * to_bytes;
    std::memcpy(out, from + image * from_bytes, bytes);
    if (to_blocked_) std::memset(out + bytes, 0, padding);
  }
}

void BlockReorder::run_block(int64_t index, Range pixels, const char* from, char* to) const {
  const int64_t first = index % blocks_ * block_, count = std::min(block_, channels_ - first);
  const int64_t plain = ((index / blocks_ * channels_ + first) * spatial_ + pixels.begin) * element_bytes_;
  const int64_t blocked = (index * spatial_ + pixels.begin) * block_ * element_bytes_;
  const char* source = from + (to_blocked_ ? plain : blocked);
  char* target = to + (to_blocked_ ? blocked : plain);
  const int64_t width = pixels.end - pixels.begin;
  const Kernel<TransposeFn>& kernel = count == block_ ? whole_ : tail_;
  if (kernel && (width == spatial_ || width >= kTile)) {
    const int64_t plane_bytes = spatial_ * element_bytes_, pixel_bytes = block_ * element_bytes_;
    if (to_blocked_) return kernel(source, target, plane_bytes, pixel_bytes, count, width);
    return kernel(source, target, pixel_bytes, plane_bytes, width, count);
  }
  int64_t s = 0;
  if (element_bytes_ == 1 && block_ == 8) s = reorder_bytes<8>(source, count, width, target);
  if (element_bytes_ == 1 && block_ == 16) s = reorder_bytes<16>(source, count, width, target);
  copy_elements(source, target, count, {s, width});
}

// Sixteen pixels at a time of the channels of one block. Returns how many pixels are done.
template <int kBlock>
int64_t BlockReorder::reorder_bytes(const char* source, int64_t count, int64_t width, char* target) const {
  constexpr int kBitsOfChannels = kBlock == 8 ? 3 : 4, kBitsOfPixels = 4;
  int64_t s = 0;
  for (; s + kTile <= width; s += kTile) {
    ByteRows<kBlock> tile{};
    if (to_blocked_) {
      for (int c = 0; c < count; ++c) tile.load_row(c, source + s + c * spatial_);
      tile.interleave(kBitsOfChannels);
      for (int i = 0; i < kBlock; ++i) tile.store_row(i, target + s * kBlock + 16 * i);
    } else {
      for (int i = 0; i < kBlock; ++i) tile.load_row(i, source + s * kBlock + 16 * i);
      tile.interleave(kBitsOfPixels);
      for (int c = 0; c < count; ++c) tile.store_row(c, target + s + c * spatial_);
    }
  }
  return s;
}

void BlockReorder::copy_elements(const char* from, char* to, int64_t count, Range pixels) const {
  const auto size = static_cast<size_t>(element_bytes_);
  for (int64_t s = pixels.begin; s < pixels.end; ++s) {
    for (int64_t c = 0; c < (to_blocked_ ? block_ : count); ++c) {
      const int64_t in_plain = (c * spatial_ + s) * element_bytes_, in_block = (s * block_ + c) * element_bytes_;
      if (c >= count) {
        std::memset(to + in_block, 0, size);
      } else if (to_blocked_) {
        std::memcpy(to + in_block, from + in_plain, size);
      } else {
        std::memcpy(to + in_plain, from + in_block, size);
      }
    }
  }
}

}  // namespace lathe
