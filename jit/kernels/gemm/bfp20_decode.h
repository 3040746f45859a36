#pragma once
#include <xbyak/xbyak.h>

#include "jit/kernels/gemm/bfp20.h"

namespace lathe {

// 32 bits each, to the left; to the right where `left` is negative. `has_masks`: AVX-512.
void shift_words(Xbyak::CodeGenerator& code, bool has_masks, const Xbyak::Xmm& into, const Xbyak::RegExp& from,
                 int left);

// Code `i` of a group, of as many columns or rows as a vector has lanes, as a float32 number of 2^-12 of a unit.
// `spare` is clobbered; the masks hold kUpperMask and kLowerMask in all words.
struct Bfp20Decoder {
  static constexpr uint32_t kUpperMask = 0xFFFF0000, kLowerMask = Bfp20::kLowerMask << Bfp20::kCodeAt;

  Xbyak::CodeGenerator& code;
  bool has_masks;
  int vec_bytes;
  Xbyak::Xmm upper_mask, lower_mask;

  void emit(const Xbyak::Xmm& into, const Xbyak::Xmm& spare, const Xbyak::RegExp& group, int i) const;
};

}  // namespace lathe
