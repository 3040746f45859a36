#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace lathe {

// Element types. The numbers are those of ONNX's TensorProto.DataType.
enum class DType : uint8_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  string = 8,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  c64 = 14,
  c128 = 15,
  bf16 = 16,
  f8e4m3fn = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  f4e2m1 = 23,
  f8e8m0 = 24,
  u2 = 25,
  i2 = 26,
  // Lathe's own: a value that is no tensor travels in a scalar of this type. Users see an AnyValue (value.h) instead.
  object = 255,
};
inline constexpr int kDTypeCount = 27;

// Bits of one element in memory; sub-byte elements are packed, lowest bits first. 0 for undefined, string and object.
int bits_of(DType dtype);
// ONNX's spelling: "float32", "int64", "bool", "float8e4m3fn", ...
std::string_view name_of(DType dtype);
bool is_float(DType dtype);    // real floating point of any width
bool is_integer(DType dtype);  // signed or unsigned of any width; not bool
bool is_signed(DType dtype);
bool is_byte(DType dtype);  // u8 or i8

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, bool>) return DType::boolean;
  if constexpr (std::is_same_v<T, int8_t>) return DType::i8;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::u8;
  if constexpr (std::is_same_v<T, int16_t>) return DType::i16;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::u16;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, uint32_t>) return DType::u32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
  if constexpr (std::is_same_v<T, uint64_t>) return DType::u64;
  if constexpr (std::is_same_v<T, std::string>) return DType::string;
  return DType::undefined;
}

}  // namespace lathe
