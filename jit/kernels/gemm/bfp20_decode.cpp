#include "jit/kernels/gemm/bfp20_decode.h"

namespace lathe {

void shift_words(Xbyak::CodeGenerator& code, bool has_masks, const Xbyak::Xmm& into, const Xbyak::RegExp& from,
                 int left) {
  const auto by = static_cast<uint8_t>(left > 0 ? left : -left);
  if (has_masks && left != 0) {
    left > 0 ? code.vpslld(into, code.ptr[from], by) : code.vpsrld(into, code.ptr[from], by);
    return;
  }
  code.vmovups(into, code.ptr[from]);
  if (left > 0) code.vpslld(into, into, by);
  if (left < 0) code.vpsrld(into, into, by);
}

void Bfp20Decoder::emit(const Xbyak::Xmm& into, const Xbyak::Xmm& spare, const Xbyak::RegExp& group, int i) const {
  const Xbyak::RegExp upper = group + (1 + i / 2) * vec_bytes;
  if (i % 2 == 0) {
    shift_words(code, has_masks, into, upper, 16);
  } else {
    code.vandps(into, upper_mask, code.ptr[upper]);
  }
  shift_words(code, has_masks, spare, group, Bfp20::kCodeAt - i * Bfp20::kLowerBits);
  if (has_masks) {
    constexpr uint8_t kOrOfAnd = 0xF8;
    code.vpternlogd(into, spare, lower_mask, kOrOfAnd);
  } else {
    code.vpand(spare, spare, lower_mask);
    code.vpor(into, into, spare);
  }
  code.vcvtdq2ps(into, into);
}

}  // namespace lathe
