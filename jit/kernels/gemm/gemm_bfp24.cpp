// Products with a B of block floating point of 24 bits (bfp24.h): its integers become float32 in registers, and the
// sums are scaled when they are complete.
#include <cstddef>

#include "jit/kernels/gemm/bfp20_decode.h"
#include "jit/kernels/gemm/bfp24.h"
#include "jit/kernels/gemm/gemm_emitter.h"

namespace lathe {

void GemmTileEmitter::load_bfp24(const Vec& into, int row, int v) {
  const Xbyak::RegExp group = b_ + v * Bfp24::kGroupWords * vec_bytes();
  if (row < Bfp24::kGroupWords) return vcvtdq2ps(into, ptr[group + row * vec_bytes()]);
  gather_bytes(into, group);
  vcvtdq2ps(into, into);
}

// The lowest bytes of a group's words become one integer.
void GemmTileEmitter::gather_bytes(const Vec& into, const Xbyak::RegExp& group) {
  constexpr int kAll = 32;
  const auto at = [&](int i) { return group + i * vec_bytes(); };
  const auto lowest_byte = [&](const Vec& vec, int i) {
    shift_words(*this, has_masks(), vec, at(i), kAll - Bfp24::kByte);
  };
  const Vec& byte_of_word = bfp_bytes();
  lowest_byte(into, Bfp24::kGroupWords - 1);
  for (int i = 0; i + 1 < Bfp24::kGroupWords; ++i) {
    lowest_byte(byte_of_word, i);
    vpsrld(byte_of_word, byte_of_word, static_cast<uint8_t>((Bfp24::kGroupWords - 1 - i) * Bfp24::kByte));
    vorps(into, into, byte_of_word);
  }
}

void GemmTileEmitter::scale_bfp24() {
  mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, b_scales)]);
  for (int v = 0; v < plan_.vecs; ++v) {
    load(work_[0], tmp_ + v * vec_bytes());
    for (int row = 0; row < plan_.rows; ++row) vmulps(acc(row, v), acc(row, v), work_[0]);
  }
}

}  // namespace lathe
