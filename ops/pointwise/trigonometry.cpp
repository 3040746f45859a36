#include "ops/pointwise/trigonometry.h"

#include <initializer_list>

// The polynomials are those of the Cephes library, for single precision.
namespace lathe::trigonometry {
namespace {

using Writer = ExpressionWriter;

constexpr float kPi = 3.14159265358979F, kHalfPi = 1.57079632679490F, kQuarterPi = 0.785398163397448F;
constexpr float kLn2 = 0.693147180559945F;

int horner(Writer& w, int z, std::initializer_list<float> highest_first) {
  int value = -1;
  for (const float coefficient : highest_first) {
    const int constant = w.constant(coefficient);
    value = value < 0 ? constant : w.add(w.mul(value, z), constant);
  }
  return value;
}

// x + x z p(z)
int odd(Writer& w, int x, int z, std::initializer_list<float> highest_first) {
  const int factor = w.mul(horner(w, z, highest_first), z);
  return w.add(w.mul(factor, x), x);
}

int less(Writer& w, int a, int b) { return w.op(ExprOp::less, a, b); }
int abs(Writer& w, int x) { return w.op(ExprOp::abs, x); }
int div(Writer& w, int a, int b) { return w.op(ExprOp::div, a, b); }
int times(Writer& w, float factor, int x) { return w.mul(x, w.constant(factor)); }

int with_sign_of(Writer& w, int x, int magnitude) {
  return w.select(less(w, x, w.constant(0)), w.op(ExprOp::neg, magnitude), magnitude);
}

// asin(|x|) up to 1/2, beyond asin(sqrt((1 - |x|) / 2)), which is half of acos(|x|).
struct ArcSine {
  int is_large, value;
};
ArcSine arc_sine(Writer& w, int magnitude) {
  const int is_large = less(w, w.constant(0.5F), magnitude);
  const int rest = times(w, 0.5F, w.sub(w.constant(1), magnitude));
  const int z = w.select(is_large, rest, w.mul(magnitude, magnitude));
  const int s = w.select(is_large, w.op(ExprOp::sqrt, rest), magnitude);
  return {is_large,
          odd(w, s, z, {4.2163199048e-2F, 2.4181311049e-2F, 4.5470025998e-2F, 7.4953002686e-2F, 1.6666752422e-1F})};
}

// exp(|x| / 2): its square would overflow later than exp(|x|) does.
struct HalfExponential {
  int half_square, half_inverse;  // exp(|x|) / 2, exp(-|x|) / 2
};
HalfExponential half_exponential(Writer& w, int magnitude) {
  const int root = w.op(ExprOp::exp, times(w, 0.5F, magnitude));
  const int inverse = div(w, w.constant(1), root);
  return {w.mul(times(w, 0.5F, root), root), w.mul(times(w, 0.5F, inverse), inverse)};
}

}  // namespace

int tan(Writer& w, int x) {
  // x = n pi/2 + y; pi/2 in three parts, of which n times the first two are exact.
  const int n = w.op(ExprOp::round_even, times(w, 0.636619772367581F, x));
  int y = w.sub(x, times(w, 1.5703125F, n));
  y = w.sub(y, times(w, 4.837512969970703125e-4F, n));
  y = w.sub(y, times(w, 7.549789948768648e-8F, n));
  const int z = w.mul(y, y);
  const int value = odd(w, y, z,
                        {9.38540185543e-3F, 3.11992232697e-3F, 2.44301354525e-2F, 5.34112807005e-2F, 1.33387994085e-1F,
                         3.33331568548e-1F});
  const int half = times(w, 0.5F, n);
  const int is_even = w.op(ExprOp::equal, half, w.op(ExprOp::floor, half));
  return w.select(is_even, value, div(w, w.constant(-1), value));
}

int asin(Writer& w, int x) {
  const ArcSine arc = arc_sine(w, abs(w, x));
  const int large = w.sub(w.constant(kHalfPi), w.add(arc.value, arc.value));
  return with_sign_of(w, x, w.select(arc.is_large, large, arc.value));
}

int acos(Writer& w, int x) {
  const ArcSine arc = arc_sine(w, abs(w, x));
  const int is_negative = less(w, x, w.constant(0));
  const int twice = w.add(arc.value, arc.value);
  const int large = w.select(is_negative, w.sub(w.constant(kPi), twice), twice);
  const int small = w.sub(w.constant(kHalfPi), w.select(is_negative, w.op(ExprOp::neg, arc.value), arc.value));
  return w.select(arc.is_large, large, small);
}

int atan(Writer& w, int x) {
  const int magnitude = abs(w, x), one = w.constant(1);
  const int is_large = less(w, w.constant(2.414213562373095F), magnitude);    // tan(3 pi / 8)
  const int is_medium = less(w, w.constant(0.4142135623730950F), magnitude);  // tan(pi / 8)
  const int medium = div(w, w.sub(magnitude, one), w.add(magnitude, one));
  const int t = w.select(is_large, div(w, w.constant(-1), magnitude), w.select(is_medium, medium, magnitude));
  const int base = w.select(is_large, w.constant(kHalfPi), w.select(is_medium, w.constant(kQuarterPi), w.constant(0)));
  const int rest =
      odd(w, t, w.mul(t, t), {8.05374449538e-2F, -1.38776856032e-1F, 1.99777106478e-1F, -3.33329491539e-1F});
  return with_sign_of(w, x, w.add(base, rest));
}

int sinh(Writer& w, int x) {
  const int magnitude = abs(w, x);
  const HalfExponential e = half_exponential(w, magnitude);
  const int large = with_sign_of(w, x, w.sub(e.half_square, e.half_inverse));
  const int small = odd(w, x, w.mul(x, x), {2.03721912945e-4F, 8.33028376239e-3F, 1.66667160211e-1F});
  return w.select(less(w, w.constant(1), magnitude), large, small);
}

int cosh(Writer& w, int x) {
  const HalfExponential e = half_exponential(w, abs(w, x));
  return w.add(e.half_square, e.half_inverse);
}

int asinh(Writer& w, int x) {
  const int magnitude = abs(w, x), z = w.mul(x, x);
  const int root = w.op(ExprOp::sqrt, w.add(z, w.constant(1)));
  const int is_huge = less(w, w.constant(1e10F), magnitude);  // where the square could overflow
  const int log = w.op(ExprOp::log, w.select(is_huge, magnitude, w.add(magnitude, root)));
  const int large = with_sign_of(w, x, w.add(log, w.select(is_huge, w.constant(kLn2), w.constant(0))));
  const int small = odd(w, x, z, {2.0122003309e-2F, -4.2699340972e-2F, 7.4847586088e-2F, -1.6666288134e-1F});
  return w.select(less(w, w.constant(0.5F), magnitude), large, small);
}

int acosh(Writer& w, int x) {
  const int one = w.constant(1), above = w.sub(x, one);
  const int root = w.op(ExprOp::sqrt, w.mul(above, w.add(x, one)));
  const int is_huge = less(w, w.constant(1e10F), x);
  const int log = w.op(ExprOp::log, w.select(is_huge, x, w.add(x, root)));
  const int large = w.add(log, w.select(is_huge, w.constant(kLn2), w.constant(0)));
  const int small =
      w.mul(horner(w, above, {1.7596881071e-3F, -7.5272886713e-3F, 2.6454905019e-2F, -1.1784741703e-1F, 1.4142135263F}),
            w.op(ExprOp::sqrt, above));
  return w.select(less(w, above, w.constant(0.5F)), small, large);
}

int atanh(Writer& w, int x) {
  const int one = w.constant(1);
  const int large = times(w, 0.5F, w.op(ExprOp::log, div(w, w.add(one, x), w.sub(one, x))));
  const int small =
      odd(w, x, w.mul(x, x),
          {1.81740078349e-1F, 8.24370301058e-2F, 1.46691431730e-1F, 1.99782164500e-1F, 3.33337300303e-1F});
  return w.select(less(w, w.constant(0.5F), abs(w, x)), large, small);
}

}  // namespace lathe::trigonometry
