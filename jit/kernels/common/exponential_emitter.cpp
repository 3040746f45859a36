#include "jit/kernels/common/exponential_emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace lathe {
namespace {

constexpr float kLeast = -105;          // its exponential rounds to 0
constexpr float kSixteenths = 3 << 18;  // added to |x| < 2^18, it leaves sixteenths; their number is at the end
constexpr float kThird = 1.0F / 6, kSecond = 0.5F;  // of exp's series
constexpr int kTemporaries = 3;

}  // namespace

ExponentialEmitter::ExponentialEmitter(Isa isa) : RowEmitter(isa) {
  if (!has_masks()) general_.emplace(static_cast<Xbyak::CodeGenerator&>(*this), isa, unary_expression(ExprOp::exp));
}

void ExponentialEmitter::claim_exponential(const Gpr& temp, int least_temporaries) {
  temps_ = claim_vecs("temporaries", std::max(least_temporaries, general_ ? general_->temps_needed() : kTemporaries));
  if (general_) return;
  const auto constant = [&](const char* role, float value) {
    const Vec vec = claim_vec(role);
    set_all(vec, value, temp);
    return vec;
  };
  least_ = constant("least", kLeast);
  log2_e_ = constant("log2 e", std::numbers::log2e_v<float>);
  ln_2_ = constant("ln 2", std::numbers::ln2_v<float>);
  sixteenths_ = constant("sixteenths", kSixteenths);
  third_ = constant("1/6", kThird);
  second_ = constant("1/2", kSecond);
  one_ = constant("1", 1);
  powers_ = claim_vec("powers of 2^(1/16)");
  vmovups(powers_, ptr[rip + powers_at_]);
}

void ExponentialEmitter::exponential(const Vec& vec) {
  if (general_) return general_->apply(vec, temps_, [](int, const Xbyak::Xmm&) {});
  const Vec &exponent = temps_[0], &series = temps_[1], &power = temps_[2];
  vmaxps(vec, least_, vec);
  vmovaps(power, sixteenths_);
  vfmadd231ps(power, vec, log2_e_);
  vsubps(exponent, power, sixteenths_);
  vpermps(Xbyak::Zmm(power.getIdx()), Xbyak::Zmm(power.getIdx()), powers_);
  vfnmadd231ps(vec, exponent, ln_2_);
  vmovaps(series, second_);
  vfmadd231ps(series, vec, third_);
  vfmadd213ps(series, vec, one_);
  vmulps(vec, vec, power);
  vfmadd213ps(vec, series, power);
  vscalefps(vec, vec, exponent);  // by its floor
}

void ExponentialEmitter::emit_exponential_constants() {
  if (general_) return general_->emit_constants();
  align(vec_bytes());
  L(powers_at_);
  for (int i = 0; i < lanes(); ++i) dd(std::bit_cast<uint32_t>(static_cast<float>(std::exp2(i / 16.0))));
}

}  // namespace lathe
