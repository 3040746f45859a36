#include "jit/expression/vector_math.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "jit/expression/interpolation.h"

namespace lathe::vector_math {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();
constexpr float kLog2E = 1.44269504F;
// ln 2 in two parts; the first has 15 zero bits at the end, so that its product with an exponent is exact.
constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
constexpr uint32_t kOneBits = 0x3f800000, kMantissaMask = 0x007fffff;
constexpr uint32_t kSqrtHalfBits = 0x3f3504f3;

// 2^n for integral n in [-127, 128]; 0 and inf at these ends.
Id power_of_two(VectorBuilder& b, Id n) { return b.int_add(b.shift_left(n, 23), b.constant_bits(kOneBits)); }

// p * 2^n for integral float n in [-151, 129], rounding only once.
Id scale_by_exponent(VectorBuilder& b, Id p, Id n) {
  if (has_avx512(b.isa())) return b.scale(p, n);
  // Two halves: neither leaves the normal range.
  const Id whole = b.to_int(n);
  const Id half = b.shift_right(whole, 1);
  const Id scaled = b.mul(p, power_of_two(b, half));
  return b.mul(scaled, power_of_two(b, b.int_sub(whole, half)));
}

// exp(r) for |r| <= ln(2)/2, relative error 0.05 * 2^-24 before rounding (Lawson fit).
Id exp_polynomial(VectorBuilder& b, Id r) {
  return b.horner(r, {0.00138145394F, 0.00836874545F, 0.041668389F, 0.166665211F, 0.49999994F, 1.0F, 1.0F});
}

// 2^(i / 16).
LookUpTable powers_of_sixteenths() {
  LookUpTable powers{};
  for (size_t i = 0; i < powers.size(); ++i) powers[i] = static_cast<float>(std::exp2(static_cast<double>(i) / 16));
  return powers;
}

// exp(-x) for |x| < 2^12, with 2 rounding errors of the last place (AVX-512 only). Exponents are in sixteenths, whose
// powers lie in one register: half the multiply-adds of the polynomial above; the rest runs beside them.
Id exp_of_negative(VectorBuilder& b, Id x) {
  const Id sixteenths =
      b.constant(3 << 18);  // added to what is below 2^18, it leaves sixteenths: their number at its end
  const Id rounded = b.fma(x, b.constant(-kLog2E), sixteenths);
  const Id n = b.sub(rounded, sixteenths);
  const Id minus_r = b.fma(n, b.constant(kLn2Low), b.fma(n, b.constant(kLn2High), x));  // |r| <= ln(2) / 32
  const Id power = b.look_up(rounded, powers_of_sixteenths());
  const Id series = b.horner(minus_r, {-1.0F / 6, 0.5F, -1.0F});
  return b.scale(b.fma(b.mul(power, minus_r), series, power), n);
}

// x * P(x^2) / Q(x^2), kept within [-1, 1]; exact there because the clamp of x is where the quotient reaches 1.
Id odd_rational(VectorBuilder& b, Id x, float saturates_at, std::initializer_list<float> numerator,
                std::initializer_list<float> denominator) {
  const Id inside = b.clamp(x, -saturates_at, saturates_at);
  const Id square = b.mul(inside, inside);
  const Id top = b.mul(inside, b.horner(square, numerator));
  return b.clamp(b.div(top, b.horner(square, denominator)), -1, 1);
}

// [power of the distance from the piece's quarter][piece]
using ErfPieces = std::array<LookUpTable, 6>;
constexpr float kErfEnd = 3.8749F;  // within the last piece

ErfPieces erf_pieces() {
  ErfPieces pieces{};
  constexpr double kReach = 1.0 / 8;
  for (size_t piece = 0; piece < 16; ++piece) {
    const double quarter = static_cast<double>(piece) / 4;
    std::array<double, 6> power{};
    if (piece == 0) {  // of erf(x) / x, so that the smallest are as exact as the others
      const auto slope = [](double x) { return x == 0 ? 2 * std::numbers::inv_sqrtpi : std::erf(x) / x; };
      std::copy_n(interpolate<5>(slope, kReach).begin(), 5, power.begin() + 1);
    } else {
      // The last one is 1 at its end, as all beyond: GELU of what is far below 0 is 0.
      const double raised = piece == 15 ? 1 - std::erf(static_cast<double>(kErfEnd)) : 0;
      power = interpolate<6>([&](double distance) { return std::erf(quarter + distance) + raised; }, kReach);
    }
    for (size_t k = 0; k < power.size(); ++k) pieces[k][piece] = static_cast<float>(power[k]);
  }
  return pieces;
}

// In place of the quotient's dozen products and a division: |x| is near one of sixteen quarters, about each of which a
// polynomial of the distance does.
Id erf_by_pieces(VectorBuilder& b, Id x) {
  const Id quarters = b.constant(3 << 20);  // added to what is below 2^20, it leaves quarters: their number at its end
  const Id sign = b.constant_bits(0x80000000), magnitude = b.min(b.constant(kErfEnd), b.abs(x));
  const Id rounded = b.add(magnitude, quarters);
  const Id distance = b.sub(magnitude, b.sub(rounded, quarters));
  const Id piece = b.bit_or(rounded, b.bit_and(x, sign));  // x's sign waits at its other end, in no register of its own
  static const ErfPieces pieces = erf_pieces();            // plans ask for many programs
  Id sum = b.look_up(piece, pieces.back());
  for (size_t power = pieces.size() - 1; power-- > 0;) sum = b.fma(sum, distance, b.look_up(piece, pieces[power]));
  return b.bit_or(b.min(b.constant(1), sum), b.bit_and(piece, sign));
}

struct Decomposed {
  Id mantissa;  // in [sqrt(1/2), sqrt(2))
  Id exponent;  // integral float32
};

// Of a positive finite x, denormals included.
Decomposed decompose(VectorBuilder& b, Id x) {
  constexpr float kTwo23 = 8388608;
  const Id smallest = b.constant(kSmallestNormal);
  const Id normal = b.select(predicate::less, x, smallest, b.mul(x, b.constant(kTwo23)), x);
  const Id bias = b.select(predicate::less, x, smallest, b.constant(-23), b.constant(0));
  const Id above = b.int_sub(normal, b.constant_bits(kSqrtHalfBits));
  const Id mantissa = b.int_add(b.bit_and(above, b.constant_bits(kMantissaMask)), b.constant_bits(kSqrtHalfBits));
  return {mantissa, b.add(b.from_int(b.shift_right(above, 23)), bias)};
}

struct Reduced {
  Id angle;     // in [-pi/4, pi/4]
  Id quadrant;  // int32
};

// x minus a multiple of pi/2 (Cody and Waite, three parts, products exact by fma).
Reduced reduce_by_half_pi(VectorBuilder& b, Id x) {
  const Id n = b.round(b.mul(x, b.constant(0.636619772F)), rounding::nearest);
  Id r = b.fnma(n, b.constant(1.5707963705062866F), x);
  r = b.fnma(n, b.constant(-4.3711388286737929e-08F), r);
  r = b.fnma(n, b.constant(-1.7151245100058819e-15F), r);
  constexpr float kBound = 0.9F;  // where |x| is too large to be reduced, at least the result stays bounded
  return {b.clamp(r, -kBound, kBound), b.to_int(n)};
}

// Cephes' polynomials.
Id sine_of(VectorBuilder& b, const Reduced& reduced, Id quadrant) {
  const Id square = b.mul(reduced.angle, reduced.angle);
  const Id sine_tail = b.horner(square, {-1.9515295891e-4F, 8.3321608736e-3F, -1.6666654611e-1F});
  const Id sine = b.fma(b.mul(sine_tail, square), reduced.angle, reduced.angle);
  const Id cosine =
      b.horner(square, {2.443315711809948e-5F, -1.388731625493765e-3F, 4.166664568298827e-2F, -0.5F, 1.0F});
  const Id odd = b.from_int(b.bit_and(quadrant, b.constant_bits(1)));
  const Id magnitude = b.select(predicate::not_equal, odd, b.constant(0), cosine, sine);
  return b.bit_xor(magnitude, b.shift_left(b.bit_and(quadrant, b.constant_bits(2)), 30));
}

struct DoubleFloat {
  Id high, low;
};

// high + low = a + b with |low| <= half a unit of high. Requires |a| >= |b|, or a = 0.
DoubleFloat fast_two_sum(VectorBuilder& b, Id large, Id small) {
  const Id high = b.add(large, small);
  return {high, b.sub(small, b.sub(high, large))};
}

// log2 of a positive finite x to about 40 bits: log2(m) = 2/ln 2 * artanh((m - 1) / (m + 1)).
DoubleFloat log2_extended(VectorBuilder& b, Id x) {
  const Decomposed parts = decompose(b, x);
  const Id one = b.constant(1);
  const Id difference = b.sub(parts.mantissa, one);
  const Id sum = b.add(parts.mantissa, one);
  const Id sum_low = b.sub(parts.mantissa, b.sub(sum, one));
  const Id reciprocal = b.div(one, sum);
  const Id t = b.mul(difference, reciprocal);
  const Id t_low = b.mul(b.fnma(t, sum_low, b.fnma(t, sum, difference)), reciprocal);
  const Id factor = b.constant(2.88539004F), factor_low = b.constant(3.85189e-08F);  // 2 / ln 2
  const Id square = b.mul(t, t);
  const Id series = b.mul(b.horner(square, {0.0909090909F, 0.111111111F, 0.142857143F, 0.2F, 0.333333333F}), square);
  const Id product = b.mul(t, factor);
  Id low = b.fms(t, factor, product);
  low = b.fma(t, factor_low, low);
  low = b.fma(t_low, factor, low);
  low = b.fma(product, series, low);
  const DoubleFloat whole = fast_two_sum(b, parts.exponent, product);
  return fast_two_sum(b, whole.high, b.add(whole.low, low));
}

// |base| ^ exponent, but for NaN operands.
Id power_of_magnitude(VectorBuilder& b, Id magnitude, Id exponent) {
  DoubleFloat log2 = log2_extended(b, magnitude);
  log2.high = b.select(predicate::equal, magnitude, b.constant(0), b.constant(-kInfinity), log2.high);
  log2.high = b.select(predicate::equal, magnitude, b.constant(kInfinity), b.constant(kInfinity), log2.high);
  const Id high = b.mul(exponent, log2.high);
  const Id low = b.fma(exponent, log2.low, b.fms(exponent, log2.high, high));
  const Id bounded = b.clamp(high, -151, 129);
  const Id low_or_zero = b.select(predicate::equal, bounded, high, low, b.constant(0));
  const Id whole = b.round(bounded, rounding::nearest);
  const Id fraction = b.add(b.sub(bounded, whole), low_or_zero);
  const Id p = b.horner(
      fraction, {1.53532994e-4F, 1.33989519e-3F, 9.61843785e-3F, 5.55033237e-2F, 2.40226477e-1F, 6.93147182e-1F, 1.0F});
  return scale_by_exponent(b, p, whole);
}

}  // namespace

