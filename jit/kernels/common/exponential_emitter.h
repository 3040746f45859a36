#pragma once
// Base of the emitters that normalize by exponentials: exp of what is not positive, as a score less its row's maximum.
#include <array>
#include <vector>

#include "jit/kernels/rows/reduce_emitter.h"

namespace lathe {

class ExponentialEmitter : public RowEmitter {
 protected:
  explicit ExponentialEmitter(Isa isa);

  // Behind begin(): constants and temporaries, at least as many as asked for; at least `left` vectors stay free where
  // constants may be in memory. Clobbers `temp`.
  void claim_exponential(const Gpr& temp, int least_temporaries = 0, int left = 2);
  // NaN stays; what is less than the least normal number may become 0. Requires: vec <= 0. Clobbers k2. Half the work
  // of the general one: one product takes the logarithm of 2 off, and on AVX-512 2^(1/16) has its powers in one
  // register. Error: 1 + |x| / 20 units in the last place, / 30 on AVX-512.
  void exponential(const Vec& vec);
  // Behind the code's end.
  void emit_exponential_constants();

  const std::vector<Vec>& temporaries() const { return temps_; }

  // The lanes that are not less than `least`, NaN among them (AVX-512). Others are left out of the scaling that ends an
  // exponential: an Intel core takes some hundred cycles for a result that it has to round among denormals.
  void find_normal(const Vec& vec, const Vec& least) { vcmpps(normal_, vec, least, kNotLess); }
  const Xbyak::Opmask normal_ = k2;

 private:
  void exponential_by_table(const Vec& vec);
  void exponential_by_polynomial(const Vec& vec);

  static constexpr int kNotLess = 5;  // of vcmpps: also of NaN
  Vec least_;
  Vec log2_e_, ln_2_, sixteenths_, third_, second_, one_, powers_;  // on AVX-512
  Xbyak::Label powers_at_;
  static constexpr size_t kConstants = 9;
  Vec rounder_;  // on AVX2, with constants in registers while there are any
  std::vector<Vec> held_;
  std::array<Xbyak::Label, kConstants> constants_at_;
  std::vector<Vec> temps_;
};

}  // namespace lathe
