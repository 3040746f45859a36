#include "jit/kernels/gemm/row_sums.h"

#include <array>
#include <cstddef>
#include <string>

#include "jit/emitter.h"
#include "jit/kernels/common/int8_dot.h"

namespace lathe {
namespace {

constexpr int kRows = static_cast<int>(kRowSumsTogether);

// Dot products with ones, a vector for each row; then lanes of all of them change places until each lane is a row's
// sum.
class RowSumsEmitter : public Emitter {
 public:
  RowSumsEmitter(Isa isa, bool is_signed) : Emitter(isa), is_signed_(is_signed) {}

  void emit() {
    begin();
    mov(from_, ptr[args_ + offsetof(RowSumsArgs, from)]);
    mov(to_, ptr[args_ + offsetof(RowSumsArgs, to)]);
    mov(groups_, ptr[args_ + offsetof(RowSumsArgs, row_groups)]);
    mov(columns_, ptr[args_ + offsetof(RowSumsArgs, columns)]);
    mov(stride_, ptr[args_ + offsetof(RowSumsArgs, stride_bytes)]);
    prepare_tail();
    mov(left_.cvt32(), 0x01010101);
    vpbroadcastd(ones_, left_.cvt32());
    vpbroadcastd(factor_, dword[args_ + offsetof(RowSumsArgs, factor)]);
    loop_down(groups_, [&] {
      for (const Vec& sum : sums_) zero(sum);
      sum_up();
      reduce();
      vpmulld(sums_[0], sums_[0], factor_);
      store(Xbyak::RegExp(to_), sums_[0]);
      add(to_, kRows * 4);
      mov(left_, stride_);
      shl(left_, 4);
      static_assert(kRows == 1 << 4);
      add(from_, left_);
    });
    end();
  }

 private:
  // tail_: the columns of the last vector, all of them where columns fill it.
  void prepare_tail() {
    mov(left_, columns_);
    neg(left_);
    and_(left_, vec_bytes() - 1);
    mov(at_, -1);
    shrx(at_, at_, left_);
    kmovq(tail_, at_);
  }

  void sum_up() {
    Xbyak::Label next, last;
    mov(at_, from_);
    mov(left_, columns_);
    L(next);
    cmp(left_, vec_bytes());
    jle(last, T_NEAR);
    add_rows(false);
    sub(left_, vec_bytes());
    jmp(next, T_NEAR);
    L(last);
    add_rows(true);
  }

  // at_ goes on by a vector.
  void add_rows(bool is_last) {
    mov(row_, at_);
    for (const Vec& sum : sums_) {
      const Xbyak::Zmm bytes(bytes_.getIdx());
      is_last ? vmovdqu8(bytes | tail_ | T_z, ptr[row_]) : vmovdqu8(bytes, ptr[row_]);
      is_signed_ ? vpdpbusd(sum, ones_, bytes_) : vpdpbusd(sum, bytes_, ones_);
      add(row_, stride_);
    }
    add(at_, vec_bytes());
  }

  // Sums of pairs of vectors, a lane of one beside the same lane of the other, then of pairs of these: the numbers of
  // the rows that meet in a lane grow by the same order as the lanes.
  void reduce() {
    const auto join = [&](int a, int b, auto low, auto high) {
      const Xbyak::Zmm x(sums_[static_cast<size_t>(a)].getIdx()), y(sums_[static_cast<size_t>(b)].getIdx());
      const Xbyak::Zmm z(bytes_.getIdx());
      low(z, x, y);
      high(x, x, y);
      vpaddd(x, x, z);
    };
    const auto join_all = [&](int distance, auto low, auto high) {
      for (int i = 0; i < kRows; i += 2 * distance) join(i, i + distance, low, high);
    };
    using Z = Xbyak::Zmm;
    join_all(
        1, [&](const Z& z, const Z& x, const Z& y) { vpunpckldq(z, x, y); },
        [&](const Z& z, const Z& x, const Z& y) { vpunpckhdq(z, x, y); });
    join_all(
        2, [&](const Z& z, const Z& x, const Z& y) { vpunpcklqdq(z, x, y); },
        [&](const Z& z, const Z& x, const Z& y) { vpunpckhqdq(z, x, y); });
    // Parts of four lanes: 0 and 2 of both, 1 and 3 of both.
    join_all(
        4, [&](const Z& z, const Z& x, const Z& y) { vshufi32x4(z, x, y, 0x88); },
        [&](const Z& z, const Z& x, const Z& y) { vshufi32x4(z, x, y, 0xdd); });
    join_all(
        8, [&](const Z& z, const Z& x, const Z& y) { vshufi32x4(z, x, y, 0x88); },
        [&](const Z& z, const Z& x, const Z& y) { vshufi32x4(z, x, y, 0xdd); });
  }

  const bool is_signed_;
  const Gpr args_ = argument(0);
  const Gpr from_ = claim_gpr("from"), to_ = claim_gpr("to"), groups_ = claim_gpr("groups of rows");
  const Gpr columns_ = claim_gpr("columns"), stride_ = claim_gpr("stride"), left_ = claim_gpr("columns left");
  const Gpr at_ = claim_gpr("at"), row_ = claim_gpr("row");
  const std::vector<Vec> sums_ = claim_vecs("sums", kRows);
  const Vec bytes_ = claim_vec("bytes"), ones_ = claim_vec("ones"), factor_ = claim_vec("factor");
  const Xbyak::Opmask tail_ = k1;
};

}  // namespace

Kernel<RowSumsFn> row_sums_kernel(Isa isa, bool is_signed) {
  const std::string key = std::string("row_sums ") + (is_signed ? "i8" : "u8");
  if (!has_wide_vnni(isa)) throw JitError("needs AVX512-VNNI: " + key);
  return Kernel<RowSumsFn>(cached_code(key, [&] {
    RowSumsEmitter emitter(isa, is_signed);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
