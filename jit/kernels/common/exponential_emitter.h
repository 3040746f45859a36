#pragma once
// Base of the emitters that normalize by exponentials: exp of what is not positive, as a score less its row's maximum.
#include <optional>
#include <vector>

#include "jit/expression/epilogue.h"
#include "jit/kernels/rows/reduce_emitter.h"

namespace lathe {

class ExponentialEmitter : public RowEmitter {
 protected:
  explicit ExponentialEmitter(Isa isa);

  // Behind begin(): constants and temporaries, at least as many as asked for. Clobbers `temp`.
  void claim_exponential(const Gpr& temp, int least_temporaries = 0);
  // NaN stays. Requires: vec <= 0. On AVX-512 half the work of the general one: 2^(1/16) has its powers in one
  // register. Error there: 1 + |x| / 30 units in the last place.
  void exponential(const Vec& vec);
  // Behind the code's end.
  void emit_exponential_constants();

  const std::vector<Vec>& temporaries() const { return temps_; }

 private:
  std::optional<EpilogueEmitter> general_;                                  // on AVX2
  Vec least_, log2_e_, ln_2_, sixteenths_, third_, second_, one_, powers_;  // on AVX-512
  Xbyak::Label powers_at_;
  std::vector<Vec> temps_;
};

}  // namespace lathe
