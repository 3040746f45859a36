#include "jit/kernels/common/exponential_emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numbers>

namespace lathe {
namespace {

// Below it lie the exponentials that are less than the least normal number, -126 * log(2). They become 0, as each
// masked score is one.
constexpr float kLeast = -87.33654F;
constexpr float kSixteenths = 3 << 18;  // added to |x| < 2^18, it leaves sixteenths; their number is at the end
constexpr float kThird = 1.0F / 6, kSecond = 0.5F;  // of exp's series

// On AVX2: 1.5 * 2^23 leaves whole numbers at the end of what is added to it. They are exponents.
constexpr float kBelow = -88;  // rounds to the exponent of 0
constexpr float kRounder = 3 << 22, kExponents = kRounder + 127;
// exp(r) for |r| <= ln(2)/2 as in vector_math.cpp, from the highest power on, between what comes before and behind.
constexpr float kConstant[] = {std::numbers::log2e_v<float>,
                               std::numbers::ln2_v<float>,
                               0.00138145394F,
                               0.00836874545F,
                               0.041668389F,
                               0.166665211F,
                               0.49999994F,
                               1.0F,
                               1.0F};
constexpr size_t kLog2E = 0, kLn2 = 1, kPolynomial = 2, kPolynomialEnd = 9;

}  // namespace

ExponentialEmitter::ExponentialEmitter(Isa isa) : RowEmitter(isa) {}

void ExponentialEmitter::claim_exponential(const Gpr& temp, int least_temporaries, int left) {
  temps_ = claim_vecs("temporaries", std::max(least_temporaries, has_masks() ? 3 : 2));
  const auto constant = [&](const char* role, float value) {
    const Vec vec = claim_vec(role);
    set_all(vec, value, temp);
    return vec;
  };
  if (!has_masks()) {
    static_assert(std::size(kConstant) == kConstants);
    least_ = constant("least", kBelow);
    rounder_ = constant("exponents", kExponents);
    const auto held = static_cast<size_t>(std::clamp<int>(free_vecs() - left, 0, kConstants));
    for (size_t i = 0; i < held; ++i) held_.push_back(constant("of an exponential", kConstant[i]));
    return;
  }
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
  has_masks() ? exponential_by_table(vec) : exponential_by_polynomial(vec);
}

void ExponentialEmitter::exponential_by_polynomial(const Vec& vec) {
  const Vec &power = temps_[0], &series = temps_[1];
  const auto with = [&](size_t which, auto instruction) {
    which < held_.size() ? instruction(held_[which]) : instruction(ptr[rip + constants_at_[which]]);
  };
  vmaxps(vec, least_, vec);
  vmovaps(power, rounder_);
  with(kLog2E, [&](const auto& factor) { vfmadd231ps(power, vec, factor); });
  vsubps(series, power, rounder_);
  with(kLn2, [&](const auto& factor) { vfnmadd231ps(vec, series, factor); });
  vpslld(power, power, 23);
  with(kPolynomial, [&](const auto& first) { vmovaps(series, first); });
  for (size_t i = kPolynomial + 1; i < kPolynomialEnd; ++i)
    with(i, [&](const auto& next) { vfmadd213ps(series, vec, next); });
  vmulps(vec, series, power);
}

void ExponentialEmitter::exponential_by_table(const Vec& vec) {
  const Vec &exponent = temps_[0], &series = temps_[1], &power = temps_[2];
  find_normal(vec, least_);
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
  vscalefps(vec | normal_ | T_z, vec, exponent);  // by its floor
}

void ExponentialEmitter::emit_exponential_constants() {
  align(vec_bytes());
  for (size_t i = held_.size(); i < kConstants && !has_masks(); ++i) {
    L(constants_at_[i]);
    for (int lane = 0; lane < lanes(); ++lane) dd(std::bit_cast<uint32_t>(kConstant[i]));
  }
  if (!has_masks()) return;
  L(powers_at_);
  for (int i = 0; i < lanes(); ++i) dd(std::bit_cast<uint32_t>(static_cast<float>(std::exp2(i / 16.0))));
}

}  // namespace lathe
