// Sums of the last output block, where few of its lanes are channels: pixels share a register.
#include <algorithm>
#include <cstddef>

#include "jit/kernels/conv/conv_direct_emitter.h"

namespace lathe {

namespace {

constexpr int kLanes = 16;

}  // namespace

// A mask for each pixel's lanes of a register.
void DirectEmitter::load_masks() {
  const int lanes = kLanes / plan_.last_share;
  for (int pixel = 0; pixel < plan_.last_share; ++pixel) {
    mov(scratch_.cvt32(), ((1 << lanes) - 1) << (pixel * lanes));
    kmovw(part(pixel), scratch_.cvt32());
  }
}

// Channels of a shared block come once for each pixel.
void DirectEmitter::load_block(const Vec& vec, int block, const Xbyak::RegExp& at) {
  if (!is_shared(block)) {
    load(vec, at);
  } else if (plan_.last_share == 2) {
    vbroadcastf64x4(Xbyak::Zmm(vec.getIdx()), ptr[at]);
  } else {
    vbroadcastf32x4(Xbyak::Zmm(vec.getIdx()), ptr[at]);
  }
}

// As emit_step() multiplies, `source_at` bytes from where each pixel's input lies.
void DirectEmitter::multiply_shared(const ConvTapRun& tap, int64_t source_at, int set) {
  std::vector<Vec> values;
  std::vector<int> pixels;
  for (const ConvUse& use : tap.uses) {
    if (!pixels.empty() && holder_of(pixels[0]) != holder_of(use.pixel)) {
      multiply_last(values, pixels, set);
      values.clear();
      pixels.clear();
    }
    values.push_back(next_broadcast());
    pixels.push_back(use.pixel);
    broadcast(values.back(), source_ + static_cast<int>(use.source + source_at));
    for (int block = 0; block + 1 < plan_.blocks; ++block)
      vfmadd231ps(accumulator(use.pixel, block), weight(set, block), values.back());
  }
  if (!pixels.empty()) multiply_last(values, pixels, set);
}

// The last block of pixels that share a register. Lanes of pixels that are not there, or that the tap does not touch,
// stay as they are.
void DirectEmitter::multiply_last(std::span<const Vec> values, std::span<const int> pixels, int set) {
  const int holder = holder_of(pixels[0]), last = plan_.blocks - 1;
  const auto all = static_cast<size_t>(std::min(plan_.last_share, shape_->pixels - holder));
  const Vec& sum = accumulator(holder, last);
  if (pixels.size() < all) {
    for (size_t i = 0; i < pixels.size(); ++i) vfmadd231ps(sum | part(pixels[i]), weight(set, last), values[i]);
    return;
  }
  for (size_t i = 1; i < all; ++i) vmovaps(values[0] | part(pixels[i]), values[i]);
  vfmadd231ps(sum, weight(set, last), values[0]);
}

// Each pixel's sums to the begin of a register of its own, zeros behind them.
void DirectEmitter::part_shared() {
  const int last = plan_.blocks - 1;
  for (int pixel = shape_->pixels - 1; pixel >= 0; --pixel) {
    const int holder = holder_of(pixel), lane = (pixel - holder) * kLanes / plan_.last_share;
    const Vec& sum = accumulator(holder, last);
    valignd(accumulator(pixel, last) | part(0) | T_z, sum, sum, static_cast<uint8_t>(lane));
  }
}

}  // namespace lathe
