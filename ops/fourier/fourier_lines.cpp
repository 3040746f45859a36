#include "ops/fourier/fourier_lines.h"

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

template <class T>
void store(const FourierLines<T>& lines, T* out, int64_t k, std::complex<T> value) {
  out[k * lines.out_stride] = value.real();
  if (lines.out_parts == 2) out[k * lines.out_stride + 1] = value.imag();
}

// The half that is not given: the spectrum of a real signal is the conjugate of itself read backwards. Imaginary parts
// where that meets itself have no meaning.
template <class T>
void complete_half(std::complex<T>* data, int64_t length) {
  data[0].imag(0);
  if (length % 2 == 0) data[length / 2].imag(0);
  for (int64_t k = 1; k < (length + 1) / 2; ++k) data[length - k] = std::conj(data[k]);
}

}  // namespace

template <class T>
double FourierLines<T>::flop() const {
  const auto length = static_cast<double>(transform->length());
  return 5 * static_cast<double>(units()) * length * std::log2(length + 1);
}

template <class T>
int64_t FourierLines<T>::samples() const {
  const int64_t length = transform->length();
  return std::min(in_count, direction == FourierDirection::inverse_of_half ? length / 2 + 1 : length);
}

template <class T>
void FourierLines<T>::run(const T* in, const T* window, T* out, Range range, Complex* memory) const noexcept {
  for (long unit = range.begin; unit < range.end; ++unit) {
    if (is_paired()) {
      run_pair(in, window, out, 2 * unit, memory);
    } else {
      run_line(in, window, out, unit, memory);
    }
  }
}

template <class T>
void FourierLines<T>::run_pair(const T* in, const T* window, T* out, int64_t line, Complex* memory) const noexcept {
  const int64_t length = transform->length(), used = samples();
  const bool is_single = line + 1 == lines();
  const T *first = in + in_offset(line), *second = is_single ? first : in + in_offset(line + 1);
  for (int64_t i = 0; i < used; ++i) {
    const T factor = window != nullptr ? window[i] : T{1};
    memory[i] = {factor * first[i * in_stride], factor * second[i * in_stride]};
  }
  std::fill(memory + used, memory + length, Complex());
  transform->run(memory, memory + length);
  T* to = out + out_offset(line);
  T* second_to = is_single ? nullptr : out + out_offset(line + 1);
  for (int64_t k = 0; k < out_count; ++k) {
    // Of a + ib: a's spectrum is its symmetric part, b's the other one.
    const Complex here = memory[k], mirrored = std::conj(memory[k == 0 ? 0 : length - k]);
    const Complex sum = here + mirrored, difference = here - mirrored;
    store(*this, to, k, T{0.5} * sum);
    if (!is_single) store(*this, second_to, k, Complex(T{0.5} * difference.imag(), T{-0.5} * difference.real()));
  }
}

template <class T>
void FourierLines<T>::run_line(const T* in, const T* window, T* out, int64_t line, Complex* memory) const noexcept {
  const int64_t length = transform->length(), used = samples();
  const T* from = in + in_offset(line);
  for (int64_t i = 0; i < used; ++i) {
    const T factor = window != nullptr ? window[i] : T{1};
    const T imaginary = in_parts == 2 ? from[i * in_stride + 1] : T{0};
    memory[i] = {factor * from[i * in_stride], factor * imaginary};
  }
  std::fill(memory + used, memory + length, Complex());
  if (direction == FourierDirection::inverse_of_half) complete_half(memory, length);
  if (direction == FourierDirection::forward) {
    transform->run(memory, memory + length);
  } else {
    transform->run_inverse(memory, memory + length);
  }
  T* to = out + out_offset(line);
  for (int64_t k = 0; k < out_count; ++k) store(*this, to, k, memory[k]);
}

template struct FourierLines<float>;
template struct FourierLines<double>;

}  // namespace lathe
