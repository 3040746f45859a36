#pragma once
// A register for the sums of several rows of a product, or pixels of a convolution, where few lanes of a vector are
// columns: a core with two multipliers of whole vectors takes as long for half a vector. AVX-512.
#include <xbyak/xbyak.h>

#include <span>

namespace lathe {

class SharedVector {
 public:
  // So many rows share a register, each with as many lanes of its own: 2 or 4; 1: none does. `first_mask`: of as many
  // opmasks, which keep what load_masks() puts there.
  SharedVector(Xbyak::CodeGenerator& code, int rows, int first_mask)
      : code_(code), rows_(rows), first_mask_(first_mask) {}

  bool is_on() const { return rows_ > 1; }
  // The row whose register holds the sums of this one.
  int holder_of(int row) const { return row / rows_ * rows_; }
  bool is_holder(int row) const { return holder_of(row) == row; }

  void load_masks(const Xbyak::Reg64& spare);
  // Columns, once for each row.
  void load_columns(const Xbyak::Xmm& vec, const Xbyak::RegExp& at);
  // sum += columns * a row's value, in the lanes of these rows of one holder, which has `held` in all. `values`: all
  // lanes alike; the first is changed.
  void multiply_add(const Xbyak::Xmm& sum, const Xbyak::Xmm& columns, std::span<const Xbyak::Xmm> values,
                    std::span<const int> rows, int held);
  // A row's sums to the begin of a register, zeros behind them. The holder's own come last.
  void take(const Xbyak::Xmm& to, const Xbyak::Xmm& sum, int row);

 private:
  Xbyak::Opmask mask_of(int row) const { return Xbyak::Opmask(first_mask_ + row % rows_); }

  Xbyak::CodeGenerator& code_;
  int rows_, first_mask_;
};

}  // namespace lathe
