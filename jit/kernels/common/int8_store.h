#pragma once
// How results of products and convolutions of bytes are stored.
#include <cstdint>
#include <string>
#include <vector>

#include "lathe/dtype.h"
#include "src/base/cpu.h"

namespace lathe {

// Bytes are looked up in tables of 256 within registers.
bool has_byte_tables(Isa isa);

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

}  // namespace lathe
