#pragma once
// Base of the emitters that walk rows of float32: loops over columns with a masked tail, folds across lanes.
#include <span>

#include "jit/kernels/common/int8_lanes.h"
#include "src/base/expression.h"

namespace lathe {

// x0 under one operator, for EpilogueEmitter.
Expression unary_expression(ExprOp op);

class RowEmitter : public Int8Emitter {
 protected:
  explicit RowEmitter(Isa isa) : Int8Emitter(isa) {}

  // Sets the mask of the last columns % lanes columns. Clobbers `temp`; k1 on AVX-512, else a claimed vector holds it.
  // emit_tables() must follow the code's end.
  void prepare_tail(const Gpr& columns, const Gpr& temp);
  void emit_tables();

  // body(vectors, is_tail) for all columns: `unroll` vectors at a time, then single ones, then the masked tail. The
  // bytes from the row's begin are in `offset`.
  template <class Body>
  void for_columns(const Gpr& columns, const Gpr& offset, const Gpr& left, int unroll, Body body) {
    mov(left, columns);
    xor_(offset.cvt32(), offset.cvt32());
    const auto whole = [&](int vectors) {
      while_at_least(left, vectors * lanes(), [&] {
        body(vectors, false);
        add(offset, vectors * vec_bytes());
      });
    };
    if (unroll > 1) whole(unroll);
    whole(1);
    Xbyak::Label done;
    test(left, left);
    jz(done, T_NEAR);
    body(1, true);
    L(done);
  }

  // A whole vector or the tail; lanes behind the tail read as 0.
  void load_part(const Vec& vec, const Xbyak::RegExp& at, bool is_tail);
  void store_part(const Xbyak::RegExp& at, const Vec& vec, bool is_tail);
  // 1, 2 or 4 vectors as bytes, or the tail of one, at to + offset / 4. Clobbers them, `temp`, `at`, and on AVX2 with a
  // tail `left`: the number of columns in it. emit_requantization() must follow the code's end.
  struct ByteRow {
    const Gpr &to, &offset, &at, &left;
  };
  void store_bytes(const ByteRow& row, std::span<const Vec> vecs, bool is_tail, const Int8Store& how, const Vec& temp);
  void clear_behind_tail(const Vec& vec);                      // lanes behind the tail become 0
  void fill_behind_tail(const Vec& vec, const Vec& fill);      // ... become those of `fill`
  void set_all(const Vec& vec, float value, const Gpr& temp);  // a constant in all lanes

  // Every lane becomes op over all lanes whose number is the same modulo `apart`: 1, 2, 4 or 8; op(into, a, b) emits
  // one instruction at any width.
  template <class Op>
  void fold_lanes(const Vec& vec, const Vec& temp, Op op, int apart = 1) {
    const Xbyak::Xmm low(vec.getIdx()), high(temp.getIdx());
    const Xbyak::Ymm wide_low(vec.getIdx()), wide_high(temp.getIdx());
    if (has_masks()) {
      vextractf64x4(wide_high, Xbyak::Zmm(vec.getIdx()), 1);
      op(wide_low, wide_low, wide_high);
    }
    if (apart < 8) {
      has_masks() ? vextractf32x4(high, wide_low, 1) : vextractf128(high, wide_low, 1);
      op(low, low, high);
    }
    if (apart < 4) {
      vmovhlps(high, low, low);
      op(low, low, high);
    }
    if (apart < 2) {
      vshufps(high, low, low, 0x55);
      op(low, low, high);
    }
    spread_lanes(vec, apart);
  }

 private:
  void spread_lanes(const Vec& vec, int count);  // the first ones over all

  Vec mask_;
  Xbyak::Label mask_table_;
  bool uses_table_ = false;
};

}  // namespace lathe
