#include "ops/small_floats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/check.h"

namespace lathe {
namespace {

enum class Special : uint8_t {
  infinities,         // the top exponent holds inf and NaN, as in IEEE 754
  nan_only,           // all ones are NaN, no inf
  nan_is_minus_zero,  // "uz": the code of -0 is NaN, no inf
  none,
};

struct Format {
  int exponent_bits, mantissa_bits, bias;
  Special special;
  int sign_bit() const { return exponent_bits + mantissa_bits; }
  uint32_t largest() const {  // code of the largest finite magnitude
    const uint32_t all = (1u << sign_bit()) - 1;
    if (special == Special::infinities) return (((1u << exponent_bits) - 1) << mantissa_bits) - 1;
    return special == Special::nan_only ? all - 1 : all;
  }
  uint32_t nan() const {
    // Without any code for it NaN becomes -0, as in ONNX's test data.
    if (special == Special::nan_is_minus_zero || special == Special::none) return 1u << sign_bit();
    return (1u << sign_bit()) - 1;
  }
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f8e4m3fn:
      return {4, 3, 7, Special::nan_only};
    case DType::f8e4m3fnuz:
      return {4, 3, 8, Special::nan_is_minus_zero};
    case DType::f8e5m2:
      return {5, 2, 15, Special::infinities};
    case DType::f8e5m2fnuz:
      return {5, 2, 16, Special::nan_is_minus_zero};
    case DType::f4e2m1:
      return {2, 1, 1, Special::none};
    default:
      break;
  }
  LATHE_CHECK(false, "not a small float");
}

constexpr int kScaleBias = 127;
constexpr uint8_t kScaleNan = 0xff;
constexpr int kLargestScale = 254;

uint8_t to_scale(double value, SmallFloatRounding rounding) {
  if (std::isnan(value) || value < 0) return kScaleNan;
  if (value == 0) return rounding.saturates ? 0 : kScaleNan;
  if (std::isinf(value)) return rounding.saturates ? kLargestScale : kScaleNan;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  int code = exponent - 1 + kScaleBias;
  if (rounding.scale == ScaleRounding::up && fraction > 0.5) ++code;
  if (rounding.scale == ScaleRounding::nearest && fraction >= 0.75) ++code;
  if (!rounding.saturates && (code < 0 || code > kLargestScale)) return kScaleNan;
  return static_cast<uint8_t>(std::clamp(code, 0, kLargestScale));
}

}  // namespace

bool is_small_float(DType dtype) {
  switch (dtype) {
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f4e2m1:
    case DType::f8e8m0:
      return true;
    default:
      return false;
  }
}

double small_float_value(DType dtype, uint8_t bits) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (dtype == DType::f8e8m0) return bits == kScaleNan ? kNan : std::ldexp(1.0, bits - kScaleBias);
  const Format format = format_of(dtype);
  const uint32_t magnitude = bits & ((1u << format.sign_bit()) - 1);
  const bool is_negative = (bits >> format.sign_bit() & 1) != 0;
  if (format.special == Special::nan_is_minus_zero && is_negative && magnitude == 0) return kNan;
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const auto mantissa = static_cast<int>(magnitude & ((1u << format.mantissa_bits) - 1));
  double value;
  if (magnitude > format.largest())
    value = format.special == Special::infinities && mantissa == 0 ? std::numeric_limits<double>::infinity() : kNan;
  else if (exponent == 0)
    value = std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  else
    value = std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - format.bias - format.mantissa_bits);
  return is_negative ? -value : value;
}

uint8_t to_small_float(DType dtype, double value, SmallFloatRounding rounding) {
  if (dtype == DType::f8e8m0) return to_scale(value, rounding);
  const Format format = format_of(dtype);
  const bool is_uz = format.special == Special::nan_is_minus_zero;
  const uint32_t sign = std::signbit(value) ? 1u << format.sign_bit() : 0;
  if (std::isnan(value)) {
    return static_cast<uint8_t>(is_uz || format.special == Special::none ? format.nan() : sign | format.nan());
  }
  const double size = std::fabs(value);
  uint32_t code = 0;
  if (std::isinf(size)) {
    code = format.largest() + 1;
  } else if (size != 0) {
    const int exponent = std::max(std::ilogb(size), 1 - format.bias);
    const double units = std::nearbyint(std::ldexp(size, format.mantissa_bits - std::min(exponent, 1000)));
    const double wide = std::ldexp(exponent + format.bias - 1, format.mantissa_bits) + units;
    code = static_cast<uint32_t>(std::min(wide, static_cast<double>(format.largest() + 1)));
  }
  if (code > format.largest()) {
    if (rounding.saturates || format.special == Special::none)
      code = format.largest();
    else if (format.special == Special::infinities)
      code = format.largest() + 1;
    else
      return static_cast<uint8_t>(is_uz ? format.nan() : sign | format.nan());
  }
  if (is_uz && code == 0) return 0;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace lathe
