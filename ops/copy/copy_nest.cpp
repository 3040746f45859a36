#include "ops/copy/copy_nest.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ops/copy/byte_transpose.h"
#include "ops/copy/copy_bytes.h"
#include "ops/copy/repeat_elements.h"
#include "src/base/check.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

struct Bytes16 {
  uint64_t halves[2];
};

// Axes with one element go; an axis whose strides continue the next inner one joins it.
std::vector<MoveAxis> merged(std::vector<MoveAxis> axes) {
  std::erase_if(axes, [](const MoveAxis& axis) { return axis.count == 1; });
  std::stable_sort(axes.begin(), axes.end(),
                   [](const MoveAxis& a, const MoveAxis& b) { return std::abs(a.to_stride) > std::abs(b.to_stride); });
  std::vector<MoveAxis> result;
  for (const MoveAxis& axis : axes) {
    if (!result.empty() && result.back().from_stride == axis.count * axis.from_stride &&
        result.back().to_stride == axis.count * axis.to_stride) {
      result.back() = {result.back().count * axis.count, axis.from_stride, axis.to_stride};
    } else {
      result.push_back(axis);
    }
  }
  return result;
}

// Axes come by value: what is stored through a char pointer might else change them, as far as the compiler knows.
template <class T>
void copy_elements(const char* from, char* to, const MoveAxis axis) {
  if (axis.to_stride == static_cast<int64_t>(sizeof(T))) {
    T* out = reinterpret_cast<T*>(to);
    for (int64_t i = 0; i < axis.count; ++i) std::memcpy(out + i, from + i * axis.from_stride, sizeof(T));
    return;
  }
  for (int64_t i = 0; i < axis.count; ++i) {
    std::memcpy(to + i * axis.to_stride, from + i * axis.from_stride, sizeof(T));
  }
}

// How bytes of pixels of three and those of three planes go to each other: for 16 pixels, by plane and by vector of the
// pixels, what _mm_shuffle_epi8 takes from where (0x80: nothing).
struct ShufflesOfThree {
  alignas(16) uint8_t to_planes[3][3][16];  // [plane][vector]
  alignas(16) uint8_t to_pixels[3][3][16];  // [vector][plane]
};
constexpr ShufflesOfThree shuffles_of_three() {
  ShufflesOfThree shuffles{};
  for (int plane = 0; plane < 3; ++plane) {
    for (int vector = 0; vector < 3; ++vector) {
      for (int i = 0; i < 16; ++i) {
        const int place = 3 * i + plane, byte = 16 * vector + i;
        shuffles.to_planes[plane][vector][i] = static_cast<uint8_t>(place / 16 == vector ? place % 16 : 0x80);
        shuffles.to_pixels[vector][plane][i] = static_cast<uint8_t>(byte % 3 == plane ? byte / 3 : 0x80);
      }
    }
  }
  return shuffles;
}
constexpr ShufflesOfThree kShufflesOfThree = shuffles_of_three();

[[gnu::target("ssse3")]] __m128i shuffled(const __m128i (&vectors)[3], const uint8_t (&tables)[3][16]) {
  __m128i all = _mm_setzero_si128();
  for (int k = 0; k < 3; ++k) {
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(tables[k]));
    all = _mm_or_si128(all, _mm_shuffle_epi8(vectors[k], table));
  }
  return all;
}

// `count` pixels of three bytes to three planes, `plane_stride` apart.
[[gnu::target("ssse3")]] void split_threes(const char* from, int64_t count, char* to, int64_t plane_stride) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m128i pixels[3];
    for (int k = 0; k < 3; ++k) pixels[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 3 * i + 16 * k));
    for (int plane = 0; plane < 3; ++plane) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + plane * plane_stride + i),
                       shuffled(pixels, kShufflesOfThree.to_planes[plane]));
    }
  }
  for (; i < count; ++i) {
    for (int plane = 0; plane < 3; ++plane) to[plane * plane_stride + i] = from[3 * i + plane];
  }
}

