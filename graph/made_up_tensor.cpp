#include "graph/made_up_tensor.h"

#include <algorithm>
#include <cstring>

namespace lathe {
namespace {

// Small numbers, some of them negative where there are as many as weights have: other values may be scales.
float made_up(int64_t i, bool are_weights) {
  return static_cast<float>(are_weights ? i * 7 % 31 - 15 : i * 7 % 31 + 1) / 64;
}

uint16_t high_half(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace

Tensor made_up_tensor(DType dtype, const Dims& dims) {
  Tensor tensor(dtype, dims);
  const bool are_weights = tensor.rank() >= 2;
  const int64_t count = tensor.size();
  if (tensor.dtype() == DType::f32) {
    for (int64_t i = 0; i < count; ++i) tensor.mutable_data<float>()[i] = made_up(i, are_weights);
  } else if (tensor.dtype() == DType::f64) {
    for (int64_t i = 0; i < count; ++i) tensor.mutable_data<double>()[i] = made_up(i, are_weights);
  } else if (tensor.dtype() == DType::bf16) {
    for (int64_t i = 0; i < count; ++i) tensor.mutable_data<uint16_t>()[i] = high_half(made_up(i, are_weights));
  } else if (tensor.dtype() == DType::f16) {
    constexpr uint16_t kEighth = 0x3000, kSign = 0x8000;
    for (int64_t i = 0; i < count; ++i)
      tensor.mutable_data<uint16_t>()[i] =
          static_cast<uint16_t>((kEighth + i * 7 % 31 * 16) | (are_weights && i % 2 == 1 ? kSign : 0));
  } else if (dtype == DType::boolean) {
    for (int64_t i = 0; i < count; ++i) tensor.mutable_data<uint8_t>()[i] = i % 7 != 6;
  } else if (dtype == DType::i32 || dtype == DType::u32) {
    std::fill_n(static_cast<uint32_t*>(tensor.mutable_raw()), count, 1U);
  } else if (dtype == DType::i64 || dtype == DType::u64) {
    std::fill_n(static_cast<uint64_t*>(tensor.mutable_raw()), count, uint64_t{1});
  } else {
    auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
    for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 % 31);
  }
  return tensor;
}

}  // namespace lathe
