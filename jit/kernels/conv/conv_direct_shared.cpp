// Sums of the last output block, where few of its lanes are channels: pixels share a register.
#include <algorithm>

#include "jit/kernels/conv/conv_direct_emitter.h"

namespace lathe {

void DirectEmitter::load_block(const Vec& vec, int block, const Xbyak::RegExp& at) {
  is_shared(block) ? shared_.load_columns(vec, at) : load(vec, at);
}

// As emit_step() multiplies, `source_at` bytes from where each pixel's input lies.
void DirectEmitter::multiply_shared(const ConvTapRun& tap, int64_t source_at, int set) {
  const int last = plan_.blocks - 1;
  std::vector<Vec> values;
  std::vector<int> pixels;
  const auto multiply_last = [&] {
    const int holder = shared_.holder_of(pixels[0]), held = std::min(plan_.last_share, shape_->pixels - holder);
    shared_.multiply_add(accumulator(holder, last), weight(set, last), values, pixels, held);
    values.clear();
    pixels.clear();
  };
  for (const ConvUse& use : tap.uses) {
    if (!pixels.empty() && shared_.holder_of(pixels[0]) != shared_.holder_of(use.pixel)) multiply_last();
    values.push_back(next_broadcast());
    pixels.push_back(use.pixel);
    broadcast(values.back(), source_ + static_cast<int>(use.source + source_at));
    for (int block = 0; block < last; ++block)
      vfmadd231ps(accumulator(use.pixel, block), weight(set, block), values.back());
  }
  if (!pixels.empty()) multiply_last();
}

void DirectEmitter::part_shared() {
  const int last = plan_.blocks - 1;
  for (int pixel = shape_->pixels - 1; pixel >= 0; --pixel)
    shared_.take(accumulator(pixel, last), accumulator(shared_.holder_of(pixel), last), pixel);
}

}  // namespace lathe
