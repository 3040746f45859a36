#pragma once
// Elements of every type as keys: signed numbers in the order of the elements. NaN counts as larger than any number,
// as in NumPy; -0 equals +0.
#include <cstdint>
#include <type_traits>

#include "jit/kernels/select/beyond.h"
#include "lathe/dtype.h"

namespace lathe {

// Floating point: Infinity as in float_key().
template <class B, B Infinity>
struct FloatElement {
  using Bits = B;
  using Key = std::conditional_t<sizeof(B) == 8, int64_t, int32_t>;
  static Key key(Bits bits) { return float_key<Key>(bits, Infinity); }
};
using Float32Element = FloatElement<uint32_t, kFloat32Infinity>;

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
