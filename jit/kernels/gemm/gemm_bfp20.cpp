// Products with a B of block floating point (bfp20.h), whose elements become float32 in registers.
#include "jit/kernels/gemm/bfp20_decode.h"
#include "jit/kernels/gemm/gemm_emitter.h"

namespace lathe {
namespace {

// Bytes of B: between loads that wait, decoding leaves the CPU's own prefetching too little to see. On Zen 4, 2 to 8 KB
// are level.
constexpr int kAhead = 4096;

}  // namespace

void GemmTileEmitter::multiply_bfp20() {
  constexpr auto block_rows = static_cast<int>(Bfp20::kBlockRows), group_rows = static_cast<int>(Bfp20::kGroupRows);
  fill(bfp_upper_mask(), Bfp20Decoder::kUpperMask, tmp_);
  fill(bfp_lower_mask(), Bfp20Decoder::kLowerMask, tmp_);
  Xbyak::Label next_block, next_group;
  L(next_block);
  for (int v = 0; v < plan_.vecs; ++v) load(bfp_scale(v), b_ + v * vec_bytes());
  add(b_, plan_.vecs * vec_bytes());
  mov(tmp_, block_rows);
  cmp(k_left_, tmp_);
  cmovl(tmp_, k_left_);
  sub(k_left_, tmp_);
  align(32);
  L(next_group);
  for (int k = 0; k < group_rows; ++k) add_bfp20_row(k);
  advance_a(group_rows);
  add(b_, static_cast<int>(Bfp20::kGroupWords) * plan_.vecs * vec_bytes());
  sub(tmp_, group_rows);
  jnz(next_group, T_NEAR);
  test(k_left_, k_left_);
  jnz(next_block, T_NEAR);
}

// Row k of a group.
void GemmTileEmitter::add_bfp20_row(int k) {
  const Vec &weights = bfp_weights(), &lower = bfp_lower();
  const Bfp20Decoder decoder{*this, has_masks(), vec_bytes(), bfp_upper_mask(), bfp_lower_mask()};
  prefetch_bfp20(k);
  for (int v = 0; v < plan_.vecs; ++v) {
    const Xbyak::RegExp group = b_ + v * static_cast<int>(Bfp20::kGroupWords) * vec_bytes();
    decoder.emit(weights, lower, group, k);
    vmulps(weights, weights, bfp_scale(v));
    for (int row = 0; row < plan_.rows; ++row) {
      if (has_masks()) {
        vfmadd231ps(acc(row, v), weights, ptr_b[a_at(row, k)]);
      } else {
        broadcast(lower, a_at(row, k));
        vfmadd231ps(acc(row, v), weights, lower);
      }
    }
  }
}

// An eighth of a group's bytes, in the order of memory: in that of the loads, which change from vector to vector, Zen 4
// takes 1.02 to 1.3 times as long.
void GemmTileEmitter::prefetch_bfp20(int k) {
  constexpr auto group_rows = static_cast<int>(Bfp20::kGroupRows);
  const int bytes = static_cast<int>(Bfp20::kGroupWords) * plan_.vecs * vec_bytes();
  const int end = (k + 1) * bytes / group_rows;
  for (int at = round_up(k * bytes / group_rows, kCacheLine); at < end; at += kCacheLine)
    plan_.weights_to_l2 ? prefetcht1(ptr[b_ + kAheadOfL2 + at]) : prefetcht0(ptr[b_ + kAhead + at]);
}

}  // namespace lathe
