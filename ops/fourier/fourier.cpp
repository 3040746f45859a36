#include "ops/fourier/fourier.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace lathe {
namespace {

template <class T>
using Complex = std::complex<T>;

// Prime factors up to here are summed directly; beyond, a convolution is cheaper.
constexpr int64_t kLargestRadix = 31;

// std::complex's own product looks for NaN, which costs a call.
template <class T>
Complex<T> times(Complex<T> a, Complex<T> b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

template <class T>
Complex<T> root_of_unity(int64_t k, int64_t n) {
  const double phase = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
  return {static_cast<T>(std::cos(phase)), static_cast<T>(std::sin(phase))};
}

// One pass of Stockham's algorithm: `count` transforms of `radix` points, interleaved by `stride`, turned by the roots.
template <class T>
struct Pass {
  int64_t radix, count, stride;
  const Complex<T>* roots;  // of the whole transform
  int64_t roots_step;       // from one root of radix * count points to the next
  int64_t length;           // of the whole transform

  Complex<T> turn(int64_t p, int64_t t) const { return roots[p * t * roots_step]; }
};

template <class T>
void pass_two(const Pass<T>& pass, const Complex<T>* in, Complex<T>* out) {
  for (int64_t p = 0; p < pass.count; ++p) {
    const Complex<T> turn = pass.turn(p, 1);
    const Complex<T>*a = in + pass.stride * p, *b = a + pass.stride * pass.count;
    Complex<T>* to = out + pass.stride * 2 * p;
    for (int64_t q = 0; q < pass.stride; ++q) {
      to[q] = a[q] + b[q];
      to[q + pass.stride] = times(a[q] - b[q], turn);
    }
  }
}

template <class T>
void pass_three(const Pass<T>& pass, const Complex<T>* in, Complex<T>* out) {
  const int64_t step = pass.stride * pass.count;
  const Complex<T> root = root_of_unity<T>(1, 3);
  for (int64_t p = 0; p < pass.count; ++p) {
    const Complex<T> turn1 = pass.turn(p, 1), turn2 = pass.turn(p, 2);
    const Complex<T>* from = in + pass.stride * p;
    Complex<T>* to = out + pass.stride * 3 * p;
    for (int64_t q = 0; q < pass.stride; ++q) {
      const Complex<T> a = from[q], sum = from[q + step] + from[q + 2 * step];
      const Complex<T> difference = from[q + step] - from[q + 2 * step], even = a + root.real() * sum;
      const Complex<T> odd(-root.imag() * difference.imag(), root.imag() * difference.real());
      to[q] = a + sum;
      to[q + pass.stride] = times(even + odd, turn1);
      to[q + 2 * pass.stride] = times(even - odd, turn2);
    }
  }
}

template <class T>
void pass_four(const Pass<T>& pass, const Complex<T>* in, Complex<T>* out) {
  const int64_t step = pass.stride * pass.count;
  for (int64_t p = 0; p < pass.count; ++p) {
    const Complex<T> turn1 = pass.turn(p, 1), turn2 = pass.turn(p, 2), turn3 = pass.turn(p, 3);
    const Complex<T>* from = in + pass.stride * p;
    Complex<T>* to = out + pass.stride * 4 * p;
    for (int64_t q = 0; q < pass.stride; ++q) {
      const Complex<T> a = from[q], b = from[q + step], c = from[q + 2 * step], d = from[q + 3 * step];
      const Complex<T> sum = a + c, difference = a - c, odd = b + d, crossed(b.imag() - d.imag(), d.real() - b.real());
      to[q] = sum + odd;
      to[q + pass.stride] = times(difference + crossed, turn1);
      to[q + 2 * pass.stride] = times(sum - odd, turn2);
      to[q + 3 * pass.stride] = times(difference - crossed, turn3);
    }
  }
}

template <class T>
void pass_five(const Pass<T>& pass, const Complex<T>* in, Complex<T>* out) {
  const int64_t step = pass.stride * pass.count;
  const Complex<T> root1 = root_of_unity<T>(1, 5), root2 = root_of_unity<T>(2, 5);
  // The parts of outputs k and 5 - k that are equal, and those that differ in sign.
  const auto even = [](Complex<T> a, T near, Complex<T> b, T far, Complex<T> c) { return a + near * b + far * c; };
  const auto odd = [](T near, Complex<T> b, T far, Complex<T> c) {
    return Complex<T>(-(near * b.imag() + far * c.imag()), near * b.real() + far * c.real());
  };
  for (int64_t p = 0; p < pass.count; ++p) {
    const Complex<T>* from = in + pass.stride * p;
    Complex<T>* to = out + pass.stride * 5 * p;
    const Complex<T> turns[] = {pass.turn(p, 1), pass.turn(p, 2), pass.turn(p, 3), pass.turn(p, 4)};
    for (int64_t q = 0; q < pass.stride; ++q) {
      const Complex<T> a = from[q], b = from[q + step] + from[q + 4 * step],
                       c = from[q + 2 * step] + from[q + 3 * step];
      const Complex<T> d = from[q + step] - from[q + 4 * step], e = from[q + 2 * step] - from[q + 3 * step];
      const Complex<T> even1 = even(a, root1.real(), b, root2.real(), c), odd1 = odd(root1.imag(), d, root2.imag(), e);
      const Complex<T> even2 = even(a, root2.real(), b, root1.real(), c), odd2 = odd(root2.imag(), d, -root1.imag(), e);
      to[q] = a + b + c;
      to[q + pass.stride] = times(even1 + odd1, turns[0]);
      to[q + 2 * pass.stride] = times(even2 + odd2, turns[1]);
      to[q + 3 * pass.stride] = times(even2 - odd2, turns[2]);
      to[q + 4 * pass.stride] = times(even1 - odd1, turns[3]);
    }
  }
}

template <class T>
void pass_any(const Pass<T>& pass, const Complex<T>* in, Complex<T>* out) {
  const int64_t radix = pass.radix, step = pass.stride * pass.count, radix_step = pass.length / radix;
  for (int64_t p = 0; p < pass.count; ++p) {
    for (int64_t t = 0; t < radix; ++t) {
      const Complex<T> turn = pass.turn(p, t);
      Complex<T>* to = out + pass.stride * (radix * p + t);
      std::copy_n(in + pass.stride * p, pass.stride, to);
      for (int64_t j = 1; j < radix; ++j) {
        const Complex<T> factor = pass.roots[j * t % radix * radix_step];
        const Complex<T>* from = in + pass.stride * p + step * j;
        for (int64_t q = 0; q < pass.stride; ++q) to[q] += times(from[q], factor);
      }
      for (int64_t q = 0; q < pass.stride; ++q) to[q] = times(to[q], turn);
    }
  }
}

template <class T>
void run_pass(const Pass<T>& pass, const Complex<T>* in, Complex<T>* out) {
  switch (pass.radix) {
    case 2:
      return pass_two(pass, in, out);
    case 3:
      return pass_three(pass, in, out);
    case 4:
      return pass_four(pass, in, out);
    case 5:
      return pass_five(pass, in, out);
    default:
      return pass_any(pass, in, out);
  }
}

}  // namespace

template <class T>
FourierTransform<T>::FourierTransform(int64_t length) : length_(length) {
  int64_t rest = length;
  for (const int64_t radix : {4, 2}) {
    for (; rest % radix == 0; rest /= radix) radices_.push_back(radix);
  }
  for (int64_t radix = 3; radix <= kLargestRadix; radix += 2) {
    for (; rest % radix == 0; rest /= radix) radices_.push_back(radix);
  }
  if (rest == 1) {
    for (int64_t k = 0; k < length; ++k) roots_.push_back(root_of_unity<T>(k, length));
    return;
  }
  radices_.clear();
  const auto wide_length = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * length - 1)));
  wide_ = std::make_unique<const FourierTransform<T>>(wide_length);
  // k * k modulo 2 * length, step by step: the square itself may not fit.
  for (int64_t k = 0, square = 0; k < length; square = (square + 2 * k + 1) % (2 * length), ++k) {
    chirp_.push_back(root_of_unity<T>(square, 2 * length));
  }
  chirp_spectrum_.assign(static_cast<size_t>(wide_length), 0);
  for (size_t k = 0; k < static_cast<size_t>(length); ++k) {
    chirp_spectrum_[k] = std::conj(chirp_[k]);
    if (k > 0) chirp_spectrum_[static_cast<size_t>(wide_length) - k] = std::conj(chirp_[k]);
  }
  std::vector<Complex> scratch(static_cast<size_t>(wide_->scratch_elements()));
  wide_->run(chirp_spectrum_.data(), scratch.data());
}

