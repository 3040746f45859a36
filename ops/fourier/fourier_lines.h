#pragma once
// Fourier transforms of many lines of a tensor, as DFT and STFT need them.
#include <memory>

#include "ops/fourier/fourier.h"
#include "src/base/thread_team.h"

namespace lathe {

enum class FourierDirection : uint8_t {
  forward,
  inverse,
  inverse_of_half,  // the input is the first half of a spectrum with conjugate symmetry, the result is real
};

// Line number outer * inner + i begins `*_outer` * outer + `*_inner` * i elements behind the first; its samples are
// `*_stride` elements apart and have 1 (real) or 2 (complex) parts. All in elements of the tensor. T: float or double,
// also of the arithmetic.
template <class T>
struct FourierLines {
  using Complex = std::complex<T>;

  std::shared_ptr<const FourierTransform<T>> transform;
  FourierDirection direction = FourierDirection::forward;
  int64_t outer = 0, inner = 0;
  int64_t in_outer = 0, in_inner = 0, in_stride = 0, in_count = 0, in_parts = 1;
  int64_t out_outer = 0, out_inner = 0, out_stride = 0, out_count = 0, out_parts = 2;

  int64_t lines() const { return outer * inner; }
  double flop() const;
  // Two lines of real samples are transformed at once.
  int64_t units() const { return is_paired() ? (lines() + 1) / 2 : lines(); }
  int64_t memory_elements() const { return transform->length() + transform->scratch_elements(); }  // for each thread

  // The units of `range`. `window`: in_count factors, or null.
  void run(const T* in, const T* window, T* out, Range range, Complex* memory) const noexcept;

 private:
  bool is_paired() const { return direction == FourierDirection::forward && in_parts == 1; }
  void run_pair(const T* in, const T* window, T* out, int64_t line, Complex* memory) const noexcept;
  void run_line(const T* in, const T* window, T* out, int64_t line, Complex* memory) const noexcept;
  int64_t in_offset(int64_t line) const { return line / inner * in_outer + line % inner * in_inner; }
  int64_t out_offset(int64_t line) const { return line / inner * out_outer + line % inner * out_inner; }
  int64_t samples() const;  // of a line that are used
};

extern template struct FourierLines<float>;
extern template struct FourierLines<double>;

}  // namespace lathe