Id exp(VectorBuilder& b, Id x) {
  // At the upper bound 2^128 overflows to inf, at the lower one the result rounds to 0.
  const Id bounded = b.clamp(x, -104.2F, 88.8F);
  const Id n = b.round(b.mul(bounded, b.constant(kLog2E)), rounding::nearest);
  const Id r = b.fnma(n, b.constant(kLn2Low), b.fnma(n, b.constant(kLn2High), bounded));
  return scale_by_exponent(b, exp_polynomial(b, r), n);
}

Id reciprocal_of_sigmoid(VectorBuilder& b, Id x) {
  // The exponent stays within [-126, 128], where 128 makes inf.
  const Id bounded = b.clamp(x, -89.0F, 87.3F), one = b.constant(1);
  if (has_avx512(b.isa())) return b.add(exp_of_negative(b, bounded), one);
  const Id n = b.round(b.mul(bounded, b.constant(-kLog2E)), rounding::nearest);
  const Id minus_r = b.fma(n, b.constant(kLn2Low), b.fma(n, b.constant(kLn2High), bounded));
  const Id p =
      b.horner(minus_r, {0.00138145394F, -0.00836874545F, 0.041668389F, -0.166665211F, 0.49999994F, -1.0F, 1.0F});
  return b.fma(p, power_of_two(b, b.to_int(n)), one);
}

