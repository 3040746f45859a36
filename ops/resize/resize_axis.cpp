#include "ops/resize/resize_axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace lathe {
namespace {

// Where output position x lies on the input's axis; nullopt: outside, with an extrapolation value. `Real`: what it is
// computed in.
template <class Real>
std::optional<Real> source_of(const ResizeMode& mode, const ResizeAxis& axis, int64_t position) {
  const auto x = static_cast<Real>(position), in = static_cast<Real>(axis.in), scale = static_cast<Real>(axis.scale);
  const Real out = scale * in, half = Real(0.5);  // not rounded
  const std::string& kind = mode.coordinates;
  if (kind == "align_corners") {
    // The last position of a picture is its last pixel: a product that is rounded does not tell how many there are.
    const Real positions = std::is_same_v<Real, float> ? static_cast<Real>(axis.out) : out;
    return positions == 1 ? 0 : x * (in - 1) / (positions - 1);
  }
  if (kind == "asymmetric") return x / scale;
  if (kind == "tf_crop_and_resize") {
    const auto begin = static_cast<Real>(axis.roi_begin), end = static_cast<Real>(axis.roi_end);
    const Real span = (end - begin) * (in - 1);
    const Real at = (out == 1 ? span / 2 : x * span / (out - 1)) + begin * (in - 1);
    if (!(at >= 0 && at <= in - 1)) return std::nullopt;
    return at;
  }
  if (kind == "tf_half_pixel_for_nn") return (x + half) / scale;
  if (kind == "pytorch_half_pixel") return out == 1 ? -half : (x + half) / scale - half;
  if (kind == "half_pixel_symmetric") {
    const Real adjustment = static_cast<Real>(axis.out) / out;
    return in / 2 * (1 - adjustment) + (x + half) / scale - half;
  }
  return (x + half) / scale - half;
}

double linear_weight(double distance) { return std::max(0.0, 1 - std::abs(distance)); }

double cubic_weight(double distance, double a) {
  const double x = std::abs(distance);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// Ties between neighbours fall as in ONNX Runtime, which takes what float32 leaves within 1e-6 of a half for one.
int64_t nearest_of(const std::string& rule, double at) {
  constexpr double kNearTie = 1e-6;
  const double low = std::floor(at), fraction = at - low;
  bool up = fraction > 0.5 + kNearTie;  // round_prefer_floor
  if (rule == "round_prefer_ceil") up = fraction >= 0.5 - kNearTie;
  if (rule == "floor" || rule == "simple") up = false;
  if (rule == "ceil") up = fraction > 0;
  return static_cast<int64_t>(low) + up;
}

// Requires: |at| is within a small factor of the axis.
ResizeTerms weighted_terms(const ResizeMode& mode, const ResizeAxis& axis, double at) {
  const bool is_cubic = mode.mode == "cubic";
  const double reach = is_cubic ? 2 : 1;
  const double shrink = mode.antialias ? std::min(axis.scale, 1.0) : 1.0;
  const auto base = static_cast<int64_t>(std::ceil(at)) - 1;  // the fraction is in (0, 1]
  const auto first = base + static_cast<int64_t>(std::floor(-reach / shrink)) + 1;
  const int64_t last = 2 * base + 1 - first;
  ResizeTerms terms;
  double sum = 0;
  for (int64_t i = first; i <= last; ++i) {
    const double distance = (static_cast<double>(i) - at) * shrink;
    double weight = is_cubic ? cubic_weight(distance, mode.cubic_coefficient) : linear_weight(distance);
    if (mode.exclude_outside && (i < 0 || i >= axis.in)) weight = 0;
    if (weight == 0) continue;
    sum += weight;
    const int64_t index = std::clamp<int64_t>(i, 0, axis.in - 1);
    if (!terms.empty() && terms.back().index == index) {
      terms.back().weight += weight;
    } else {
      terms.push_back({index, weight});
    }
  }
  if ((mode.antialias || mode.exclude_outside) && sum != 0) {
    for (ResizeTerm& term : terms) term.weight /= sum;
  }
  if (terms.empty()) terms.push_back({std::clamp<int64_t>(base, 0, axis.in - 1), 0});
  return terms;
}

}  // namespace

std::vector<ResizeTerms> resize_terms(const ResizeMode& mode, const ResizeAxis& axis) {
  std::vector<ResizeTerms> all(static_cast<size_t>(axis.out));
  const auto in = static_cast<double>(axis.in);
  const bool is_nearest = mode.mode == "nearest";
  for (int64_t x = 0; x < axis.out; ++x) {
    // As ONNX Runtime, which computes in float32: 3.5 / 0.35 is 10 there, and 10.0000002 by the float64 of that scale.
    const std::optional<double> found =
        is_nearest ? std::optional<double>(source_of<float>(mode, axis, x)) : source_of<double>(mode, axis, x);
    if (!found) continue;
    double at = *found;
    // Positions far outside see the border only, whatever their distance.
    if (!std::isfinite(at)) at = 0;
    at = std::clamp(at, -in - 4, 2 * in + 4);
    if (is_nearest) {
      all[static_cast<size_t>(x)] = {{std::clamp<int64_t>(nearest_of(mode.nearest, at), 0, axis.in - 1), 1}};
    } else {
      all[static_cast<size_t>(x)] = weighted_terms(mode, axis, at);
    }
  }
  return all;
}

}  // namespace lathe
