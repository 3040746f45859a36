#pragma once
// Elements of every type as keys: signed numbers in the order of the elements. NaN counts as larger than any number,
// as in NumPy; -0 equals +0.
#include <cstdint>
#include <type_traits>

#include "lathe/dtype.h"

namespace lathe {

// Floating point, by its bits. `Infinity`: those above which a magnitude is NaN.
template <class B, B Infinity>
struct FloatElement {
  using Bits = B;
  using Key = std::conditional_t<sizeof(B) == 8, int64_t, int32_t>;
  static Key key(Bits bits) {
    constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    const Bits magnitude = bits & static_cast<Bits>(~kSign);
    const Key of_magnitude =
        magnitude > Infinity ? static_cast<Key>(static_cast<Bits>(~kSign)) : static_cast<Key>(magnitude);
    const bool is_below = (bits & kSign) != 0 && magnitude != 0 && magnitude <= Infinity;
    return is_below ? ~of_magnitude : of_magnitude;
  }
};
using Float32Element = FloatElement<uint32_t, 0x7f800000U>;

template <class T>
struct IntegerElement {
  using Bits = T;
  using Key = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
  static Key key(Bits bits) {
    constexpr bool flips = std::is_unsigned_v<T> && sizeof(T) >= sizeof(int32_t);
    return flips ? static_cast<Key>(bits ^ static_cast<T>(T{1} << (8 * sizeof(T) - 1))) : static_cast<Key>(bits);
  }
};

// False: not of this type.
template <class Visit>
bool visit_elements(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f32:
      visit(Float32Element{});
      return true;
    case DType::f64:
      visit(FloatElement<uint64_t, 0x7ff0000000000000U>{});
      return true;
    case DType::f16:
      visit(FloatElement<uint16_t, 0x7c00U>{});
      return true;
    case DType::bf16:
      visit(FloatElement<uint16_t, 0x7f80U>{});
      return true;
    case DType::i8:
      visit(IntegerElement<int8_t>{});
      return true;
    case DType::i16:
      visit(IntegerElement<int16_t>{});
      return true;
    case DType::i32:
      visit(IntegerElement<int32_t>{});
      return true;
    case DType::i64:
      visit(IntegerElement<int64_t>{});
      return true;
    case DType::u8:
      visit(IntegerElement<uint8_t>{});
      return true;
    case DType::u16:
      visit(IntegerElement<uint16_t>{});
      return true;
    case DType::u32:
      visit(IntegerElement<uint32_t>{});
      return true;
    case DType::u64:
      visit(IntegerElement<uint64_t>{});
      return true;
    default:
      return false;
  }
}

}  // namespace lathe
