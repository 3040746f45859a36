#include "jit/kernels/common/int8_lanes.h"

#include <bit>
#include <memory>

namespace lathe {

void Int8Emitter::dot(Int8Dot kind, const Vec& acc, const Vec& a, const Vec& b, const Vec& temp) {
  if (kind == Int8Dot::u8s8) return vpdpbusd(acc, a, b);
  if (kind == Int8Dot::s8u8) return vpdpbusd(acc, b, a);
  if (kind == Int8Dot::pairs && has_vnni(isa())) return vpdpwssd(acc, a, b);
  if (multiplies_in_16_bits(kind)) {
    kind == Int8Dot::s8u8_halved ? vpmaddubsw(temp, b, a) : vpmaddubsw(temp, a, b);
    vpmaddwd(temp, temp, ptr[rip + ones_]);
  } else {
    vpmaddwd(temp, a, b);
  }
  vpaddd(acc, acc, temp);
}

void Int8Emitter::dot_by_signs(const Vec& acc, const Vec& a, const Vec& size, const Vec& b, const Vec& temp) {
  vpsignb(temp, b, a);
  dot(Int8Dot::u8s7, acc, size, temp, temp);
}

void Int8Emitter::emit_by_size(Int8Dot kind, const Xbyak::Reg64& large, const std::function<void()>& body) {
  const bool by_fours = has_fours(kind);
  auto aside = std::make_shared<Xbyak::Label>(), next = std::make_shared<Xbyak::Label>();
  cmp(byte[large], static_cast<uint8_t>(by_fours ? LargeBytes::none : LargeBytes::neighbours));
  by_fours ? jne(*aside, T_NEAR) : je(*aside, T_NEAR);
  adds_fours_ = by_fours;
  body();
  adds_fours_ = false;
  L(*next);
  aside_.emplace_back([=, this] {
    Xbyak::Label has_neighbours;
    L(*aside);
    if (by_fours) {
      cmp(byte[large], static_cast<uint8_t>(LargeBytes::neighbours));
      je(has_neighbours, T_NEAR);
      body();
      jmp(*next, T_NEAR);
    }
    L(has_neighbours);
    halves_ = true;
    body();
    halves_ = false;
    jmp(*next, T_NEAR);
  });
}

// What writes a vector takes its turn (Zen 3 has 3.6 in a cycle), and so do loads, but not what multiplies by what it
// loads.
void Int8Emitter::dot_in_16_bits(const Vec& acc, const Vec& a, const Xbyak::RegExp& b, const BytesTemps& temps) {
  vpmaddubsw(temps.first, a, ptr[b]);
  vpmaddwd(temps.first, temps.first, temps.ones);
  vpaddd(acc, acc, temps.first);
}

void Int8Emitter::dot_of_fours(const Vec& acc, const std::array<Vec, 2>& a, const std::array<Xbyak::RegExp, 2>& b,
                               const BytesTemps& temps) {
  vpmaddubsw(temps.first, a[0], ptr[b[0]]);
  vpmaddubsw(temps.second, a[1], ptr[b[1]]);
  vpaddw(temps.first, temps.first, temps.second);
  vpmaddwd(temps.first, temps.first, temps.ones);
  vpaddd(acc, acc, temps.first);
}

void Int8Emitter::emit_aside() {
  for (const auto& emit : aside_) emit();
  aside_.clear();
}

// Of an unsigned byte its highest bit, and the others. Of a signed one its half, rounded up or down: averages with 0
// round up, and so do those of both complements, which complement again are rounded down; signs are turned round, as
// the instruction takes unsigned bytes.
void Int8Emitter::take_half(Int8Dot kind, const Vec& a, Half half) {
  const Xbyak::Label& constant = half == Half::upper ? upper_ : lower_;
  if (kind == Int8Dot::u8s8_halved) return vpand(a, a, ptr[rip + constant]);
  vpxor(a, a, ptr[rip + constant]);
  vpavgb(a, a, ptr[rip + constant]);
  vpxor(a, a, ptr[rip + constant]);
}

void Int8Emitter::emit_dot_constants(Int8Dot kind) {
  if (!multiplies_in_16_bits(kind)) return;
  align(32);
  L(ones_);
  for (int i = 0; i < lanes() * 2; ++i) dw(1);
  if (!is_halved(kind)) return;
  L(upper_);
  for (int i = 0; i < lanes(); ++i) dd(0x80808080);
  L(lower_);
  for (int i = 0; i < lanes(); ++i) dd(0x7f7f7f7f);
}

void Int8Emitter::cross(const Vec& acc, const std::array<Vec, 2>& a, const std::array<Vec, 2>& b,
                        const std::array<Vec, 2>& sums) {
  vpaddw(sums[0], a[0], b[1]);
  vpaddw(sums[1], a[1], b[0]);
  vpmaddwd(sums[0], sums[0], sums[1]);
  vpaddd(acc, acc, sums[0]);
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

// A saturating addition takes a turn of the multipliers, a plain one does not. The least number, which a conversion
// gives for what it cannot hold, must not wrap around.
bool Int8Emitter::adds_zero_early(const Int8Store& how) const {
  return has_masks() && (how.zero > 0 || (how.zero < 0 && how.is_bounded));
}

// Packing works within 128 bits: it leaves, in each, four channels of every vector side by side.
void Int8Emitter::requantize(std::span<const Vec> vecs, const Int8Store& how, std::span<const Vec> temps) {
  const bool has_table = !how.table.empty();
  if (has_table && (!has_byte_tables(isa()) || how.table.size() != 256)) throw JitError("no such table of bytes");
  if (temps.size() < static_cast<size_t>(store_temps(how))) throw JitError("bytes have no registers to be stored by");
  const Vec& temp = temps[0];
  const size_t count = vecs.size();
  for (const Vec& vec : vecs) {
    // Above the range of int32 a conversion gives its least number. Positive numbers compare like their bits, and these
    // leave the multipliers alone.
    if (!how.is_bounded) has_masks() ? vpminsd(vec, vec, ptr_b[rip + limit_]) : vpminsd(vec, vec, ptr[rip + limit_]);
    vcvtps2dq(vec, vec);
    if (adds_zero_early(how)) vpaddd(vec, vec, ptr_b[rip + zeros_]);
  }
  const Vec &all = vecs[0], &second = vecs[count > 1 ? 1 : 0];
  vpackssdw(all, all, second);
  if (count == 4) vpackssdw(vecs[2], vecs[2], vecs[3]);
  const Vec& upper = count == 4 ? vecs[2] : all;
  if (how.zero != 0 && !adds_zero_early(how)) {
    vpaddsw(all, all, ptr[rip + zeros_]);
    if (count == 4) vpaddsw(upper, upper, ptr[rip + zeros_]);
  }
  how.dtype == DType::u8 ? vpackuswb(all, all, upper) : vpacksswb(all, all, upper);
  vmovups(temp, ptr[rip + pixel_order_]);
  if (has_masks()) {
    vpermd(Xbyak::Zmm(all.getIdx()), Xbyak::Zmm(temp.getIdx()), all);
  } else {
    vpermd(Xbyak::Ymm(all.getIdx()), Xbyak::Ymm(temp.getIdx()), all);
  }
  if (has_table) look_up(all, temps);
}

void Int8Emitter::store_requantized(const Xbyak::RegExp& at, std::span<const Vec> vecs, const Int8Store& how,
                                    std::span<const Vec> temps) {
  requantize(vecs, how, temps);
  const Vec& all = vecs[0];
  const int bytes = static_cast<int>(vecs.size()) * lanes();
  if (bytes == 8) return vmovq(ptr[at], Xbyak::Xmm(all.getIdx()));
  if (bytes == 16) return vmovups(ptr[at], Xbyak::Xmm(all.getIdx()));
  if (bytes == 32) return vmovups(ptr[at], Xbyak::Ymm(all.getIdx()));
  vmovups(ptr[at], all);
}

// Two tables of 128; a byte's highest bit chooses between them.
void Int8Emitter::look_up(const Vec& bytes, std::span<const Vec> temps) {
  constexpr int kPart = 64;
  const Xbyak::Zmm index(bytes.getIdx()), low(temps[0].getIdx()), high(temps[1].getIdx());
  vpmovb2m(k6, index);
  vmovups(low, ptr[rip + table_]);
  vmovups(high, ptr[rip + table_ + 2 * kPart]);
  vpermt2b(low, index, ptr[rip + table_ + kPart]);
  vpermi2b(index, high, ptr[rip + table_ + 3 * kPart]);
  vpblendmb(index | k6, low, index);
}

void Int8Emitter::emit_requantization(const Int8Store& how) {
  align(64);
  L(pixel_order_);
  const int parts = lanes() / 4;
  for (int pixel = 0; pixel < 4; ++pixel) {
    for (int part = 0; part < parts; ++part) dd(static_cast<uint32_t>(part * 4 + pixel));
  }
  L(zeros_);
  if (adds_zero_early(how)) {
    dd(static_cast<uint32_t>(how.zero));
  } else {
    for (int i = 0; i < lanes() * 2; ++i) dw(static_cast<uint32_t>(static_cast<uint16_t>(how.zero)));
  }
  L(limit_);
  for (int i = 0; i < lanes(); ++i) dd(std::bit_cast<uint32_t>(1e9F));
  align(64);
  L(table_);
  for (const uint8_t value : how.table) db(value);
}

}  // namespace lathe
