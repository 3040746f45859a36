#pragma once
// How the elements of a packed B lie. Products of few rows wait for memory alone, and take them in fewer bits.
#include <cstdint>
#include <string_view>

#include "jit/kernels/gemm/bfp20.h"
#include "jit/kernels/gemm/bfp24.h"
#include "src/base/divide.h"

namespace lathe {

// f16, bf16: of 16 bits, which become float32 as they are loaded, where B's elements are such numbers; the last of an
// odd number of rows has another of no meaning behind it.
enum class WeightFormat : uint8_t { f32, bfp20, f16, bf16, bfp24 };

constexpr std::string_view name_of(WeightFormat format) {
  constexpr std::string_view kNames[] = {"f32", "bfp20", "f16", "bf16", "bfp24"};
  return kNames[static_cast<size_t>(format)];
}

constexpr bool has_16_bits(WeightFormat format) { return format == WeightFormat::f16 || format == WeightFormat::bf16; }

// A product may be cut into blocks of k at multiples of so many rows.
constexpr int64_t unit_rows(WeightFormat format) {
  if (format == WeightFormat::bfp24) return Bfp24::kGroupRows;
  return format == WeightFormat::bfp20 ? Bfp20::kBlockRows : has_16_bits(format) ? 2 : 1;
}

// Words of 32 bits of a column of k rows. Requires: k is a multiple of Bfp20::kGroupRows or Bfp24::kGroupRows.
constexpr int64_t words_of(WeightFormat format, int64_t k) {
  if (format == WeightFormat::bfp24) return Bfp24::words(k);
  return format == WeightFormat::bfp20 ? Bfp20::words(k) : has_16_bits(format) ? divide_up(k, 2) : k;
}

// Of these before row k, at which a block of k may begin.
constexpr int64_t words_before(WeightFormat format, int64_t k) {
  return format == WeightFormat::bfp24 ? Bfp24::row_words(k) : words_of(format, k);
}

}  // namespace lathe