// The way back.
[[gnu::target("ssse3")]] void join_threes(const char* from, int64_t plane_stride, int64_t count, char* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    __m128i planes[3];
    for (int k = 0; k < 3; ++k)
      planes[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k * plane_stride + i));
    for (int vector = 0; vector < 3; ++vector) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * i + 16 * vector),
                       shuffled(planes, kShufflesOfThree.to_pixels[vector]));
    }
  }
  for (; i < count; ++i) {
    for (int plane = 0; plane < 3; ++plane) to[3 * i + plane] = from[plane * plane_stride + i];
  }
}

// Eight by eight elements of 16 bits: rows of the input become columns, by three rounds of interleaving.
void transpose_halves(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  __m128i in[8], pairs[8], quads[8];
  for (int i = 0; i < 8; ++i) in[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm_unpacklo_epi16(in[2 * i], in[2 * i + 1]);
    pairs[2 * i + 1] = _mm_unpackhi_epi16(in[2 * i], in[2 * i + 1]);
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 2; ++i) {
      quads[4 * half + 2 * i] = _mm_unpacklo_epi32(pairs[4 * half + i], pairs[4 * half + 2 + i]);
      quads[4 * half + 2 * i + 1] = _mm_unpackhi_epi32(pairs[4 * half + i], pairs[4 * half + 2 + i]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    auto* out = reinterpret_cast<__m128i*>(to + 2 * i * to_stride);
    auto* next = reinterpret_cast<__m128i*>(to + (2 * i + 1) * to_stride);
    _mm_storeu_si128(out, _mm_unpacklo_epi64(quads[i], quads[4 + i]));
    _mm_storeu_si128(next, _mm_unpackhi_epi64(quads[i], quads[4 + i]));
  }
}

// In square tiles, so that lines of both sides stay in L1. 16: as many lines as L1 has ways to spare.
template <class T>
void transpose_tiles(const char* from, char* to, const MoveAxis rows, const MoveAxis columns) {
  constexpr int64_t kTile = 16;
  for (int64_t c0 = 0; c0 < columns.count; c0 += kTile) {
    const int64_t c_end = std::min(columns.count, c0 + kTile);
    for (int64_t r0 = 0; r0 < rows.count; r0 += kTile) {
      const int64_t r_end = std::min(rows.count, r0 + kTile);
      if constexpr (sizeof(T) == 2) {
        if (c_end - c0 == kTile && r_end - r0 == kTile) {
          for (int64_t part = 0; part < 4; ++part) {
            const int64_t r = r0 + part % 2 * 8, c = c0 + part / 2 * 8;
            transpose_halves(from + r * rows.from_stride + c * 2, rows.from_stride, to + c * columns.to_stride + r * 2,
                             columns.to_stride);
          }
          continue;
        }
      }
      if constexpr (sizeof(T) == 1) {
        if (c_end - c0 == kTile && r_end - r0 == kTile) {
          ByteTile tile;
          for (int r = 0; r < kTile; ++r) tile.load_row(r, from + (r0 + r) * rows.from_stride + c0);
          tile.transpose();
          for (int c = 0; c < kTile; ++c) tile.store_row(c, to + (c0 + c) * columns.to_stride + r0);
          continue;
        }
      }
      for (int64_t c = c0; c < c_end; ++c) {
        T* out = reinterpret_cast<T*>(to + c * columns.to_stride);
        const char* in = from + c * static_cast<int64_t>(sizeof(T));
        for (int64_t r = r0; r < r_end; ++r) std::memcpy(out + r, in + r * rows.from_stride, sizeof(T));
      }
    }
  }
}

template <class Body>
void with_element(size_t bytes, Body body) {
  switch (bytes) {
    case 1:
      return body(uint8_t());
    case 2:
      return body(uint16_t());
    case 4:
      return body(uint32_t());
    case 8:
      return body(uint64_t());
    case 16:
      return body(Bytes16());
    default:
      LATHE_CHECK(false, "an element of 1, 2, 4, 8 or 16 bytes");
  }
}

// Short runs: a call of memcpy costs more than they do.
template <int64_t kBytes>
void copy_short_runs(const char* from, char* to, const MoveAxis loop) {
  for (int64_t i = 0; i < loop.count; ++i) std::memcpy(to + i * loop.to_stride, from + i * loop.from_stride, kBytes);
}

void copy_runs(const char* from, char* to, const MoveAxis loop, int64_t bytes) {
  switch (bytes) {
    case 2:
      return copy_short_runs<2>(from, to, loop);
    case 4:
      return copy_short_runs<4>(from, to, loop);
    case 8:
      return copy_short_runs<8>(from, to, loop);
    case 12:
      return copy_short_runs<12>(from, to, loop);
    case 16:
      return copy_short_runs<16>(from, to, loop);
    case 32:
      return copy_short_runs<32>(from, to, loop);
    case 48:
      return copy_short_runs<48>(from, to, loop);
    case 64:
      return copy_short_runs<64>(from, to, loop);
    case 128:
      return copy_short_runs<128>(from, to, loop);
    default:
      break;
  }
  if (bytes > 16 && bytes < 32) {
    const int64_t rest = bytes - 16;
    copy_short_runs<16>(from, to, loop);
    return copy_short_runs<16>(from + rest, to + rest, loop);
  }
  for (int64_t i = 0; i < loop.count; ++i)
    copy_bytes(to + i * loop.to_stride, from + i * loop.from_stride, static_cast<size_t>(bytes));
}

}  // namespace

