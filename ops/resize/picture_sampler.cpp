#include "ops/resize/picture_sampler.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

// Reflected at both borders until it lies between them.
double reflect(double x, double low, double high) {
  const double range = high - low;
  if (range <= 0) return low;
  if (x >= low && x <= high) return x;
  const double beyond = x < low ? low - x : x - high;
  const double turns = std::floor(beyond / range), rest = beyond - turns * range;
  const bool is_even = std::fmod(turns, 2) == 0;
  return (x < low) == is_even ? low + rest : high - rest;
}

// Keys' kernel with a = -0.75.
double cubic(double distance) {
  constexpr double a = -0.75;
  if (distance <= 1) return ((a + 2) * distance - (a + 3)) * distance * distance + 1;
  return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a;
}

// Two neighbouring elements and their weights, which stand for the taps of linear interpolation: these lie side by side
// or are one. Requires: an extent of 2 or more.
struct Pair {
  int64_t first = 0;
  float weight[2] = {};
};
Pair pair_of(const Taps& taps, int64_t extent) {
  int64_t least = extent;
  for (size_t i = 0; i < 2; ++i) least = taps.index[i] < 0 ? least : std::min(least, taps.index[i]);
  Pair pair{std::min(least, extent - 2), {}};
  for (size_t i = 0; i < 2; ++i) {
    if (taps.index[i] >= 0) pair.weight[taps.index[i] - pair.first] += static_cast<float>(taps.weight[i]);
  }
  return pair;
}

// The same at once, where what lies outside is zero.
[[gnu::target("avx2")]] Pair pair_among_zeros(double normalized, int64_t extent, bool aligns_corners) {
  const auto size = static_cast<double>(extent);
  const double exact = aligns_corners ? (normalized + 1) / 2 * (size - 1) : ((normalized + 1) * size - 1) / 2;
  const double x = static_cast<float>(exact);
  // What is a whole element away sees zeros only, as does all beyond; NaN is at the begin.
  const double near = x > -1 ? std::min(x, size) : x <= -1 ? -1.0 : aligns_corners ? 0 : -0.5;
  const double base = std::floor(near);
  const auto first = static_cast<int64_t>(base);
  const auto right = static_cast<float>(near - base), left = static_cast<float>(1 - (near - base));
  Pair pair{std::clamp<int64_t>(first, 0, extent - 2), {}};
  // One before the axis: the second is its first element; at the last: the first is.
  const int64_t shift = first - pair.first;
  pair.weight[0] = shift == 0 ? left : shift == -1 ? right : 0;
  pair.weight[1] = shift == 0 ? right : shift == 1 ? left : 0;
  return pair;
}

// The pairs of one point: [upper row, lower row].
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m128 load_pair(const float* upper, int64_t width) {
  const __m128 first = _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(upper)));
  return _mm_loadh_pi(first, reinterpret_cast<const __m64*>(upper + width));
}

// Eight points at once: their products are added up by pairs of lanes.
[[gnu::target("avx2,fma")]] void mix_pairs(const int32_t* offset, const float* weight, const float* plane,
                                           int64_t width, int64_t count, float* to) {
  int64_t point = 0;
  for (; point + 8 <= count; point += 8) {
    __m256 products[4];
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t even = point + 2 * k;
      const __m256 pairs = _mm256_insertf128_ps(_mm256_castps128_ps256(load_pair(plane + offset[even], width)),
                                                load_pair(plane + offset[even + 1], width), 1);
      products[k] = _mm256_mul_ps(pairs, _mm256_loadu_ps(weight + 4 * even));
    }
    const __m256 first = _mm256_hadd_ps(products[0], products[1]), second = _mm256_hadd_ps(products[2], products[3]);
    // Points 0 2 4 6 in the lower half, 1 3 5 7 in the upper one.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_ps(to + point, _mm256_permutevar8x32_ps(_mm256_hadd_ps(first, second), order));
  }
  for (; point < count; ++point) {
    const float *upper = plane + offset[point], *lower = upper + width, *w = weight + 4 * point;
    to[point] = (upper[0] * w[0] + upper[1] * w[1]) + (lower[0] * w[2] + lower[1] * w[3]);
  }
}

constexpr int64_t kEntries = 2048;  // as many as leave half of L1 to the planes

template <int64_t kTaps>
[[gnu::target("avx2,fma")]] void mix_taps(const int32_t* offset, const float* weight, const float* plane, int64_t count,
                                          float* to) {
  constexpr int64_t kPoints = kEntries / kTaps;
  for (int64_t point = 0; point < count; ++point) {
    float sum = 0;
    for (int64_t tap = 0; tap < kTaps; ++tap) {
      sum += weight[tap * kPoints + point] * plane[offset[tap * kPoints + point]];
    }
    to[point] = sum;
  }
}

}  // namespace

int64_t Sampler::element(int64_t i, int64_t extent, double low, double high) const {
  if (i >= 0 && i < extent) return i;
  if (padding == Padding::zeros) return -1;
  if (padding == Padding::border) return std::clamp<int64_t>(i, 0, extent - 1);
  return std::clamp<int64_t>(static_cast<int64_t>(reflect(static_cast<double>(i), low, high)), 0, extent - 1);
}

