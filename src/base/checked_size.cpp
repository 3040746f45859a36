#include "src/base/checked_size.h"

#include <algorithm>

#include "lathe/error.h"

namespace lathe {
namespace {

[[noreturn]] void fail_overflow(const std::string& what) {
  throw Error(ErrorCode::limit, what + " does not fit 64 bits");
}

}  // namespace

int64_t checked_elements(const Dims& dims) {
  for (int64_t extent : dims)
    if (extent < 0) throw Error(ErrorCode::invalid_argument, "shape " + to_string(dims) + " has a negative extent");
  // An empty tensor is empty whatever its other extents are.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  int64_t product = 1;
  for (int64_t extent : dims)
    if (__builtin_mul_overflow(product, extent, &product)) fail_overflow("shape " + to_string(dims));
  return product;
}

size_t checked_bytes(DType dtype, const Dims& dims) {
  const auto elements = static_cast<size_t>(checked_elements(dims));
  const auto bits = static_cast<size_t>(bits_of(dtype));
  if (bits >= 8) return checked_multiply(elements, bits / 8);
  if (bits == 0) return 0;
  const size_t per_byte = 8 / bits;
  return elements / per_byte + (elements % per_byte != 0);
}

size_t checked_multiply(size_t a, size_t b) {
  size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail_overflow(std::to_string(a) + " * " + std::to_string(b));
  return product;
}

size_t checked_add(size_t a, size_t b) {
  size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail_overflow(std::to_string(a) + " + " + std::to_string(b));
  return sum;
}

}  // namespace lathe
