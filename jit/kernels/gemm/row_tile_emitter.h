#pragma once
// Base of the emitters of product tiles: a tile's rows of A, read by broadcasts of 4 bytes (a float32, a pair of
// bfloat16, a group of bytes), and the loop over k.
#include <algorithm>
#include <vector>

#include "jit/emitter.h"

namespace lathe {

class RowTileEmitter : public Emitter {
 protected:
  static constexpr int kStepBytes = 4;  // of A, for each step of k
  static constexpr int kRowsPerBase =
      9;  // rows that one base register reaches with strides 1, 3, 5, 7 scaled by 1, 2, 4, 8

  RowTileEmitter(Isa isa, int rows) : Emitter(isa), rows_(rows) {
    for (int base = 0; base * kRowsPerBase < rows; ++base) a_.push_back(claim_gpr("a"));
  }

  // Row r is at a_[r / 9] + (r % 9) * stride: strides 1, 3, 5, 7 and the scales 1, 2, 4, 8 reach 0 .. 8.
  void point_at_a(const Xbyak::Address& first, const Xbyak::Address& stride_bytes) {
    mov(a_[0], first);
    mov(a_stride_[0], stride_bytes);
    const int reach = std::min(rows_ - 1, kRowsPerBase);
    if (reach >= 3) lea(a_stride_[1], ptr[a_stride_[0] + a_stride_[0] * 2]);
    if (reach >= 5) lea(a_stride_[2], ptr[a_stride_[0] + a_stride_[0] * 4]);
    if (reach >= 7) lea(a_stride_[3], ptr[a_stride_[1] + a_stride_[0] * 4]);
    for (size_t base = 1; base < a_.size(); ++base) {
      lea(a_[base], ptr[a_[base - 1] + a_stride_[0] * 8]);
      add(a_[base], a_stride_[0]);
    }
  }
  Xbyak::RegExp a_at(int row, int step) const {
    const Gpr& base = a_[static_cast<size_t>(row / kRowsPerBase)];
    const int number = row % kRowsPerBase;
    if (number == 0) return base + step * kStepBytes;
    int odd = number, scale = 1;
    for (; odd % 2 == 0; odd /= 2) scale *= 2;
    return base + a_stride_[static_cast<size_t>(odd / 2)] * scale + step * kStepBytes;
  }
  void advance_a(int steps) {
    for (const Gpr& base : a_) add(base, steps * kStepBytes);
  }

  // body(steps) for `left` >= 0 steps: `unroll` at a time, then one by one. The prefetches belong to the first form
  // (the second, when nothing is unrolled).
  template <class Body>
  void for_steps(const Gpr& left, int unroll, Body body) {
    Xbyak::Label unrolled, rest, single, done;
    if (unroll > 1) {
      sub(left, unroll);
      jl(rest, T_NEAR);
      align(32);
      L(unrolled);
      body(unroll, true);
      sub(left, unroll);
      jge(unrolled, T_NEAR);
      L(rest);
      add(left, unroll);
    } else {
      test(left, left);
    }
    jz(done, T_NEAR);
    L(single);
    body(1, unroll == 1);
    dec(left);
    jnz(single, T_NEAR);
    L(done);
  }

  const int rows_;
  const std::vector<Gpr> a_stride_ = {claim_gpr("a_stride"), claim_gpr("3 a_stride"), claim_gpr("5 a_stride"),
                                      claim_gpr("7 a_stride")};
  std::vector<Gpr> a_;  // of rows 0, 9, 18, 27
};

// Spreads `lines` prefetches evenly over `slots` places: call prefetch(line) as often as it asks at each of them.
class PrefetchPace {
 public:
  PrefetchPace(int slots, int lines) : slots_(slots), lines_(lines) {}
  template <class Prefetch>
  void next_slot(Prefetch prefetch) {
    for (; done_ < lines_ && done_ * slots_ <= slot_ * lines_; ++done_) prefetch(done_);
    ++slot_;
  }

 private:
  int slots_, lines_, slot_ = 0, done_ = 0;
};

}  // namespace lathe