[[gnu::target("avx2")]] Taps Sampler::taps(double normalized, int64_t extent) const {
  const auto size = static_cast<double>(extent);
  const double low = aligns_corners ? 0 : -0.5, high = aligns_corners ? size - 1 : size - 0.5;
  double x = aligns_corners ? (normalized + 1) / 2 * (size - 1) : ((normalized + 1) * size - 1) / 2;
  x = static_cast<float>(x);
  if (std::isnan(x)) x = low;
  x = std::clamp(x, -1e15, 1e15);
  if (interpolation == Interpolation::nearest) x = std::nearbyint(x);
  if (x < low || x > high) {
    if (padding == Padding::border) x = std::clamp(x, 0.0, size - 1);
    if (padding == Padding::reflection) x = reflect(x, low, high);
  }
  Taps result;
  const double base = std::floor(x);
  const auto first = static_cast<int64_t>(base);
  const auto add = [&](int64_t i, double weight) {
    result.index[static_cast<size_t>(result.count)] = element(i, extent, low, high);
    result.weight[static_cast<size_t>(result.count++)] = weight;
  };
  const double t = x - base;
  switch (interpolation) {
    case Interpolation::nearest:
      add(static_cast<int64_t>(std::round(x)), 1.0);
      break;
    case Interpolation::linear:
      add(first, 1 - t);
      add(first + 1, t);
      break;
    case Interpolation::cubic:
      for (int64_t i = -1; i <= 2; ++i) add(first + i, cubic(std::fabs(t - static_cast<double>(i))));
      break;
  }
  return result;
}

// Elements of a plane with their weights: tap by tap, or of each point the first element of its two pairs and their
// four weights.
struct PictureSampler::Group {
  std::array<int32_t, kEntries> offset;
  std::array<float, kEntries> weight;
};

int64_t PictureSampler::taps() const {
  const int64_t of_axis = sampler_.interpolation == Interpolation::nearest  ? 1
                          : sampler_.interpolation == Interpolation::linear ? 2
                                                                            : 4;
  return of_axis * of_axis;
}

bool PictureSampler::reads_pairs() const {
  return sampler_.interpolation == Interpolation::linear && extents_.width >= 2 && extents_.height >= 2;
}

// The more there are, the more often a plane that is near is read. Of an image whose points fit one group the threads
// still have a part each.
int64_t PictureSampler::group_points() const {
  const int64_t parts = std::max<int64_t>((threads_ + extents_.images - 1) / std::max<int64_t>(extents_.images, 1), 1);
  return std::clamp<int64_t>((extents_.points + parts - 1) / parts, 1, kEntries / taps());
}

template <class Place>
void PictureSampler::find_taps(const Place* grid, int64_t count, Group& group) const {
  const int64_t stride = kEntries / taps();
  for (int64_t point = 0; point < count; ++point) {
    const Taps across = sampler_.taps(static_cast<double>(grid[2 * point]), extents_.width),
               down = sampler_.taps(static_cast<double>(grid[2 * point + 1]), extents_.height);
    int64_t tap = 0;
    for (size_t y = 0; y < static_cast<size_t>(down.count); ++y) {
      for (size_t x = 0; x < static_cast<size_t>(across.count); ++x, ++tap) {
        const bool is_inside = down.index[y] >= 0 && across.index[x] >= 0;
        const auto at = static_cast<size_t>(tap * stride + point);
        group.offset[at] = is_inside ? static_cast<int32_t>(down.index[y] * extents_.width + across.index[x]) : 0;
        group.weight[at] = is_inside ? static_cast<float>(down.weight[y] * across.weight[x]) : 0.0F;
      }
    }
  }
}

template <class Place>
void PictureSampler::find_pairs(const Place* grid, int64_t count, Group& group) const {
  const auto pair_at = [this](Place normalized, int64_t extent) {
    const auto place = static_cast<double>(normalized);
    if (sampler_.padding == Padding::zeros) return pair_among_zeros(place, extent, sampler_.aligns_corners);
    return pair_of(sampler_.taps(place, extent), extent);
  };
  for (int64_t point = 0; point < count; ++point) {
    const Pair across = pair_at(grid[2 * point], extents_.width), down = pair_at(grid[2 * point + 1], extents_.height);
    const auto at = static_cast<size_t>(point);
    group.offset[at] = static_cast<int32_t>(down.first * extents_.width + across.first);
    for (size_t k = 0; k < 4; ++k) group.weight[4 * at + k] = down.weight[k / 2] * across.weight[k % 2];
  }
}

void PictureSampler::mix_channel(const Group& group, const float* plane, int64_t count, float* to) const {
  const int32_t* offset = group.offset.data();
  const float* weight = group.weight.data();
  if (reads_pairs()) return mix_pairs(offset, weight, plane, extents_.width, count, to);
  if (taps() == 1) mix_taps<1>(offset, weight, plane, count, to);
  if (taps() == 4) mix_taps<4>(offset, weight, plane, count, to);
  if (taps() == 16) mix_taps<16>(offset, weight, plane, count, to);
}

template <class Place>
void PictureSampler::run(const float* x, const Place* grid, float* out, int64_t task) const noexcept {
  const int64_t image = task / groups(), begin = task % groups() * group_points();
  const int64_t count = std::min(group_points(), extents_.points - begin);
  Group group;
  const Place* places = grid + (image * extents_.points + begin) * 2;
  reads_pairs() ? find_pairs(places, count, group) : find_taps(places, count, group);
  for (int64_t c = 0; c < extents_.channels; ++c) {
    const int64_t map = image * extents_.channels + c;
    mix_channel(group, x + map * extents_.height * extents_.width, count, out + map * extents_.points + begin);
  }
}

template void PictureSampler::run(const float*, const float*, float*, int64_t) const noexcept;
template void PictureSampler::run(const float*, const double*, float*, int64_t) const noexcept;

}  // namespace lathe
