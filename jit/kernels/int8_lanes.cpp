#include "jit/kernels/int8_lanes.h"

namespace lathe {

std::string to_string(Int8Dot dot) {
  switch (dot) {
    case Int8Dot::u8s8:
      return "u8s8";
    case Int8Dot::s8u8:
      return "s8u8";
    default:
      return "pairs";
  }
}

void Int8Emitter::dot(Int8Dot kind, const Vec& acc, const Vec& a, const Vec& b, const Vec& temp) {
  if (kind == Int8Dot::u8s8) return vpdpbusd(acc, a, b);
  if (kind == Int8Dot::s8u8) return vpdpbusd(acc, b, a);
  if (has_vnni(isa())) return vpdpwssd(acc, a, b);
  vpmaddwd(temp, a, b);
  vpaddd(acc, acc, temp);
}

void Int8Emitter::load_as_float(const Vec& vec, const Xbyak::RegExp& at, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return load(vec, at);
    case DType::i32:
      return vcvtdq2ps(vec, ptr[at]);
    case DType::u8:
      vpmovzxbd(vec, ptr[at]);
      return vcvtdq2ps(vec, vec);
    case DType::i8:
      vpmovsxbd(vec, ptr[at]);
      return vcvtdq2ps(vec, vec);
    default:
      throw JitError("lanes of this type cannot be loaded");
  }
}

void Int8Emitter::load_as_float(const Vec& vec, const Xbyak::RegExp& at, DType dtype, const Xbyak::Opmask& mask) {
  switch (dtype) {
    case DType::f32:
      return vmovups(vec | mask | T_z, ptr[at]);
    case DType::i32:
      return vcvtdq2ps(vec | mask | T_z, ptr[at]);
    case DType::u8:
      vpmovzxbd(vec | mask | T_z, ptr[at]);
      return vcvtdq2ps(vec, vec);
    case DType::i8:
      vpmovsxbd(vec | mask | T_z, ptr[at]);
      return vcvtdq2ps(vec, vec);
    default:
      throw JitError("lanes of this type cannot be loaded");
  }
}

void Int8Emitter::store_as(const Xbyak::RegExp& at, const Vec& vec, DType dtype, const Vec& temp) {
  if (dtype == DType::f32) return store(at, vec);
  if (dtype != DType::i32 && dtype != DType::u8 && dtype != DType::i8) {
    throw JitError("lanes cannot be stored as this type");
  }
  vcvtps2dq(vec, vec);
  if (dtype == DType::i32) return store(at, vec);
  if (has_masks()) return vpmovdb(ptr[at], vec);
  const Xbyak::Xmm low(vec.getIdx()), high(temp.getIdx());
  vextracti128(high, Xbyak::Ymm(vec.getIdx()), 1);
  vpackssdw(low, low, high);
  dtype == DType::u8 ? vpackuswb(low, low, low) : vpacksswb(low, low, low);
  vmovq(ptr[at], low);
}

void Int8Emitter::store_as(const Xbyak::RegExp& at, const Vec& vec, DType dtype, const Xbyak::Opmask& mask) {
  if (dtype == DType::f32) return vmovups(ptr[at] | mask, vec);
  if (dtype != DType::i32 && dtype != DType::u8 && dtype != DType::i8) {
    throw JitError("lanes cannot be stored as this type");
  }
  vcvtps2dq(vec, vec);
  dtype == DType::i32 ? vmovdqu32(ptr[at] | mask, vec) : vpmovdb(ptr[at] | mask, vec);
}

void Int8Emitter::broadcast_as_float(const Vec& vec, const Xbyak::RegExp& at, DType dtype) {
  const Xbyak::Xmm low(vec.getIdx());
  switch (dtype) {
    case DType::f32:
      return broadcast(vec, at);
    case DType::i32:
      vpbroadcastd(vec, dword[at]);
      return vcvtdq2ps(vec, vec);
    case DType::u8:
      vpbroadcastb(low, byte[at]);
      vpmovzxbd(vec, low);
      return vcvtdq2ps(vec, vec);
    case DType::i8:
      vpbroadcastb(low, byte[at]);
      vpmovsxbd(vec, low);
      return vcvtdq2ps(vec, vec);
    default:
      throw JitError("lanes of this type cannot be loaded");
  }
}

}  // namespace lathe