Id sigmoid(VectorBuilder& b, Id x) { return b.div(b.constant(1), reciprocal_of_sigmoid(b, x)); }

Id tanh(VectorBuilder& b, Id x) {
  return odd_rational(b, x, 9.02F,
                      {-1.22032804e-11F, 3.05849213e-08F, 2.80074146e-05F, 3.86832561e-03F, 0.136799127F, 1.0F},
                      {1.28736360e-06F, 3.93862720e-04F, 0.0272458307F, 0.470132440F, 1.0F});
}

Id erf(VectorBuilder& b, Id x) {
  if (has_avx512(b.isa())) return erf_by_pieces(b, x);
  // Where the quotient is above 1, so that all beyond is exactly 1 and GELU of what is far below 0 is 0.
  return odd_rational(b, x, 3.99F,
                      {2.04196623e-06F, 2.84807407e-04F, 3.77957220e-03F, 0.0527901687F, 0.190783023F, 1.12837911F},
                      {3.80040256e-05F, 1.16520305e-03F, 0.0149973631F, 0.114257179F, 0.502409756F, 1.0F});
}

Id log(VectorBuilder& b, Id x) {
  const Decomposed parts = decompose(b, x);
  const Id f = b.sub(parts.mantissa, b.constant(1));
  const Id square = b.mul(f, f);
  // Cephes' logf.
  const Id tail =
      b.horner(f, {7.0376836292e-2F, -1.1514610310e-1F, 1.1676998740e-1F, -1.2420140846e-1F, 1.4249322787e-1F,
                   -1.6668057665e-1F, 2.0000714765e-1F, -2.4999993993e-1F, 3.3333331174e-1F});
  Id sum = b.mul(b.mul(tail, f), square);
  sum = b.fma(parts.exponent, b.constant(kLn2Low), sum);
  sum = b.fnma(square, b.constant(0.5F), sum);
  sum = b.fma(parts.exponent, b.constant(kLn2High), b.add(f, sum));
  const Id special = b.select(predicate::equal, x, b.constant(0), b.constant(-kInfinity), b.constant(kNan));
  const Id finite = b.select(predicate::greater, x, b.constant(0), sum, special);
  return b.select(predicate::equal, x, b.constant(kInfinity), b.constant(kInfinity), finite);
}

