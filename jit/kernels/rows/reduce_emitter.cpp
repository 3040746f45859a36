#include "jit/kernels/rows/reduce_emitter.h"

#include <bit>

namespace lathe {

Expression unary_expression(ExprOp op) {
  Expression expression;
  expression.inputs = {DType::f32};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = op, .a = 0});
  return expression;
}

void RowEmitter::prepare_tail(const Gpr& columns, const Gpr& temp) {
  mov(temp, columns);
  and_(temp, lanes() - 1);
  if (has_masks()) {
    // Lanes are 16 at most: (1 << tail) - 1 by bzhi from all ones.
    const Gpr ones = claim_gpr("ones");
    mov(ones.cvt32(), 0xffff);
    bzhi(ones.cvt32(), ones.cvt32(), temp.cvt32());
    kmovw(k1, ones.cvt32());
    release(ones);
    return;
  }
  uses_table_ = true;
  mask_ = claim_vec("tail mask");
  const Gpr table = claim_gpr("mask table");
  lea(table, ptr[rip + mask_table_]);
  neg(temp);
  vmovups(mask_, ptr[table + temp * 4 + lanes() * 4]);
  release(table);
}

void RowEmitter::emit_tables() {
  if (!uses_table_) return;
  align(32);
  L(mask_table_);
  for (int i = 0; i < lanes(); ++i) dd(0xffffffff);
  for (int i = 0; i < lanes(); ++i) dd(0);
}

void RowEmitter::load_part(const Vec& vec, const Xbyak::RegExp& at, bool is_tail) {
  if (!is_tail) return load(vec, at);
  if (has_masks()) {
    vmovups(vec | k1 | T_z, ptr[at]);
  } else {
    vmaskmovps(vec, mask_, ptr[at]);
  }
}

void RowEmitter::store_part(const Xbyak::RegExp& at, const Vec& vec, bool is_tail) {
  if (!is_tail) return store(at, vec);
  if (has_masks()) {
    vmovups(ptr[at] | k1, vec);
  } else {
    vmaskmovps(ptr[at], mask_, vec);
  }
}

void RowEmitter::store_bytes(const ByteRow& row, std::span<const Vec> vecs, bool is_tail, const Int8Store& how,
                             const Vec& temp) {
  mov(row.at, row.offset);
  shr(row.at, 2);
  add(row.at, row.to);
  if (!is_tail) return store_requantized(row.at, vecs, how, temp);
  if (has_masks()) {
    requantize(vecs, how, temp);
    return vmovdqu8(ptr[row.at] | k1, Xbyak::Xmm(vecs[0].getIdx()));
  }
  constexpr int kBelow = 16;  // in the red zone: these kernels call nothing
  store_requantized(rsp - kBelow, vecs, how, temp);
  const Gpr value = claim_gpr("byte");
  Xbyak::Label next;
  L(next);
  movzx(value.cvt32(), byte[rsp + row.left - (kBelow + 1)]);
  mov(byte[row.at + row.left - 1], value.cvt8());
  dec(row.left);
  jnz(next);
  release(value);
}

void RowEmitter::clear_behind_tail(const Vec& vec) {
  if (has_masks()) {
    vmovaps(vec | k1 | T_z, vec);
  } else {
    vandps(vec, vec, mask_);
  }
}

void RowEmitter::fill_behind_tail(const Vec& vec, const Vec& fill) {
  if (has_masks()) {
    vblendmps(vec | k1, fill, vec);
  } else {
    vblendvps(vec, fill, vec, mask_);
  }
}

void RowEmitter::spread_lanes(const Vec& vec, int count) {
  const Xbyak::Xmm low(vec.getIdx());
  const Xbyak::Ymm half(vec.getIdx());
  const Xbyak::Zmm whole(vec.getIdx());
  switch (count) {
    case 1:
      return vbroadcastss(vec, low);
    case 2:
      return has_masks() ? vbroadcastsd(whole, low) : vbroadcastsd(half, low);
    case 4:
      return has_masks() ? vshuff32x4(whole, whole, whole, 0) : vinsertf128(half, half, low, 1);
    default:
      if (has_masks()) vshuff32x4(whole, whole, whole, 0x44);
  }
}

void RowEmitter::set_all(const Vec& vec, float value, const Gpr& temp) {
  const Xbyak::Xmm low(vec.getIdx());
  mov(temp.cvt32(), std::bit_cast<uint32_t>(value));
  vmovd(low, temp.cvt32());
  vbroadcastss(vec, low);
}

}  // namespace lathe