template <class T>
int64_t FourierTransform<T>::scratch_elements() const {
  return wide_ ? wide_->length() + wide_->scratch_elements() : length_;
}

template <class T>
void FourierTransform<T>::run(Complex* data, Complex* scratch) const noexcept {
  if (wide_) {
    run_convolved(data, scratch);
  } else {
    run_radices(data, scratch);
  }
}

template <class T>
void FourierTransform<T>::run_inverse(Complex* data, Complex* scratch) const noexcept {
  // With real and imaginary part exchanged before and after, the exponent's sign turns.
  const T scale = 1 / static_cast<T>(length_);
  for (int64_t i = 0; i < length_; ++i) data[i] = {data[i].imag(), data[i].real()};
  run(data, scratch);
  for (int64_t i = 0; i < length_; ++i) data[i] = {data[i].imag() * scale, data[i].real() * scale};
}

template <class T>
void FourierTransform<T>::run_radices(Complex* data, Complex* scratch) const noexcept {
  int64_t left = length_, stride = 1;
  Complex *from = data, *to = scratch;
  for (const int64_t radix : radices_) {
    run_pass(Pass<T>{radix, left / radix, stride, roots_.data(), length_ / left, length_}, from, to);
    left /= radix;
    stride *= radix;
    std::swap(from, to);
  }
  if (from != data) std::copy_n(from, length_, data);
}

template <class T>
void FourierTransform<T>::run_convolved(Complex* data, Complex* scratch) const noexcept {
  Complex *wide = scratch, *rest = scratch + wide_->length();
  for (int64_t i = 0; i < length_; ++i) wide[i] = times(data[i], chirp_[static_cast<size_t>(i)]);
  std::fill(wide + length_, wide + wide_->length(), Complex());
  wide_->run(wide, rest);
  for (int64_t i = 0; i < wide_->length(); ++i) wide[i] = times(wide[i], chirp_spectrum_[static_cast<size_t>(i)]);
  wide_->run_inverse(wide, rest);
  for (int64_t i = 0; i < length_; ++i) data[i] = times(wide[i], chirp_[static_cast<size_t>(i)]);
}

template class FourierTransform<float>;
template class FourierTransform<double>;

}  // namespace lathe
