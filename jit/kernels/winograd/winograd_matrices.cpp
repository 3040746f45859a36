#include "jit/kernels/winograd/winograd_matrices.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>
#include <string>

#include "jit/kernel.h"

namespace lathe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Zero and pairs p, -p; infinity is the last point. The usual small integers lose up to four times as many digits as
// points around 1 whose product is 1 (measured for six: 7.8e-6 against 2.2e-6 of the largest output, 256 channels).
std::vector<double> points_for(int size) {
  constexpr double kRoot = std::numbers::sqrt2;
  if (size == 4) return {0, 1, -1, kInfinity};
  if (size == 6) return {0, kRoot / 2, -kRoot / 2, kRoot, -kRoot, kInfinity};
  if (size == 7) return {0.5, -0.5, 1, -1, 2, -2, 0};
  if (size == 8) return {0, 1, -1, 0.5, -0.5, 2, -2, kInfinity};
  throw JitError("no Winograd convolution of " + std::to_string(size) + " inputs");
}

// The last is the one that a phase with a tap less does without; chosen by measured errors.
std::vector<double> phase_points_for(int size) {
  constexpr double kRoot = std::numbers::sqrt2;
  if (size == 3) return {0, kInfinity, -1};
  if (size == 4) return {0, 1, -1, kInfinity};
  if (size == 5) return {0.5, -0.5, 1.5, -1.5, kInfinity};
  if (size == 6) return {0, kRoot / 2, -kRoot / 2, kRoot, -kRoot, kInfinity};
  if (size == 7) return {0.5, -0.5, 1, -1, 2, -2, 0};
  throw JitError("no Winograd convolution of stride 2 and " + std::to_string(size) + " inputs");
}

// Coefficients of the product of (x - p) over all finite points but number `without`; lowest power first.
std::vector<double> product(const std::vector<double>& points, int without) {
  std::vector<double> polynomial = {1};
  for (int i = 0; i < static_cast<int>(points.size()); ++i) {
    if (i == without || points[static_cast<size_t>(i)] == kInfinity) continue;
    polynomial.push_back(0);
    for (size_t power = polynomial.size() - 1; power > 0; --power)
      polynomial[power] = polynomial[power - 1] - points[static_cast<size_t>(i)] * polynomial[power];
    polynomial[0] *= -points[static_cast<size_t>(i)];
  }
  return polynomial;
}

Matrix zeros(int rows, int columns) {
  return {rows, columns, std::vector<double>(static_cast<size_t>(rows * columns))};
}

// Rounding leaves traces where a coefficient is zero.
double cleaned(double value) { return std::abs(value) < 1e-12 ? 0 : value; }

WinogradMatrices matrices_of(int outputs, int taps, const std::vector<double>& points) {
  WinogradMatrices made;
  made.outputs = outputs;
  made.taps = taps;
  const int size = made.size();
  made.output = zeros(outputs, size);
  made.weights = zeros(size, taps);
  made.input = zeros(size, size);
  for (int row = 0; row < size; ++row) {
    const double point = points[static_cast<size_t>(row)];
    const std::vector<double> polynomial = product(points, row);
    for (size_t power = 0; power < polynomial.size(); ++power)
      made.input.at(row, static_cast<int>(power)) = cleaned(polynomial[power]);
    if (point == kInfinity) {
      made.output.at(outputs - 1, row) = 1;
      made.weights.at(row, taps - 1) = 1;
      continue;
    }
    double distance = 1;
    for (const double other : points)
      if (other != point && other != kInfinity) distance *= point - other;
    for (int power = 0; power < outputs; ++power) made.output.at(power, row) = std::pow(point, power);
    for (int power = 0; power < taps; ++power) made.weights.at(row, power) = std::pow(point, power) / distance;
    if (taps > 1) continue;
    for (int i = 0; i < size; ++i) made.input.at(row, i) /= distance;
    made.weights.at(row, 0) = 1;
  }
  return made;
}

// The first ones. Half of a pair is replaced by a last point that has none, and infinity by any, as the other phase,
// which takes fewer, can do nothing there.
std::vector<int> part_points(const std::vector<double>& points, int count) {
  std::vector<int> chosen(static_cast<size_t>(count));
  std::iota(chosen.begin(), chosen.end(), 0);
  const double last = points[static_cast<size_t>(count - 1)];
  const bool is_half = static_cast<size_t>(count) < points.size() && points[static_cast<size_t>(count)] == -last;
  if (last == kInfinity || (is_half && (points.back() == 0 || points.back() == kInfinity)))
    chosen.back() = static_cast<int>(points.size()) - 1;
  return chosen;
}

// Where the small convolution's weights differ from those of all points, by a factor for each point, its inputs differ
// instead.
WinogradMatrices part_matrices_of(int outputs, int taps, const std::vector<double>& points, int part) {
  WinogradMatrices made = matrices_of(outputs, taps, points);
  if (part == 0 || part == outputs) return made;
  const std::vector<int> chosen = part_points(points, part + taps - 1);
  std::vector<double> own;
  for (const int point : chosen) own.push_back(points[static_cast<size_t>(point)]);
  const WinogradMatrices small = matrices_of(part, taps, own);
  made.outputs = part;
  made.output = zeros(part, static_cast<int>(points.size()));
  made.input = zeros(static_cast<int>(points.size()), small.size());
  for (int i = 0; i < small.size(); ++i) {
    const int point = chosen[static_cast<size_t>(i)];
    const int tap = own[static_cast<size_t>(i)] == kInfinity ? taps - 1 : 0;
    const double factor = small.weights.at(i, tap) / made.weights.at(point, tap);
    for (int input = 0; input < small.size(); ++input) made.input.at(point, input) = small.input.at(i, input) * factor;
    for (int output = 0; output < part; ++output) made.output.at(output, point) = small.output.at(output, i);
  }
  return made;
}

// Plans ask for the same ones for each convolution.
const WinogradMatrices& made_once(const std::array<int, 5>& key, const std::function<WinogradMatrices()>& make) {
  static std::mutex mutex;
  static std::map<std::array<int, 5>, WinogradMatrices> made;
  const std::lock_guard lock(mutex);
  const auto found = made.find(key);
  return found != made.end() ? found->second : made.emplace(key, make()).first->second;
}

}  // namespace

const WinogradMatrices& winograd_matrices(int outputs, int taps, int part) {
  return made_once({1, outputs, taps, 0, part},
                   [=] { return part_matrices_of(outputs, taps, points_for(outputs + taps - 1), part); });
}

const WinogradMatrices& winograd_phase_matrices(int outputs, int taps, int phase, int part) {
  return made_once({2, outputs, taps, phase, part}, [=] {
    std::vector<double> points = phase_points_for(outputs + (taps + 1) / 2 - 1);
    const int own_taps = (taps + 1 - phase) / 2;
    points.resize(static_cast<size_t>(outputs + own_taps - 1));
    return part_matrices_of(outputs, own_taps, points, part);
  });
}

}  // namespace lathe
