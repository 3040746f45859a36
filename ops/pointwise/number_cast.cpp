#include "ops/pointwise/number_cast.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "src/base/half.h"

namespace lathe {
namespace {

struct SmallInteger {
  int bits;
  bool is_signed;
};

std::optional<SmallInteger> small_integer(DType dtype) {
  switch (dtype) {
    case DType::u4:
      return SmallInteger{4, false};
    case DType::i4:
      return SmallInteger{4, true};
    case DType::u2:
      return SmallInteger{2, false};
    case DType::i2:
      return SmallInteger{2, true};
    default:
      return std::nullopt;
  }
}

int value_of(SmallInteger type, uint8_t bits) {
  const int value = bits & ((1 << type.bits) - 1);
  const bool is_negative = type.is_signed && (value >> (type.bits - 1)) != 0;
  return is_negative ? value - (1 << type.bits) : value;
}

[[noreturn]] void fail(DType from, DType to) {
  throw Error(ErrorCode::unsupported,
              "Cast from " + std::string(name_of(from)) + " to " + std::string(name_of(to)) + " is not supported");
}

// Calls visit.operator()<T>() for the types that have a C++ type of their own, half types included.
template <class Visit>
bool visit_whole(DType dtype, Visit visit) {
  if (dtype == DType::f16) return visit.template operator()<Float16>(), true;
  if (dtype == DType::bf16) return visit.template operator()<BFloat16>(), true;
  return visit_native(dtype, visit);
}

template <class R>
R integer_from(double value) {
  if (std::isnan(value)) return 0;
  if constexpr (std::is_same_v<R, uint64_t>)
    if (value >= 0) return value >= 18446744073709551616.0 ? std::numeric_limits<R>::max() : static_cast<R>(value);
  constexpr double kTop = 9223372036854775808.0;
  if (value >= kTop) return static_cast<R>(std::numeric_limits<int64_t>::max());
  if (value < -kTop) return static_cast<R>(std::numeric_limits<int64_t>::min());
  return static_cast<R>(static_cast<int64_t>(value));
}

template <class R, class T>
R converted(T value) {
  if constexpr (std::is_same_v<R, bool>) {
    return value != T{0};
  } else if constexpr (std::is_same_v<R, Float16> || std::is_same_v<R, BFloat16>) {
    R result;  // straight from float64: no rounding twice
    result.bits =
        std::is_same_v<R, Float16> ? to_float16(static_cast<double>(value)) : to_bfloat16(static_cast<double>(value));
    return result;
  } else if constexpr (std::is_integral_v<R> && !std::is_integral_v<T>) {
    return integer_from<R>(static_cast<double>(value));
  } else {
    return static_cast<R>(value);
  }
}

// As Python prints the shortest digits that read back: "1.0", "0.25", "1e-05", "inf".
template <class T>
std::string text_of(T value) {
  std::array<char, 64> text;
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "True" : "False";
  } else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return text_of(static_cast<float>(value));
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "INF" : "-INF";
    const double size = std::fabs(static_cast<double>(value));
    const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                   is_plain ? std::chars_format::fixed : std::chars_format::scientific);
    std::string result(text.data(), end.ptr);
    if (is_plain && result.find('.') == std::string::npos) result += ".0";
    return result;
  }
}

double parse(const std::string& text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const size_t sign = !lower.empty() && (lower[0] == '+' || lower[0] == '-') ? 1 : 0;
  const std::string_view rest = std::string_view(lower).substr(sign);
  const double factor = sign != 0 && lower[0] == '-' ? -1 : 1;
  if (rest == "inf" || rest == "infinity") return factor * std::numeric_limits<double>::infinity();
  if (rest == "nan") return std::numeric_limits<double>::quiet_NaN();
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error == std::errc::invalid_argument || end != rest.data() + rest.size())
    throw Error(ErrorCode::invalid_argument, "Cast: '" + text.substr(0, 40) + "' is not a number");
  return factor * value;
}

uint8_t wrapped(SmallInteger type, double value) {
  return static_cast<uint8_t>(integer_from<int64_t>(value) & ((1 << type.bits) - 1));
}

