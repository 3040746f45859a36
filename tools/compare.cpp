#include "tools/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "src/base/box.h"
#include "src/base/half.h"

namespace lathe::tools {
namespace {

template <class T>
double element(const Tensor& tensor, int64_t i) {
  return static_cast<double>(tensor.data<T>()[i]);
}

// The element as a double, or nullopt for types that are compared byte by byte.
std::optional<double> number_at(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::f32:
      return element<float>(tensor, i);
    case DType::f64:
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
      return std::nullopt;
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

std::string compare_strings(const Tensor& got, const Tensor& want) {
  for (int64_t i = 0; i < want.size(); ++i)
    if (got.data<std::string>()[i] != want.data<std::string>()[i])
      return "strings differ at " + position(want.dims(), i);
  return "";
}

std::string compare_bytes(const Tensor& got, const Tensor& want) {
  if (want.bytes() == 0 || std::memcmp(got.raw(), want.raw(), want.bytes()) == 0) return "";
  const auto* a = static_cast<const uint8_t*>(got.raw());
  const auto* b = static_cast<const uint8_t*>(want.raw());
  size_t at = 0;
  while (a[at] == b[at]) ++at;
  return fmt::format("elements differ at {}",
                     position(want.dims(), static_cast<int64_t>(at * 8) / bits_of(want.dtype())));
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
  if (want.dtype() == DType::string) return compare_strings(got, want);
  if (!number_at(want, 0)) return compare_bytes(got, want);
  int64_t wrong = 0, worst = 0;
  double worst_error = -1;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = *number_at(got, i), b = *number_at(want, i);
    if (is_close(a, b, tolerance)) continue;
    ++wrong;
    const double error = std::isfinite(a - b) ? std::abs(a - b) : INFINITY;
    if (error > worst_error) {
      worst_error = error;
      worst = i;
    }
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements differ, worst at {}: {:.9g}, expected {:.9g}", wrong, want.size(),
                     position(want.dims(), worst), *number_at(got, worst), *number_at(want, worst));
}

}  // namespace lathe::tools