CopyNest::CopyNest(std::vector<MoveAxis> axes, size_t element_bytes, Isa isa) : element_bytes_(element_bytes) {
  is_empty_ = std::any_of(axes.begin(), axes.end(), [](const MoveAxis& axis) { return axis.count == 0; });
  if (is_empty_) return;
  outer_ = merged(std::move(axes));
  const auto take = [&](auto wanted) -> std::optional<MoveAxis> {
    const auto found = std::find_if(outer_.begin(), outer_.end(), wanted);
    if (found == outer_.end()) return std::nullopt;
    const MoveAxis axis = *found;
    outer_.erase(found);
    return axis;
  };
  const auto to_bytes = [&](MoveAxis axis) {
    const auto size = static_cast<int64_t>(element_bytes_);
    return MoveAxis{axis.count, axis.from_stride * size, axis.to_stride * size};
  };
  run_bytes_ = static_cast<int64_t>(element_bytes_);
  if (const auto run = take([](const MoveAxis& a) { return a.from_stride == 1 && a.to_stride == 1; })) {
    run_bytes_ *= run->count;
  } else if (const auto rows = take([](const MoveAxis& a) { return a.to_stride == 1; })) {
    const auto columns = take([](const MoveAxis& a) { return a.from_stride == 1; });
    kind_ = columns && rows->from_stride != 0 ? Inner::transpose : Inner::elements;
    rows_ = to_bytes(*rows);
    if (columns) columns_ = to_bytes(*columns);
    if (columns && kind_ == Inner::elements) outer_.push_back(*columns);
    if (kind_ == Inner::transpose && element_bytes_ == 4 && rows->from_stride > 0) {
      kernel_ = transpose_kernel(plan_transpose(isa, rows->count, columns->count));
    }
  } else if (!outer_.empty()) {
    kind_ = Inner::elements;
    rows_ = to_bytes(outer_.back());
    outer_.pop_back();
  }
  for (MoveAxis& axis : outer_) axis = to_bytes(axis);
}

double CopyNest::bytes() const {
  if (is_empty_) return 0;
  double total = 2 * static_cast<double>(kind_ == Inner::run ? run_bytes_ : rows_.count * run_bytes_);
  if (kind_ == Inner::transpose) total *= static_cast<double>(columns_.count);
  for (const MoveAxis& axis : outer_) total *= static_cast<double>(axis.count);
  return total;
}

