#pragma once
// Dynamic quantization: the scale and the zero point of bytes by the range of float32 values, and the bytes.
#include <algorithm>
#include <cstdint>

namespace lathe {

struct ValueRange {
  float low = 0, high = 0;  // holds 0
  void include(const ValueRange& other) {
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
};
ValueRange range_of(const float* x, int64_t count) noexcept;
// Of rows of 8 or 16 values, in which only the first `valid` of each count.
ValueRange range_of_lanes(const float* x, int64_t rows, int64_t lanes, int64_t valid) noexcept;

// As DynamicQuantizeLinear of ONNX has them.
struct Quantization {
  float scale = 1;
  int zero = 0;  // 0 to 255
};
Quantization quantization_of(const ValueRange& range) noexcept;

void quantize(const float* x, int64_t count, const Quantization& q, uint8_t* out) noexcept;
// The same bytes less their zero point.
void quantize_centered(const float* x, int64_t count, const Quantization& q, int16_t* out) noexcept;

}  // namespace lathe
