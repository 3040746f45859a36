#pragma once
// Elements of 4 and 8 bits as passes read them out of quantized constants.
#include "lathe/tensor.h"

namespace lathe {

// 0 for other types.
inline int bits_of_code(DType dtype) {
  if (dtype == DType::i8 || dtype == DType::u8) return 8;
  return dtype == DType::i4 || dtype == DType::u4 ? 4 : 0;
}

// Unsigned, with 2^(bits - 1) for a signed 0. Requires: bits_of_code() of the tensor's type, and that the tensor lives.
class Codes {
 public:
  explicit Codes(const Tensor& tensor)
      : bytes_(static_cast<const uint8_t*>(tensor.raw())),
        is_half_(bits_of_code(tensor.dtype()) == 4),
        flip_(tensor.dtype() == DType::i8   ? 0x80
              : tensor.dtype() == DType::i4 ? 8
                                            : 0) {}
  uint8_t operator[](int64_t i) const {
    if (!is_half_) return static_cast<uint8_t>(bytes_[i] ^ flip_);
    return static_cast<uint8_t>((bytes_[i / 2] >> (i % 2 * 4) & 15) ^ flip_);
  }

 private:
  const uint8_t* bytes_;
  bool is_half_;
  uint8_t flip_;
};

}  // namespace lathe
