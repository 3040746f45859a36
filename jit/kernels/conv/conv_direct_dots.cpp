// Few output channels for each input: sums run along the lanes of the input's channels, not of their own.
#include <cstddef>

#include "jit/kernels/conv/conv_direct_emitter.h"

namespace lathe {

void DirectEmitter::zero_dots() {
  for (int i = 0; i < shape_->pixels * plan_.dots; ++i) zero(pool_[static_cast<size_t>(i)]);
  if (plan_.tail == 0 || !has_masks()) return;
  mov(scratch_.cvt32(), (1 << plan_.tail) - 1);
  kmovw(Xbyak::Opmask(kFirstMask), scratch_.cvt32());
}

// One input block, of which `lanes` are channels.
void DirectEmitter::add_dots(int lanes, bool more_follow) {
  const auto first_weight = static_cast<size_t>(shape_->pixels * plan_.dots);
  const auto outputs = static_cast<size_t>(plan_.dots);
  const std::span weights = std::span(pool_).subspan(first_weight, outputs);
  const std::span inputs = std::span(pool_).subspan(first_weight + outputs);
  const int tap_bytes = lanes * vec_bytes();
  size_t next = 0;
  for (const ConvTapRun& tap : shape_->taps) {
    for (int output = 0; output < plan_.dots; ++output)
      load(weights[static_cast<size_t>(output)], weights_ + (tap.index * tap_bytes + output * vec_bytes()));
    for (const ConvUse& use : tap.uses) {
      const Xbyak::RegExp at = source_ + use.source;
      if (plan_.dots == 1 && lanes == plan_.lanes) {
        vfmadd231ps(dot(use.pixel, 0), weights[0], ptr[at]);
        continue;
      }
      const Vec& input = inputs[next++ % inputs.size()];
      lanes == plan_.lanes ? load(input, at) : load_tail(input, at);
      for (int output = 0; output < plan_.dots; ++output)
        vfmadd231ps(dot(use.pixel, output), input, weights[static_cast<size_t>(output)]);
    }
  }
  if (!more_follow) return;
  add(source_, source_block_);
  add(weights_, window_taps() * tap_bytes);
}

// What lies behind the last channel may be anything.
void DirectEmitter::load_tail(const Vec& input, const Xbyak::RegExp& at) {
  if (has_masks()) {
    vmovups(input | Xbyak::Opmask(kFirstMask) | T_z, ptr[at]);
  } else {
    zero(input);
    vblendps(input, input, ptr[at], static_cast<uint8_t>((1 << plan_.tail) - 1));
  }
}

// Adds up each of four vectors across its lanes: four sums in the first lanes of `into`, zeros behind them. The first
// vector is changed.
void DirectEmitter::sum_four(std::span<const Vec> sums, const Vec& into) {
  const Vec& spare = pool_.back();
  vunpcklps(into, sums[0], sums[1]);
  vunpckhps(spare, sums[0], sums[1]);
  vaddps(into, into, spare);
  vunpckhps(spare, sums[2], sums[3]);
  vunpcklps(sums[0], sums[2], sums[3]);
  vaddps(sums[0], sums[0], spare);
  vunpcklpd(spare, into, sums[0]);
  vunpckhpd(into, into, sums[0]);
  vaddps(into, into, spare);
  const Xbyak::Ymm half(into.getIdx()), spare_half(spare.getIdx());
  const Xbyak::Xmm quarter(into.getIdx()), spare_quarter(spare.getIdx());
  if (has_masks()) {
    vextractf64x4(spare_half, Xbyak::Zmm(into.getIdx()), 1);
    vaddps(half, half, spare_half);
    vextractf32x4(spare_quarter, half, 1);
  } else {
    vextractf128(spare_quarter, half, 1);
  }
  vaddps(quarter, quarter, spare_quarter);
}

// Each pixel's sums to the first lanes of its accumulator, a register whose own sums have been read by then.
void DirectEmitter::sum_dots() {
  const int slots = plan_.dots == 3 ? 4 : plan_.dots, together = ConvKernelPlan::kMostDots / slots;
  const Vec &zeros = pool_[pool_.size() - 3], &four = pool_[pool_.size() - 2];
  zero(zeros);
  for (int first = 0; first < shape_->pixels; first += together) {
    std::vector<Vec> sums;
    for (int slot = 0; slot < ConvKernelPlan::kMostDots; ++slot) {
      const int pixel = first + slot / slots, output = slot % slots;
      sums.push_back(pixel < shape_->pixels && output < plan_.dots ? dot(pixel, output) : zeros);
    }
    sum_four(sums, four);
    const Xbyak::Xmm from(four.getIdx());
    for (int i = 0; i < together && first + i < shape_->pixels; ++i) {
      const Xbyak::Xmm to(accumulator(first + i, 0).getIdx());
      if (slots == 1) {
        vinsertps(to, from, from, static_cast<uint8_t>(i << 6 | 0b1110));
      } else if (i == 1) {
        vpsrldq(to, from, 8);
      } else {
        slots == 2 ? vmovq(to, from) : vmovaps(to, from);
      }
    }
  }
}

// Each pixel's sums to the lanes of their outputs, which lie in the same group.
void DirectEmitter::sum_groups() {
  const Vec& moved = pool_.back();
  for (int pixel = 0; pixel < shape_->pixels; ++pixel) {
    const Vec& sum = dot(pixel, 0);
    for (int r = 1; r < plan_.dots; ++r) {
      const int within_four = r % 4;
      const Vec& part = dot(pixel, r);
      // Lane i takes lane i ^ r.
      constexpr int kIdentity = 0b11'10'01'00;
      const auto order = static_cast<uint8_t>(kIdentity ^ (within_four * 0b01'01'01'01));
      if (within_four > 0) vpermilps(moved, part, order);
      const Vec& from = within_four > 0 ? moved : part;
      if (r >= 4)
        vshuff64x2(Xbyak::Zmm(moved.getIdx()), Xbyak::Zmm(from.getIdx()), Xbyak::Zmm(from.getIdx()), 0b10'11'00'01);
      vaddps(sum, sum, r >= 4 ? moved : from);
    }
    if (pixel > 0) vmovaps(accumulator(pixel, 0), sum);
  }
}

void DirectEmitter::add_bias_to_dots() {
  const Vec& bias = pool_.back();
  Xbyak::Label done;
  cmp(qword[call_ + offsetof(ConvCall, accumulate)], 0);
  jne(done, T_NEAR);
  mov(scratch_, qword[call_ + offsetof(ConvCall, bias)]);
  load(bias, scratch_ + 0);
  for (int pixel = 0; pixel < shape_->pixels; ++pixel) vaddps(accumulator(pixel, 0), accumulator(pixel, 0), bias);
  L(done);
}

}  // namespace lathe
