#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lathe {

// memcpy for pieces of some hundred to some thousand bytes whose source lies anywhere, as rows of a table in a file do:
// the C library has the CPU's own string copy do it from 2 KiB on, which takes four times as long where source and
// target are not aligned alike.
[[gnu::target("avx2")]] inline void copy_bytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kLeast = 64, kMost = 16384, kVector = 32;
  if (bytes < kLeast || bytes > kMost) {
    std::memcpy(to, from, bytes);
    return;
  }
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  const __m256i last = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + bytes - kVector));
  size_t i = 0;
  for (; i + 4 * kVector <= bytes; i += 4 * kVector) {
    const auto* source = reinterpret_cast<const __m256i*>(in + i);
    auto* target = reinterpret_cast<__m256i*>(out + i);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_storeu_si256(target, a);
    _mm256_storeu_si256(target + 1, b);
    _mm256_storeu_si256(target + 2, c);
    _mm256_storeu_si256(target + 3, d);
  }
  for (; i + kVector <= bytes; i += kVector) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), a);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + bytes - kVector), last);
}

}  // namespace lathe
