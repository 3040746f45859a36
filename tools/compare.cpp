#include "tools/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "ops/small_floats.h"
#include "src/base/box.h"
#include "src/base/half.h"

namespace lathe::tools {
namespace {

template <class T>
double element(const Tensor& tensor, int64_t i) {
  return static_cast<double>(static_cast<const T*>(tensor.raw())[i]);
}

// Element i of a type whose elements share bytes.
double packed_element(const Tensor& tensor, int64_t i) {
  const int bits = bits_of(tensor.dtype());
  const int64_t first = i * bits;
  const uint32_t code = static_cast<const uint8_t*>(tensor.raw())[first / 8] >> (first % 8) & ((1U << bits) - 1);
  if (tensor.dtype() == DType::f4e2m1) return small_float_value(DType::f4e2m1, static_cast<uint8_t>(code));
  const bool is_negative = is_signed(tensor.dtype()) && code >> (bits - 1) != 0;
  return static_cast<double>(code) - (is_negative ? 1U << bits : 0U);
}

// Complex numbers count as two elements, real and imaginary.
int parts_of(DType dtype) { return dtype == DType::c64 || dtype == DType::c128 ? 2 : 1; }

double number_at(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::f32:
    case DType::c64:
      return element<float>(tensor, i);
    case DType::f64:
    case DType::c128:
      return element<double>(tensor, i);
    case DType::f16:
      return half_to_float(tensor.data<uint16_t>()[i]);
    case DType::bf16:
      return bfloat_to_float(tensor.data<uint16_t>()[i]);
    case DType::i8:
      return element<int8_t>(tensor, i);
    case DType::u8:
      return element<uint8_t>(tensor, i);
    case DType::i16:
      return element<int16_t>(tensor, i);
    case DType::u16:
      return element<uint16_t>(tensor, i);
    case DType::i32:
      return element<int32_t>(tensor, i);
    case DType::u32:
      return element<uint32_t>(tensor, i);
    default:
      return bits_of(tensor.dtype()) == 8 ? small_float_value(tensor.dtype(), tensor.data<uint8_t>()[i])
                                          : packed_element(tensor, i);
  }
}

std::string position(const Dims& dims, int64_t i) {
  std::string text;
  for (size_t d = dims.size(); d-- > 0;) {
    text = std::to_string(i % dims[d]) + (text.empty() ? "" : ",") + text;
    i /= dims[d];
  }
  return "[" + text + "]";
}

bool is_close(double got, double want, const Tolerance& tolerance) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return got == want;
  return std::abs(got - want) <= tolerance.atol + tolerance.rtol * std::abs(want);
}

// Of types without a tolerance; `show` makes an element printable.
template <class T, class Show>
std::string compare_exactly(const Tensor& got, const Tensor& want, Show show) {
  const auto* a = static_cast<const T*>(got.raw());
  const auto* b = static_cast<const T*>(want.raw());
  int64_t wrong = 0, first = 0;
  for (int64_t i = 0; i < want.size(); ++i)
    if (a[i] != b[i] && wrong++ == 0) first = i;
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements differ, first at {}: {}, expected {}", wrong, want.size(),
                     position(want.dims(), first), show(a[first]), show(b[first]));
}

std::string quoted(const std::string& text) {
  constexpr size_t kLongest = 60;
  return "'" + (text.size() > kLongest ? text.substr(0, kLongest) + "..." : text) + "'";
}

std::string compare_numbers(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  const int parts = parts_of(want.dtype());
  int64_t wrong = 0, worst = 0;
  double worst_error = -1;
  for (int64_t i = 0; i < want.size() * parts; ++i) {
    const double a = number_at(got, i), b = number_at(want, i);
    if (is_close(a, b, tolerance)) continue;
    ++wrong;
    const double error = std::isfinite(a - b) ? std::abs(a - b) : INFINITY;
    if (error > worst_error) {
      worst_error = error;
      worst = i;
    }
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements differ, worst at {}: {:.9g}, expected {:.9g}", wrong, want.size() * parts,
                     position(want.dims(), worst / parts), number_at(got, worst), number_at(want, worst));
}

std::string compare_objects(const AnyValue& got, const AnyValue& want, const Tolerance& tolerance) {
  if (got.kind() != want.kind()) return fmt::format("is {}, expected {}", got.kind(), want.kind());
  if (want.is_map()) {
    const std::string keys = describe_difference(got.pairs().keys, want.pairs().keys, tolerance);
    if (!keys.empty()) return "keys: " + keys;
    const std::string values = describe_difference(got.pairs().values, want.pairs().values, tolerance);
    return values.empty() ? "" : "values: " + values;
  }
  if (!want.is_sequence()) return "";
  if (got.items().size() != want.items().size())
    return fmt::format("has {} items, expected {}", got.items().size(), want.items().size());
  for (size_t i = 0; i < want.items().size(); ++i) {
    const std::string difference = describe_difference(box(got.items()[i]), box(want.items()[i]), tolerance);
    if (!difference.empty()) return fmt::format("item {}: {}", i, difference);
  }
  return "";
}

}  // namespace

std::string describe_difference(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  if (is_boxed(got) || is_boxed(want)) return compare_objects(unbox(got), unbox(want), tolerance);
  if (got.dtype() != want.dtype())
    return fmt::format("type is {}, expected {}", name_of(got.dtype()), name_of(want.dtype()));
  if (got.dims() != want.dims())
    return fmt::format("shape is {}, expected {}", to_string(got.dims()), to_string(want.dims()));
  if (want.size() == 0) return "";
  switch (want.dtype()) {
    case DType::string:
      return compare_exactly<std::string>(got, want, quoted);
    case DType::boolean:
      return compare_exactly<uint8_t>(got, want, [](uint8_t value) { return value != 0 ? "true" : "false"; });
    case DType::i64:
      return compare_exactly<int64_t>(got, want, [](int64_t value) { return value; });
    case DType::u64:
      return compare_exactly<uint64_t>(got, want, [](uint64_t value) { return value; });
    default:
      return compare_numbers(got, want, tolerance);
  }
}

}  // namespace lathe::tools
