#pragma once
// Rows of float16 and bfloat16 to and from float32, by vectors: to nearest even, NaN as NaN. float16 takes F16C,
// which every CPU with AVX2 has.
#include <cstdint>

namespace lathe {

void halves_to_floats(const uint16_t* from, int64_t count, float* to) noexcept;
void floats_to_halves(const float* from, int64_t count, uint16_t* to) noexcept;
void bfloats_to_floats(const uint16_t* from, int64_t count, float* to) noexcept;
void floats_to_bfloats(const float* from, int64_t count, uint16_t* to) noexcept;

}  // namespace lathe
