#pragma once
// What the kernels for bytes share: dot products of groups of bytes in 32-bit lanes, and reading and storing lanes in
// other element types than float32.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "jit/emitter.h"
#include "lathe/dtype.h"

namespace lathe {

// How a 32-bit lane of A meets one of B. All of them are exact: no intermediate sum saturates.
enum class Int8Dot : uint8_t {
  u8s8,   // four bytes each, A unsigned and B signed (VNNI)
  s8u8,   // four bytes each, A signed and B unsigned (VNNI)
  u8s7,   // four bytes each, A unsigned and B from -64 to 64: two products fit 16 bits (AVX2 without VNNI)
  s8s8,   // four bytes each, A signed and B from -127 to 127: the same, by A's size and B by its sign
  pairs,  // two 16-bit integers each (any instruction set)
  // The same by half the products, Winograd's inner product: with two neighbouring lanes a, a' of A and b, b' of B,
  // (a + b') . (a' + b) is a . b + a' . b' and a . a' + b . b', which the caller takes off again. Sums of elements of A
  // and B fit 16 bits, lanes come in twos. For CPUs that multiply at fewer ports than they add at, and have no
  // instruction that does both: AVX2 without VNNI only.
  crossed,
};
std::string to_string(Int8Dot dot);
// Values of k in one lane.
inline bool is_wide(Int8Dot dot) { return dot == Int8Dot::pairs || dot == Int8Dot::crossed; }  // 16 bits
inline int group_of(Int8Dot dot) { return is_wide(dot) ? 2 : 4; }
// Lanes that are multiplied together.
inline int lanes_of(Int8Dot dot) { return dot == Int8Dot::crossed ? 2 : 1; }
// Lanes of k values, filled up to those that are multiplied together.
inline int64_t groups_of(Int8Dot dot, int64_t k) {
  const int64_t together = int64_t{group_of(dot)} * lanes_of(dot);
  return (k + together - 1) / together * lanes_of(dot);
}
inline bool multiplies_in_16_bits(Int8Dot dot) { return dot == Int8Dot::u8s7 || dot == Int8Dot::s8s8; }
inline bool has_vnni(Isa isa) { return isa == Isa::avx2_vnni || isa >= Isa::avx512_vnni; }
inline bool has_wide_vnni(Isa isa) { return has_vnni(isa) && has_avx512(isa); }
// What AVX2 alone takes pays nowhere else.
inline bool has_dot(Isa isa, Int8Dot dot) {
  if (dot == Int8Dot::crossed || multiplies_in_16_bits(dot)) return !has_avx512(isa) && !has_vnni(isa);
  return dot == Int8Dot::pairs || has_vnni(isa);
}
inline bool can_cross(Isa isa) { return has_dot(isa, Int8Dot::crossed); }
inline bool dot_needs_temp(Isa isa, Int8Dot dot) {
  return multiplies_in_16_bits(dot) || (dot == Int8Dot::pairs && !has_vnni(isa));
}
// The largest element of B in size that u8s7 and s8s8 take.
constexpr int kMostOfSevenBits = 64, kMostBesideSigns = 127;
// Bytes are looked up in tables of 256 within registers.
bool has_byte_tables(Isa isa);
// The sets that differ in code for bytes.
inline Isa int8_isa(Isa isa) { return has_wide_vnni(isa) ? Isa::avx512_vnni : isa; }

// How float32 results are stored. As bytes: rounded to even, `zero` added, saturated.
struct Int8Store {
  DType dtype = DType::f32;  // or i32 (rounded), u8, i8
  int zero = 0;
  // Results are less than 2^31 in size and are no NaN.
  bool is_bounded = false;
  // Not 0: results are in units of kGeluUnit; of x such, x * kGeluUnit = y, the kernel stores this times y * Phi(y),
  // the GELU, off by less than 7e-6 + 2e-7 |y| before the factor (GeluEmitter; AVX-512 only).
  float gelu = 0;
  static constexpr float kGeluUnit = 0.328F;
  // Not empty: what is stored in place of each byte, by its bits: 256 (products and convolutions; has_byte_tables()
  // only).
  std::vector<uint8_t> table = {};
  bool operator==(const Int8Store&) const = default;
};
inline bool stores_bytes(const Int8Store& how) { return how.dtype == DType::u8 || how.dtype == DType::i8; }
// Registers that storing clobbers, besides what is stored.
inline int store_temps(const Int8Store& how) { return !stores_bytes(how) ? 0 : how.table.empty() ? 1 : 2; }
std::string to_string(const Int8Store& how);

class Int8Emitter : public Emitter {
 protected:
  using Emitter::Emitter;

  // acc += a . b in every lane; not Int8Dot::s8s8.
  // `temp` is clobbered when dot_needs_temp().
  void dot(Int8Dot kind, const Vec& acc, const Vec& a, const Vec& b, const Vec& temp);
  // Int8Dot::s8s8: `size` is that of `a`.
  void dot_by_signs(const Vec& acc, const Vec& a, const Vec& size, const Vec& b, const Vec& temp);
  // What these address by rip. Call once, behind the code's last instruction.
  void emit_dot_constants(Int8Dot kind);
  // Int8Dot::crossed, of two lanes each. `sums` are clobbered, and may be `a`.
  void cross(const Vec& acc, const std::array<Vec, 2>& a, const std::array<Vec, 2>& b, const std::array<Vec, 2>& sums);

  // Whole vectors of f32, i32, u8 or i8 as float32 lanes, and back. Lanes to be stored as integers are integral and in
  // range; `temp` is clobbered when bytes are stored on AVX2.
  void load_as_float(const Vec& vec, const Xbyak::RegExp& at, DType dtype);
  void store_as(const Xbyak::RegExp& at, const Vec& vec, DType dtype, const Vec& temp);
  // The lanes of `mask` only (AVX-512); the others are zero, or stay as they are in memory.
  void load_as_float(const Vec& vec, const Xbyak::RegExp& at, DType dtype, const Xbyak::Opmask& mask);
  void store_as(const Xbyak::RegExp& at, const Vec& vec, DType dtype, const Xbyak::Opmask& mask);
  // One element for all lanes.
  void broadcast_as_float(const Vec& vec, const Xbyak::RegExp& at, DType dtype);

  // 1, 2 or 4 vectors as bytes, one behind the other, in the low part of the first. Clobbers them and `temps`, of which
  // there are store_temps().
  void requantize(std::span<const Vec> vecs, const Int8Store& how, std::span<const Vec> temps);
  void requantize(std::span<const Vec> vecs, const Int8Store& how, const Vec& temp) {
    requantize(vecs, how, std::span(&temp, 1));
  }
  // The same, stored.
  void store_requantized(const Xbyak::RegExp& at, std::span<const Vec> vecs, const Int8Store& how,
                         std::span<const Vec> temps);
  void store_requantized(const Xbyak::RegExp& at, std::span<const Vec> vecs, const Int8Store& how, const Vec& temp) {
    store_requantized(at, vecs, how, std::span(&temp, 1));
  }
  // What store_requantized() addresses by rip. Call once, behind the code's last instruction.
  void emit_requantization(const Int8Store& how);

 private:
  bool adds_zero_early(const Int8Store& how) const;
  void look_up(const Vec& bytes, std::span<const Vec> temps);

  Xbyak::Label ones_, pixel_order_, zeros_, limit_, table_;
};

}  // namespace lathe
