#include "ops/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "src/base/check.h"

namespace lathe {
namespace {

// A binary floating-point format with an implicit leading bit, gradual underflow and infinities.
struct Format {
  int mantissa_bits, exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format kFloat16{10, 5}, kBFloat16{7, 8};

uint16_t encode(double value, Format format) {
  const uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
  const uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinity | 1u << (format.mantissa_bits - 1));
  const double size = std::fabs(value);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  if (size == 0) return static_cast<uint16_t>(sign);
  const int exponent = std::max(std::ilogb(size), 1 - format.bias());
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, format.mantissa_bits - exponent)));
  // Denormals have no leading bit; a carry into it, or past it, lands in the exponent by itself.
  const int biased = exponent + format.bias() - 1;
  const uint64_t bits = (static_cast<uint64_t>(biased) << format.mantissa_bits) + units;
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::min<uint64_t>(bits, infinity)));
}

double decode(uint16_t bits, Format format) {
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - format.bias() - format.mantissa_bits);
}

// Truncates and wraps, as a cast of a NumPy array does; never undefined behaviour.
template <class T>
T integer_from(double value) {
  if (std::isnan(value)) return 0;
  if constexpr (std::is_same_v<T, uint64_t>) {
    if (value >= 18446744073709551616.0) return std::numeric_limits<uint64_t>::max();
    if (value >= 0) return static_cast<uint64_t>(value);
  }
  constexpr double kTop = 9223372036854775808.0;
  if (value >= kTop) return static_cast<T>(std::numeric_limits<int64_t>::max());
  if (value < -kTop) return static_cast<T>(std::numeric_limits<int64_t>::min());
  return static_cast<T>(static_cast<int64_t>(value));
}

[[noreturn]] void fail_type(DType dtype, const char* expected) {
  throw Error(ErrorCode::unsupported,
              "elements of type " + std::string(name_of(dtype)) + " where " + expected + " are expected");
}

}  // namespace

double from_float16(uint16_t bits) { return decode(bits, kFloat16); }
double from_bfloat16(uint16_t bits) { return decode(bits, kBFloat16); }
uint16_t to_float16(double value) { return encode(value, kFloat16); }
uint16_t to_bfloat16(double value) { return encode(value, kBFloat16); }

std::vector<double> reals_of(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.size()));
  const bool is_native = visit_native(tensor.dtype(), [&]<class T>() {
    const T* in = tensor.data<T>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(in[i]);
  });
  if (is_native) return values;
  if (tensor.dtype() != DType::f16 && tensor.dtype() != DType::bf16) fail_type(tensor.dtype(), "real numbers");
  const auto* bits = static_cast<const uint16_t*>(tensor.raw());
  const auto read = tensor.dtype() == DType::f16 ? from_float16 : from_bfloat16;
  for (size_t i = 0; i < values.size(); ++i) values[i] = read(bits[i]);
  return values;
}

std::vector<int64_t> integers_of_any(const Tensor& tensor) {
  std::vector<int64_t> values(static_cast<size_t>(tensor.size()));
  if (is_float(tensor.dtype())) fail_type(tensor.dtype(), "integers");
  const bool is_native = visit_native(tensor.dtype(), [&]<class T>() {
    const T* in = tensor.data<T>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(in[i]);
  });
  if (!is_native) fail_type(tensor.dtype(), "integers");
  return values;
}

double rounded_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f16:
      return from_float16(to_float16(value));
    case DType::bf16:
      return from_bfloat16(to_bfloat16(value));
    default:
      visit_native(dtype, [&]<class T>() {
        if constexpr (std::is_same_v<T, bool>) {
          value = value != 0 ? 1 : 0;
        } else if constexpr (std::is_integral_v<T>) {
          value = static_cast<double>(integer_from<T>(value));
        } else {
          value = static_cast<T>(value);
        }
      });
      return value;
  }
}

void store_real(Tensor& tensor, int64_t i, double value) {
  const bool is_native = visit_native(tensor.dtype(), [&]<class T>() {
    T* out = tensor.mutable_data<T>() + i;
    if constexpr (std::is_same_v<T, bool>) {
      *out = value != 0;
    } else if constexpr (std::is_integral_v<T>) {
      *out = integer_from<T>(value);
    } else {
      *out = static_cast<T>(value);
    }
  });
  if (is_native) return;
  auto* bits = static_cast<uint16_t*>(tensor.mutable_raw()) + i;
  if (tensor.dtype() == DType::f16) {
    *bits = to_float16(value);
  } else if (tensor.dtype() == DType::bf16) {
    *bits = to_bfloat16(value);
  } else {
    fail_type(tensor.dtype(), "real numbers");
  }
}

Tensor tensor_of_reals(const ReferenceContext& context, DType dtype, Dims dims, std::span<const double> elements) {
  Tensor result = make_output(context, dtype, std::move(dims));
  LATHE_CHECK(static_cast<size_t>(result.size()) == elements.size(), "tensor_of_reals: number of elements");
  for (size_t i = 0; i < elements.size(); ++i) store_real(result, static_cast<int64_t>(i), elements[i]);
  return result;
}

ElementCopy::ElementCopy(DType dtype) : is_string_(dtype == DType::string), bytes_(whole_element_bytes(dtype)) {}

void ElementCopy::operator()(const Tensor& from, int64_t i, Tensor& to, int64_t j, int64_t count) const {
  if (is_string_) {
    const auto* in = static_cast<const std::string*>(from.raw()) + i;
    auto* out = static_cast<std::string*>(to.mutable_raw()) + j;
    for (int64_t k = 0; k < count; ++k) out[k] = in[k];
  } else if (count > 0) {
    std::memcpy(static_cast<std::byte*>(to.mutable_raw()) + static_cast<size_t>(j) * bytes_,
                static_cast<const std::byte*>(from.raw()) + static_cast<size_t>(i) * bytes_,
                static_cast<size_t>(count) * bytes_);
  }
}

AxisSplit split_at(const Dims& dims, int64_t axis) {
  AxisSplit split;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (static_cast<int64_t>(i) < axis) split.outer *= dims[i];
    if (static_cast<int64_t>(i) == axis) split.extent = dims[i];
    if (static_cast<int64_t>(i) > axis) split.inner *= dims[i];
  }
  return split;
}

IndexWalk::IndexWalk(const Dims& dims)
    : dims_(dims), index_(dims.size(), 0), done_(std::find(dims.begin(), dims.end(), 0) != dims.end()) {}

void IndexWalk::next() {
  for (size_t axis = dims_.size(); axis-- > 0;) {
    if (++index_[axis] < dims_[axis]) return;
    index_[axis] = 0;
  }
  done_ = true;
}

}  // namespace lathe
