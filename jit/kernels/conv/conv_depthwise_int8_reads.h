#pragma once
// How depthwise kernels of bytes read: neighbouring pixels of one row, each with its channels side by side, become
// 32-bit lanes of one channel each. Nobody but conv_depthwise_int8.cpp includes it.
#include <cstdint>

#include "jit/kernels/conv/conv_depthwise_int8.h"
#include "jit/kernels/conv/conv_int8_outputs.h"

namespace lathe {

class DepthwiseInt8Reads : public ConvInt8Outputs {
 protected:
  explicit DepthwiseInt8Reads(const DepthwiseInt8Plan& plan)
      : ConvInt8Outputs(plan.isa, plan.epilogue, plan.store), dot_(plan.dot), is_signed_(plan.is_signed) {}

  // Pixels of a read.
  int group() const { return group_of(dot_); }
  // What reads need in registers; `border`: where its value is.
  void load_constants(const Xbyak::RegExp& border) {
    vpbroadcastb(border_, byte[border]);
    vmovups(order_, ptr[rip + order_at_]);
    if (!is_wide(dot_)) vmovups(bytes_order_, ptr[rip + bytes_order_at_]);
  }
  // The pixels from `at` on whose bits are set in `inside`, and the border's value for the others.
  void load_pixels(const Vec& value, const Xbyak::RegExp& at, unsigned inside, const Gpr& scratch) {
    if (!is_wide(dot_)) return load_quad(value, at, inside, scratch);
    has_masks() ? load_pair(value, at, inside, scratch) : load_narrow_pair(value, at, inside);
  }

  // Call once, behind the code's last instruction.
  void emit_read_constants() {
    align(64);
    L(order_at_);
    emit_order();
    L(bytes_order_at_);
    for (int i = 0; i < vec_bytes(); ++i) db(static_cast<uint32_t>(i % 16 / 4 + i % 4 * 4));
    L(flips_);
    for (int i = 0; i < lanes(); ++i) dd(0x80808080);
    if (has_masks() || is_wide(dot_)) return;
    L(masks_);
    for (unsigned inside = 0; inside <= kAllOfFour; ++inside)
      for (int lane = 0; lane < lanes(); ++lane) dd((inside >> (lane / words()) & 1) != 0 ? ~0U : 0U);
  }

 private:
  static constexpr unsigned kAllOfTwo = 0x3, kAllOfFour = 0xF;
  int words() const { return lanes() / 4; }  // of a pixel, 32 bits each

  // The pixels inside stay where they are in memory.
  void load_inside(const Vec& vec, const Xbyak::RegExp& at, unsigned inside, const Gpr& scratch) {
    unsigned mask = 0;
    for (int pixel = 0; pixel < group(); ++pixel) {
      if ((inside >> pixel & 1) != 0) mask |= ((1U << words()) - 1) << pixel * words();
    }
    const Vec border = vec.isZMM() ? border_ : Xbyak::Ymm(border_.getIdx());
    if (mask == 0 || has_masks()) vmovaps(vec, border);
    if (mask == 0) return;
    if (has_masks()) {
      mov(scratch.cvt32(), mask);
      kmovw(k1, scratch.cvt32());
      return vmovdqu32(vec | k1, ptr[at]);
    }
    vmovups(vec, ptr[rip + masks_ + static_cast<int>(inside) * vec_bytes()]);
    vpmaskmovd(vec, vec, ptr[at]);
    vpblendd(vec, border, vec, static_cast<uint8_t>(mask));
  }

  // Four pixels: a 4x4 transpose of 32-bit words (256 bits: 4x2), then one of the bytes within 128 bits.
  void load_quad(const Vec& value, const Xbyak::RegExp& at, unsigned inside, const Gpr& scratch) {
    if (inside == kAllOfFour) {
      permute(value, ptr[at]);
    } else {
      load_inside(value, at, inside, scratch);
      if (inside != 0) permute(value, value);
    }
    if (inside != 0) vpshufb(value, value, bytes_order_);
    if (!is_signed_) return;
    has_masks() ? vpxord(value, value, ptr_b[rip + flips_]) : vpxor(value, value, ptr[rip + flips_]);
  }

  void permute(const Vec& to, const Xbyak::Operand& from) {
    if (has_masks()) return vpermd(Xbyak::Zmm(to.getIdx()), Xbyak::Zmm(order_.getIdx()), from);
    vpermd(Xbyak::Ymm(to.getIdx()), Xbyak::Ymm(order_.getIdx()), from);
  }

  // Two pixels as 16-bit integers.
  void load_pair(const Vec& value, const Xbyak::RegExp& at, unsigned inside, const Gpr& scratch) {
    const Xbyak::Ymm low(value.getIdx());
    if (inside != kAllOfTwo) load_inside(low, at, inside, scratch);
    if (inside == kAllOfTwo) {
      is_signed_ ? vpmovsxbw(value, ptr[at]) : vpmovzxbw(value, ptr[at]);
    } else {
      is_signed_ ? vpmovsxbw(value, low) : vpmovzxbw(value, low);
    }
    vpermw(value, order_, value);
  }

  // The same on AVX2, with 8 channels to a pixel.
  void load_narrow_pair(const Vec& value, const Xbyak::RegExp& at, unsigned inside) {
    const Xbyak::Xmm low(value.getIdx());
    if (inside == kAllOfTwo) {
      vmovdqu(low, ptr[at]);
    } else {
      vmovdqa(low, Xbyak::Xmm(border_.getIdx()));
      if (inside == 0x1) vpinsrq(low, low, ptr[at], 0);
      if (inside == 0x2) vpinsrq(low, low, ptr[at + lanes()], 1);
    }
    vpshufb(low, low, Xbyak::Xmm(order_.getIdx()));
    is_signed_ ? vpmovsxbw(value, low) : vpmovzxbw(value, low);
  }

  void emit_order() {
    if (!is_wide(dot_)) {
      for (int i = 0; i < lanes(); ++i) dd(static_cast<uint32_t>(i / 4 + i % 4 * words()));
    } else if (has_masks()) {
      for (int i = 0; i < 32; ++i) dw(static_cast<uint32_t>(i / 2 + i % 2 * 16));
    } else {
      for (int i = 0; i < 32; ++i) db(static_cast<uint32_t>(i / 2 % 8 + i % 2 * 8));
    }
  }

  const Int8Dot dot_;
  const bool is_signed_;
  const Vec border_ = claim_vec("border"), order_ = claim_vec("order");
  const Vec bytes_order_ = is_wide(dot_) ? Vec() : claim_vec("order of bytes");
  Xbyak::Label order_at_, bytes_order_at_, flips_, masks_;
};

}  // namespace lathe