Id softplus_of_negative(VectorBuilder& b, Id x) {
  const Id magnitude = b.min(b.constant(104.2F), b.abs(x));  // beyond, the power is 0; NaN stays
  const Id power = has_avx512(b.isa()) ? exp_of_negative(b, magnitude) : exp(b, b.neg(magnitude));
  // log(1 + t) / t for t in [0, 1], relative error 0.5 * 2^-24 before rounding (Lawson fit).
  const Id slope = b.horner(power, {0.00523269502F, -0.0295052454F, 0.0782259628F, -0.136632472F, 0.191060081F,
                                    -0.24842982F, 0.333190978F, -0.499994934F, 0.99999994F});
  return b.mul(power, slope);
}

Id sin(VectorBuilder& b, Id x) {
  const Reduced reduced = reduce_by_half_pi(b, x);
  return sine_of(b, reduced, reduced.quadrant);
}

Id cos(VectorBuilder& b, Id x) {
  const Reduced reduced = reduce_by_half_pi(b, x);
  return sine_of(b, reduced, b.int_add(reduced.quadrant, b.constant_bits(1)));
}

Id pow(VectorBuilder& b, Id base, Id exponent) {
  const Id zero = b.constant(0), one = b.constant(1);
  const Id magnitude = b.abs(base);
  Id result = power_of_magnitude(b, magnitude, exponent);
  result = b.select(predicate::equal, magnitude, one, one, result);
  const Id whole = b.round(exponent, rounding::to_zero);
  const Id half = b.mul(exponent, b.constant(0.5F));
  // The sign of the base where the exponent is odd: an integer whose half is none.
  const Id sign = b.bit_and(base, b.constant_bits(0x80000000));
  const Id sign_if_odd = b.select(predicate::equal, half, b.round(half, rounding::to_zero), zero, sign);
  const Id from_integer = b.bit_xor(result, sign_if_odd);
  const Id has_no_root = b.select(predicate::less, base, zero, b.constant(kNan), result);
  const Id from_fraction = b.select(predicate::equal, magnitude, b.constant(kInfinity), result, has_no_root);
  result = b.select(predicate::equal, whole, exponent, from_integer, from_fraction);
  result = b.select(predicate::unordered, base, exponent, b.constant(kNan), result);
  result = b.select(predicate::equal, base, one, one, result);
  return b.select(predicate::equal, exponent, zero, one, result);
}

}  // namespace lathe::vector_math
