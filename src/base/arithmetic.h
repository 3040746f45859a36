#pragma once
#include <cstdint>

namespace lathe {

// The multiply-add that bounds a kernel's speed: each has a peak of its own.
enum class Arithmetic : uint8_t {
  f32,
  bf16,   // pairs of bfloat16 to float32
  bytes,  // four bytes to 32 bits
  pairs,  // two 16-bit integers to 32 bits
};
inline constexpr int kArithmeticCount = 4;

}  // namespace lathe
