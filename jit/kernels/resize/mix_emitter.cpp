#include "jit/kernels/resize/mix_emitter.h"

#include <bit>

namespace lathe {

void MixEmitter::claim_conversions() {
  if (by_element_ && from_type_ != MixElement::f32) byte_ = claim_gpr("byte");
  if (to_type_ == MixElement::f32) return;
  rounded_ = claim_vec("sum that is rounded");
  slack_ = claim_vec("slack");
  sign_ = claim_vec("sign");
  low_byte_ = claim_vec("low byte");
}

void MixEmitter::load_constants(const Gpr& spare) {
  if (to_type_ == MixElement::f32) return;
  // Sums that are integers may come out just below.
  fill(slack_, std::bit_cast<uint32_t>(1.0F / 8192), spare);
  fill(sign_, uint32_t{1} << 31, spare);
  fill(low_byte_, 255, spare);
}

void MixEmitter::set_tail(int elements, const Gpr& spare) {
  mov(spare.cvt32(), (1 << elements) - 1);
  kmovw(tail(), spare.cvt32());
}

void MixEmitter::read(const Vec& vec, const Xbyak::RegExp& at, Lanes lanes) {
  if (by_element_) return read_element(Xbyak::Xmm(vec.getIdx()), at);
  const Xbyak::Xmm into = lanes == Lanes::tail ? Xbyak::Zmm(vec.getIdx()) | tail() | T_z : vec;
  if (from_type_ == MixElement::f32) return vmovups(into, ptr[at]);
  if (from_type_ == MixElement::i8) {
    vpmovsxbd(into, ptr[at]);
  } else {
    vpmovzxbd(into, ptr[at]);
  }
  vcvtdq2ps(vec, vec);
}

void MixEmitter::read_element(const Xbyak::Xmm& vec, const Xbyak::RegExp& at) {
  if (from_type_ == MixElement::f32) return vmovss(vec, ptr[at]);
  if (from_type_ == MixElement::i8) {
    movsx(byte_.cvt32(), byte[at]);
  } else {
    movzx(byte_.cvt32(), byte[at]);
  }
  vmovd(vec, byte_.cvt32());
  vcvtdq2ps(vec, vec);
}

void MixEmitter::write(const Xbyak::RegExp& at, const Vec& sum, Lanes lanes) {
  if (to_type_ != MixElement::f32) return write_bytes(at, sum, lanes);
  if (by_element_) return vmovss(ptr[at], Xbyak::Xmm(sum.getIdx()));
  if (lanes == Lanes::tail) return vmovups(ptr[at] | tail(), Xbyak::Zmm(sum.getIdx()));
  store(at, sum);
}

void MixEmitter::write_bytes(const Xbyak::RegExp& at, const Vec& sum, Lanes lanes) {
  if (has_masks()) {
    vpandd(rounded_, sum, sign_);
    vpord(rounded_, rounded_, slack_);
  } else {
    vandps(rounded_, sum, sign_);
    vorps(rounded_, rounded_, slack_);
  }
  vaddps(sum, sum, rounded_);
  vcvttps2dq(sum, sum);
  const Xbyak::Xmm low(sum.getIdx()), high(rounded_.getIdx());
  if (by_element_) return vpextrb(ptr[at], low, 0);
  if (lanes == Lanes::tail) return vpmovdb(ptr[at] | tail(), Xbyak::Zmm(sum.getIdx()));
  if (has_masks()) return vpmovdb(ptr[at], Xbyak::Zmm(sum.getIdx()));
  vpand(sum, sum, low_byte_);
  vextracti128(high, Xbyak::Ymm(sum.getIdx()), 1);
  vpackusdw(low, low, high);
  vpackuswb(low, low, low);
  vmovq(ptr[at], low);
}

}  // namespace lathe
