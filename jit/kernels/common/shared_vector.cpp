#include "jit/kernels/common/shared_vector.h"

#include <cstddef>

namespace lathe {
namespace {

constexpr int kLanes = 16;

}  // namespace

void SharedVector::load_masks(const Xbyak::Reg64& spare) {
  const int lanes = kLanes / rows_;
  for (int row = 0; row < rows_; ++row) {
    code_.mov(spare.cvt32(), ((1 << lanes) - 1) << (row * lanes));
    code_.kmovw(mask_of(row), spare.cvt32());
  }
}

void SharedVector::load_columns(const Xbyak::Xmm& vec, const Xbyak::RegExp& at) {
  const Xbyak::Zmm whole(vec.getIdx());
  rows_ == 2 ? code_.vbroadcastf64x4(whole, code_.ptr[at]) : code_.vbroadcastf32x4(whole, code_.ptr[at]);
}

void SharedVector::multiply_add(const Xbyak::Xmm& sum, const Xbyak::Xmm& columns, std::span<const Xbyak::Xmm> values,
                                std::span<const int> rows, int held) {
  if (rows.size() < static_cast<size_t>(held)) {
    for (size_t i = 0; i < rows.size(); ++i) code_.vfmadd231ps(sum | mask_of(rows[i]), columns, values[i]);
    return;
  }
  // A masked move has ports that multiply nothing.
  for (size_t i = 1; i < rows.size(); ++i) code_.vmovaps(values[0] | mask_of(rows[i]), values[i]);
  code_.vfmadd231ps(sum, columns, values[0]);
}

void SharedVector::take(const Xbyak::Xmm& to, const Xbyak::Xmm& sum, int row) {
  const int lane = row % rows_ * kLanes / rows_;
  code_.valignd(to | mask_of(0) | Xbyak::util::T_z, sum, sum, static_cast<uint8_t>(lane));
}

}  // namespace lathe
