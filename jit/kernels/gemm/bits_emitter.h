#pragma once
// Codes of few bits as float32 without a conversion: at the top of the mantissa of a number between 1 and 2, a code is
// 1 + code / 2^bits.
#include "jit/emitter.h"

namespace lathe {

class BitsEmitter : public Emitter {
 protected:
  BitsEmitter(Isa isa, int bits) : Emitter(isa), bits_(bits) {
    if (bits != 2 && bits != 4 && bits != 8) throw JitError(std::to_string(bits) + " bits are out of range");
  }

  int rows_of_group() const { return 32 / bits_; }  // in the 32 bits of a column

  // Clobbers `scratch`.
  void claim_constants(const Gpr& scratch) {
    mask_ = claim_vec("mask");
    one_ = claim_vec("1.0");
    fill(mask_, ((1u << bits_) - 1) << shift(), scratch);
    fill(one_, 0x3F800000, scratch);
  }

  // into = 1 + code / 2^bits, of this row of a group.
  void decode(const Vec& into, const Vec& group, int row) {
    const int right = row * bits_ - shift();
    right >= 0 ? vpsrld(into, group, static_cast<uint8_t>(right)) : vpslld(into, group, static_cast<uint8_t>(-right));
    if (has_masks()) {
      constexpr uint8_t kAndThenOr = 0xEA;
      vpternlogd(into, mask_, one_, kAndThenOr);
    } else {
      vpand(into, into, mask_);
      vpor(into, into, one_);
    }
  }

 private:
  int shift() const { return 23 - bits_; }  // where a code begins in the mantissa

  int bits_;
  Vec mask_, one_;
};

}  // namespace lathe
