#include "jit/kernels/pointwise/pointwise_memory.h"

#include "jit/kernel.h"

namespace lathe {

namespace {

bool is_word(DType dtype) { return dtype == DType::u16 || dtype == DType::i16; }

}  // namespace

int element_bytes(DType dtype) { return bits_of(dtype) / 8; }

bool can_load(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::u8:
    case DType::i8:
    case DType::u16:
    case DType::i16:
    case DType::i32:
    case DType::i64:
    case DType::boolean:
      return true;
    default:
      return false;
  }
}

bool can_store(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::i32 || dtype == DType::u8 ||
         dtype == DType::i8 || is_word(dtype) || dtype == DType::boolean;
}

// The next instruction takes the opmask, its other lanes zero.
asmjit::x86::Compiler& VectorMemory::masked(const Lanes& lanes) {
  if (lanes.kind == Lanes::Kind::masked && has_masks()) cc_.k(lanes.opmask).z();
  return cc_;
}

void VectorMemory::load(DType dtype, const Vec& into, const Mem& at, const Lanes& lanes) {
  if (lanes.kind == Lanes::Kind::one) return load_scalar(dtype, into, at);
  if (lanes.kind == Lanes::Kind::masked && !has_masks()) {
    cc_.vmaskmovps(into, lanes.vector_mask, at);
    if (dtype == DType::i32) cc_.vcvtdq2ps(into, into);
    return;
  }
  switch (dtype) {
    case DType::f32:
      masked(lanes).vmovups(into, at);
      return;
    case DType::i32:
      masked(lanes).vcvtdq2ps(into, at);
      return;
    case DType::f16:
      masked(lanes).vcvtph2ps(into, at);
      return;
    case DType::i64:
      load_int64(into, at, lanes);
      return;
    case DType::bf16:
      masked(lanes).vpmovzxwd(into, at);
      cc_.vpslld(into, into, 16);
      return;
    case DType::i8:
      masked(lanes).vpmovsxbd(into, at);
      break;
    case DType::u16:
      masked(lanes).vpmovzxwd(into, at);
      break;
    case DType::i16:
      masked(lanes).vpmovsxwd(into, at);
      break;
    default:
      masked(lanes).vpmovzxbd(into, at);
      break;
  }
  cc_.vcvtdq2ps(into, into);
}

void VectorMemory::load_int64(const Vec& into, const Mem& at, const Lanes& lanes) {
  if (!has_masks()) {  // AVX2 converts no 64-bit integers but one by one
    const asmjit::x86::Xmm high = cc_.newXmm("high"), element = cc_.newXmm("element");
    const auto convert = [&](const asmjit::x86::Xmm& half, int first) {
      for (int i = 0; i < 4; ++i) {
        Mem place = at.cloneAdjusted((first + i) * 8);
        place.setSize(8);
        cc_.vxorps(element, element, element);
        cc_.vcvtsi2ss(element, element, place);
        i == 0 ? cc_.vmovaps(half, element) : cc_.vinsertps(half, half, element, i << 4);
      }
    };
    convert(high, 4);
    convert(into.xmm(), 0);
    cc_.vinsertf128(into, into, high, 1);
    return;
  }
  const asmjit::x86::Ymm high = cc_.newYmm("high");
  Lanes upper = lanes;
  if (lanes.kind == Lanes::Kind::masked) {
    upper.opmask = cc_.newKw("upper");
    cc_.kshiftrw(upper.opmask, lanes.opmask, 8);
  }
  masked(upper).vcvtqq2ps(high, at.cloneAdjusted(64));
  masked(lanes).vcvtqq2ps(into.ymm(), at);
  cc_.vinsertf64x4(into, into, high, 1);
}

