#include "ops/int8/int8_large.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kGroupBytes = 4, kVectorBytes = 32;

// Bits of the bytes whose pair's sum is more.
[[gnu::target("avx2")]] uint32_t pairs_beyond(__m256i bytes, int16_t most) noexcept {
  const __m256i sums = _mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi16(sums, _mm256_set1_epi16(most))));
}

template <bool kIsSigned>
[[gnu::target("avx2")]] uint32_t large_pairs(__m256i bytes) noexcept {
  if constexpr (!kIsSigned) return pairs_beyond(bytes, kMostOfNeighbours);
  // -128 becomes 128 of an unsigned byte.
  const __m256i zero = _mm256_setzero_si256(), below = _mm256_abs_epi8(_mm256_min_epi8(bytes, zero));
  return pairs_beyond(_mm256_max_epi8(bytes, zero), kMostOfSignedNeighbours) |
         pairs_beyond(below, kMostOfSignedNeighbours);
}

template <bool kIsSigned>
[[gnu::target("avx2")]] void find_large(const uint8_t* row, int64_t bytes, int64_t part_bytes,
                                        uint8_t* large) noexcept {
  alignas(kVectorBytes) uint8_t rest[kVectorBytes] = {};
  for (int64_t at = 0; at < bytes; at += kVectorBytes) {
    const uint8_t* from = row + at;
    if (bytes - at < kVectorBytes) {
      std::memcpy(rest, from, static_cast<size_t>(bytes - at));
      from = rest;
    }
    uint32_t bits = large_pairs<kIsSigned>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    for (; bits != 0; bits &= bits - 1) large[(at + __builtin_ctz(bits)) / part_bytes] = 1;
  }
}

}  // namespace

int64_t large_parts(const Int8Problem& problem, const GemmPlan& plan) {
  return std::max<int64_t>(1, divide_up(problem.groups(), plan.k_unroll));
}

void find_large_parts(const uint8_t* row, bool is_signed, int64_t bytes, int64_t part_bytes, uint8_t* large) noexcept {
  is_signed ? find_large<true>(row, bytes, part_bytes, large) : find_large<false>(row, bytes, part_bytes, large);
}

BufferId add_large_rows(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                        int64_t a_stride) {
  const RowTiles tiles = row_tiles(l->plan, l->problem.m, l->problem.threads);
  const int64_t parts = large_parts(l->problem, l->plan), part_bytes = l->plan.k_unroll * kGroupBytes;
  const int64_t row_bytes = l->problem.groups() * kGroupBytes;
  const bool is_signed = l->problem.dot == Int8Dot::s8u8_halved;
  const BufferId to = context.scratch(checked_bytes(DType::u8, {tiles.count, parts}));
  Step step;
  step.kernel = "find large bytes";
  step.reads = {a};
  step.writes = {to};
  step.bytes = static_cast<double>(l->problem.m * row_bytes + tiles.count * parts);
  step.threads =
      static_cast<int>(std::min<int64_t>(tiles.count, worthwhile_threads(step.bytes * 2, context.target.threads)));
  step.run = [=](const StepArgs& args) {
    const Range range = split_evenly(tiles.count, args.share, args.shares);
    for (int64_t tile = range.begin; tile < range.end; ++tile) {
      uint8_t* large = args.at<uint8_t>(to) + tile * parts;
      std::fill_n(large, parts, uint8_t{0});
      for (int64_t row = tiles.row_of(tile); row < tiles.row_of(tile + 1); ++row) {
        find_large_parts(args.at<const uint8_t>(a) + row * a_stride, is_signed, row_bytes, part_bytes, large);
      }
    }
  };
  context.add(std::move(step));
  return to;
}

}  // namespace lathe
