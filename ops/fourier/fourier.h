#pragma once
// The discrete Fourier transform of any length in O(n log n): mixed radix, and Bluestein's for large prime factors.
#include <complex>
#include <cstdint>
#include <memory>
#include <vector>

namespace lathe {

// In the arithmetic of T, float or double. Immutable once made: any number of threads can run it, each with scratch
// memory of its own.
template <class T>
class FourierTransform {
 public:
  using Complex = std::complex<T>;

  explicit FourierTransform(int64_t length);  // Requires: length > 0.

  int64_t length() const { return length_; }
  int64_t scratch_elements() const;
  // data[k] = sum over n of data[n] * exp(-2 pi i k n / length), in place.
  void run(Complex* data, Complex* scratch) const noexcept;
  // With the sign of the exponent turned and 1 / length: undoes run().
  void run_inverse(Complex* data, Complex* scratch) const noexcept;

 private:
  void run_radices(Complex* data, Complex* scratch) const noexcept;
  void run_convolved(Complex* data, Complex* scratch) const noexcept;

  int64_t length_;
  std::vector<int64_t> radices_;
  std::vector<Complex> roots_;  // exp(-2 pi i k / length)
  // Bluestein: a convolution with a chirp, by transforms of a power of two.
  std::unique_ptr<const FourierTransform<T>> wide_;
  std::vector<Complex> chirp_, chirp_spectrum_;
};

extern template class FourierTransform<float>;
extern template class FourierTransform<double>;

}  // namespace lathe
