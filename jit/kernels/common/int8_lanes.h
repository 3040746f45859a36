#pragma once
// What the kernels for bytes share: dot products of groups of bytes in 32-bit lanes, and reading and storing lanes in
// other element types than float32.
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "jit/emitter.h"
#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/common/int8_store.h"
#include "lathe/dtype.h"

namespace lathe {

class Int8Emitter : public Emitter {
 protected:
  using Emitter::Emitter;

  // acc += a . b in every lane; not Int8Dot::s8s8.
  // `temp` is clobbered when dot_needs_temp().
  void dot(Int8Dot kind, const Vec& acc, const Vec& a, const Vec& b, const Vec& temp);
  // Int8Dot::s8s8: `size` is that of `a`.
  void dot_by_signs(const Vec& acc, const Vec& a, const Vec& size, const Vec& b, const Vec& temp);
  // Where A's bytes may be large (is_halved()): emits `body` for each of the LargeBytes that may be at `large`, those
  // that are seldom there as code that emit_aside() puts behind the last instruction.
  void emit_by_size(Int8Dot kind, const Xbyak::Reg64& large, const std::function<void()>& body);
  void emit_aside();
  // Within `body`: nothing is large, of Int8Dot::u8s8_halved.
  bool adds_fours() const { return adds_fours_; }
  // Within `body`: emit(nullopt), or of both halves, which take_half() makes of `a` and neither of which is large.
  enum class Half : uint8_t { upper, lower };
  template <class Emit>
  void for_halves(Emit emit) {
    if (!halves_) return emit(std::optional<Half>());
    emit(std::optional(Half::upper));
    emit(std::optional(Half::lower));
  }
  void take_half(Int8Dot kind, const Vec& a, Half half);
  // Int8Dot::u8s7 and u8s8_halved with B in memory: acc += a . b, and of two groups where adds_fours().
  struct BytesTemps {
    Vec first, second;  // clobbered; the second one by fours only
    Vec ones;           // load_ones()'s
  };
  void load_ones(const Vec& ones) { vmovups(ones, ptr[rip + ones_]); }
  void dot_in_16_bits(const Vec& acc, const Vec& a, const Xbyak::RegExp& b, const BytesTemps& temps);
  void dot_of_fours(const Vec& acc, const std::array<Vec, 2>& a, const std::array<Xbyak::RegExp, 2>& b,
                    const BytesTemps& temps);
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

  bool halves_ = false, adds_fours_ = false;
  std::vector<std::function<void()>> aside_;
  Xbyak::Label ones_, upper_, lower_, pixel_order_, zeros_, limit_, table_;
};

}  // namespace lathe