// Into the types without a C++ type of their own, one element to a byte.
void store_small(Tensor& out, DType to, int64_t i, double value, SmallFloatRounding rounding) {
  auto& byte = static_cast<uint8_t*>(out.mutable_raw())[i];
  if (const auto small = small_integer(to)) {
    byte = wrapped(*small, value);
  } else {
    byte = to_small_float(to, value, rounding);
  }
}

Tensor to_strings(const Tensor& spread, DType from) {
  Tensor result(DType::string, spread.dims());
  auto* out = result.mutable_data<std::string>();
  const bool is_whole = visit_whole(from, [&]<class T>() {
    const auto* in = static_cast<const T*>(spread.raw());
    for (int64_t i = 0; i < spread.size(); ++i) out[i] = text_of(in[i]);
  });
  if (is_whole) return result;
  if (!is_small_float(from) && !small_integer(from)) fail(from, DType::string);
  for (int64_t i = 0; i < spread.size(); ++i) {
    const double value = number_at(spread, from, i);
    out[i] = is_small_float(from) ? text_of(static_cast<float>(value)) : text_of(static_cast<int>(value));
  }
  return result;
}

}  // namespace

double number_at(const Tensor& tensor, DType dtype, int64_t i) {
  double value = 0;
  if (visit_whole(dtype, [&]<class T>() { value = static_cast<double>(static_cast<const T*>(tensor.raw())[i]); }))
    return value;
  const uint8_t bits = static_cast<const uint8_t*>(tensor.raw())[i];
  if (const auto small = small_integer(dtype)) return value_of(*small, bits);
  if (is_small_float(dtype)) return small_float_value(dtype, bits);
  throw Error(ErrorCode::unsupported, "elements of type " + std::string(name_of(dtype)) + " are not numbers");
}

void store_saturated(Tensor& tensor, DType dtype, int64_t i, double value) {
  const double rounded = std::isnan(value) ? 0 : std::nearbyint(value);
  if (const auto small = small_integer(dtype)) {
    const int low = small->is_signed ? -(1 << (small->bits - 1)) : 0;
    const int high = low + (1 << small->bits) - 1;
    static_cast<uint8_t*>(tensor.mutable_raw())[i] =
        wrapped(*small, std::clamp(rounded, static_cast<double>(low), static_cast<double>(high)));
    return;
  }
  visit_native(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      const auto low = static_cast<double>(std::numeric_limits<T>::min());
      const auto high = static_cast<double>(std::numeric_limits<T>::max());
      static_cast<T*>(tensor.mutable_raw())[i] =
          rounded >= high ? std::numeric_limits<T>::max() : static_cast<T>(std::max(rounded, low));
    }
  });
}

Tensor cast_elements(const Tensor& tensor, DType to, SmallFloatRounding rounding) {
  const DType from = tensor.dtype();
  const Tensor spread = spread_elements(tensor);
  if (from == to) return tensor;
  if (to == DType::string) return to_strings(spread, from);
  const bool to_small = is_small_float(to) || small_integer(to).has_value();
  const bool is_packed = to_small && bits_of(to) < 8;
  Tensor result(is_packed ? DType::u8 : to, tensor.dims());
  const auto store = [&](int64_t i, double value) {
    if (to_small) return store_small(result, to, i, value, rounding);
    const bool is_known =
        visit_whole(to, [&]<class R>() { static_cast<R*>(result.mutable_raw())[i] = converted<R>(value); });
    if (!is_known) fail(from, to);
  };
  if (from == DType::string) {
    for (int64_t i = 0; i < tensor.size(); ++i) store(i, parse(tensor.data<std::string>()[i]));
    return is_packed ? pack_elements(result, to) : result;
  }
  bool is_done = false;
  if (!to_small)
    visit_whole(from, [&]<class T>() {
      is_done = visit_whole(to, [&]<class R>() {
        const auto* in = static_cast<const T*>(spread.raw());
        auto* out = static_cast<R*>(result.mutable_raw());
        for (int64_t i = 0; i < spread.size(); ++i) out[i] = converted<R>(in[i]);
      });
    });
  if (is_done) return result;
  for (int64_t i = 0; i < spread.size(); ++i) store(i, number_at(spread, from, i));
  return is_packed ? pack_elements(result, to) : result;
}

}  // namespace lathe