void VectorMemory::load_scalar(DType dtype, const Vec& into, const Mem& at) {
  const asmjit::x86::Xmm low = into.xmm();
  Mem place = at;
  place.setSize(static_cast<uint32_t>(element_bytes(dtype)));
  if (dtype == DType::f32 || dtype == DType::i32) {
    cc_.vbroadcastss(into, place);
    if (dtype == DType::i32) cc_.vcvtdq2ps(into, into);
    return;
  }
  if (dtype == DType::i64) {
    cc_.vxorps(low, low, low);
    cc_.vcvtsi2ss(low, low, place);
    cc_.vbroadcastss(into, low);
    return;
  }
  const asmjit::x86::Gp bits = cc_.newInt32("bits");
  is_signed(dtype) ? cc_.movsx(bits, place) : cc_.movzx(bits, place);
  if (dtype == DType::bf16) cc_.shl(bits, 16);
  cc_.vmovd(low, bits);
  if (dtype == DType::f16) cc_.vcvtph2ps(low, low);
  if (dtype != DType::f16 && dtype != DType::bf16) cc_.vcvtdq2ps(low, low);
  cc_.vbroadcastss(into, low);
}

void VectorMemory::store(DType dtype, const Mem& at, const Vec& value, const Lanes& lanes) {
  if (dtype == DType::f16) return store_half(at, value, lanes);
  if (dtype != DType::f32) cc_.vcvtps2dq(value, value);
  if (lanes.kind == Lanes::Kind::one) return store_one(dtype, at, value);
  if (is_word(dtype)) return store_words(dtype, at, value, lanes);
  if (dtype != DType::f32 && dtype != DType::i32) return store_bytes(dtype, at, value, lanes);
  if (lanes.kind == Lanes::Kind::all)
    cc_.vmovups(at, value);
  else if (has_masks())
    cc_.k(lanes.opmask).vmovups(at, value);
  else
    cc_.vmaskmovps(at, lanes.vector_mask, value);
}

void VectorMemory::store_bytes(DType dtype, const Mem& at, const Vec& integers, const Lanes& lanes) {
  if (has_masks()) {
    if (lanes.kind == Lanes::Kind::masked) cc_.k(lanes.opmask);
    cc_.vpmovdb(at, integers);
    return;
  }
  cc_.vpackssdw(integers, integers, integers);
  cc_.vpermq(integers, integers, 0x08);  // the low halves of both lanes side by side
  const asmjit::x86::Xmm low = integers.xmm();
  dtype == DType::i8 ? cc_.vpacksswb(low, low, low) : cc_.vpackuswb(low, low, low);
  cc_.vmovq(at, low);
}

void VectorMemory::store_words(DType dtype, const Mem& at, const Vec& integers, const Lanes& lanes) {
  if (has_masks()) {
    if (lanes.kind == Lanes::Kind::masked) cc_.k(lanes.opmask);
    cc_.vpmovdw(at, integers);
    return;
  }
  is_signed(dtype) ? cc_.vpackssdw(integers, integers, integers) : cc_.vpackusdw(integers, integers, integers);
  cc_.vpermq(integers, integers, 0x08);  // the low halves of both lanes side by side
  cc_.vmovups(at, integers.xmm());
}

void VectorMemory::store_half(const Mem& at, const Vec& value, const Lanes& lanes) {
  constexpr int kToNearestEven = 0;
  if (lanes.kind == Lanes::Kind::one) {
    const asmjit::x86::Xmm narrow = cc_.newXmm("narrow");
    cc_.vcvtps2ph(narrow, value.xmm(), kToNearestEven);
    Mem place = at;
    place.setSize(2);
    cc_.vpextrw(place, narrow, 0);
    return;
  }
  Mem place = at;
  place.setSize(0);  // half of the vector's
  if (lanes.kind == Lanes::Kind::masked) cc_.k(lanes.opmask);
  cc_.emit(asmjit::x86::Inst::kIdVcvtps2ph, place, value, kToNearestEven);
}

void VectorMemory::store_one(DType dtype, const Mem& at, const Vec& value) {
  Mem place = at;
  place.setSize(static_cast<uint32_t>(element_bytes(dtype)));
  if (dtype == DType::f32 || dtype == DType::i32) {
    cc_.vmovss(place, value.xmm());
    return;
  }
  const asmjit::x86::Gp bits = cc_.newInt32("bits");
  cc_.vmovd(bits, value.xmm());
  is_word(dtype) ? cc_.mov(place, bits.r16()) : cc_.mov(place, bits.r8());
}

}  // namespace lathe
