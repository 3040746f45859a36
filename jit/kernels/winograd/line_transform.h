#pragma once
// A small constant matrix times a column of vector registers, as straight code. Rows that differ only by signs share
// their sums, and so do columns.
#include <xbyak/xbyak.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "jit/kernels/winograd/winograd_matrices.h"
#include "src/base/cpu.h"

namespace lathe {

class LineTransform {
 public:
  static constexpr int kTemps = 3;
  using Vec = Xbyak::Xmm;
  // A register, or nothing for zeros.
  using Input = std::optional<Vec>;

  LineTransform(Xbyak::CodeGenerator& code, Isa isa, Matrix matrix);

  // Calls use(row, register) once for each row, in any order; use() may change the register. `inputs` (one for each
  // column) and `temps` (kTemps) are clobbered.
  void emit(std::vector<Input> inputs, std::span<const Vec> temps, const std::function<void(int, const Vec&)>& use);

  // The coefficients that emit() addresses by rip. Call once, behind the code's last instruction.
  void emit_constants();

 private:
  struct Term {
    float factor;
    Input input;
  };
  struct Pair {
    int first, second;
  };

  void find_pairs();
  // Columns i and j become their sum and their difference; `spare` changes places with one of them.
  void combine_columns(std::vector<Input>& inputs, Vec& spare);
  std::vector<Term> terms_of(int row, const std::vector<Input>& inputs) const;
  // The sum in `into`, or an input that is the sum already; nothing for an empty sum.
  Input sum(std::vector<Term> terms, const Vec& into);
  void emit_pair(const Pair& pair, const std::vector<Input>& inputs, const Vec* temps,
                 const std::function<void(int, const Vec&)>& use);
  void zero(const Vec& vec);
  Xbyak::Address constant(float value);

  Xbyak::CodeGenerator& code_;
  const Isa isa_;
  Matrix matrix_;  // of combined columns, if any
  std::vector<Pair> row_pairs_, column_pairs_;
  std::vector<int> single_rows_;
  std::map<float, Xbyak::Label> constants_;
};

}  // namespace lathe