std::string CopyNest::to_string() const {
  if (kind_ == Inner::run) return "copy runs of " + std::to_string(run_bytes_) + " bytes";
  if (kind_ == Inner::elements) return "copy elements of " + std::to_string(element_bytes_) + " bytes";
  return "transpose " + std::to_string(rows_.count) + "x" + std::to_string(columns_.count) + " of " +
         std::to_string(element_bytes_) + " bytes";
}

void CopyNest::run(const void* from, void* to) const {
  if (!is_empty_) walk(0, static_cast<const char*>(from), static_cast<char*>(to));
}

CopyNest::Part CopyNest::part(int thread, int threads) const {
  Part part{*this};
  if (threads == 1 || is_empty_) return part;
  CopyNest& nest = part.nest;
  // The longest axis is split: outer ones first, then the inner loop's own.
  const auto longest = std::max_element(nest.outer_.begin(), nest.outer_.end(),
                                        [](const MoveAxis& a, const MoveAxis& b) { return a.count < b.count; });
  MoveAxis* split = longest != nest.outer_.end() ? &*longest : nullptr;
  int64_t unit = 1;
  if (split == nullptr || split->count < threads) {
    if (kind_ == Inner::run && run_bytes_ > 4096) {
      const Range lines = split_evenly((run_bytes_ + 63) / 64, thread, threads);
      part.from_bytes = part.to_bytes = lines.begin * 64;
      nest.run_bytes_ = std::min<int64_t>(lines.end * 64, run_bytes_) - part.from_bytes;
      return part;
    }
    if (kind_ == Inner::transpose && columns_.count >= 16 * threads) {
      split = &nest.columns_;
      unit = 16;  // a tile
    } else if (kind_ == Inner::elements) {
      split = &nest.rows_;
    }
  }
  if (split == nullptr) {
    nest.is_empty_ = thread != 0;
    return part;
  }
  const Range units = split_evenly((split->count + unit - 1) / unit, thread, threads);
  const int64_t begin = units.begin * unit, end = std::min<int64_t>(units.end * unit, split->count);
  nest.is_empty_ = begin >= end;
  part.from_bytes = begin * split->from_stride;
  part.to_bytes = begin * split->to_stride;
  split->count = end - begin;
  return part;
}

bool CopyNest::repeats() const {
  return kind_ == Inner::elements && rows_.from_stride == 0 && rows_.to_stride == static_cast<int64_t>(element_bytes_);
}

void CopyNest::walk(size_t axis, const char* from, char* to) const {
  if (axis == outer_.size()) return inner(from, to);
  const MoveAxis& loop = outer_[axis];
  if (axis + 1 == outer_.size() && kind_ == Inner::run) return copy_runs(from, to, loop, run_bytes_);
  if (axis + 1 == outer_.size() && repeats()) return repeat_elements(from, to, loop, rows_.count, element_bytes_);
  for (int64_t i = 0; i < loop.count; ++i) walk(axis + 1, from + i * loop.from_stride, to + i * loop.to_stride);
}

void CopyNest::inner(const char* from, char* to) const {
  if (kind_ == Inner::run) {
    copy_bytes(to, from, static_cast<size_t>(run_bytes_));
    return;
  }
  if (kind_ == Inner::transpose) return transpose(from, to);
  if (repeats()) return repeat_elements(from, to, {1, 0, 0}, rows_.count, element_bytes_);
  with_element(element_bytes_, [&](auto element) { copy_elements<decltype(element)>(from, to, rows_); });
}

void CopyNest::transpose(const char* from, char* to) const {
  if (kernel_) return kernel_(from, to, rows_.from_stride, columns_.to_stride, rows_.count, columns_.count);
  if (element_bytes_ == 1 && columns_.count == 3 && rows_.from_stride == 3)
    return split_threes(from, rows_.count, to, columns_.to_stride);
  if (element_bytes_ == 1 && rows_.count == 3 && columns_.to_stride == 3)
    return join_threes(from, rows_.from_stride, columns_.count, to);
  with_element(element_bytes_, [&](auto element) { transpose_tiles<decltype(element)>(from, to, rows_, columns_); });
}

}  // namespace lathe
