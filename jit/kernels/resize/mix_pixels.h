#pragma once
// Weighted sums of pixels, runs of neighbouring elements: Resize over whole rows, and along rows of pixels that have
// many channels. Sums are float32; bytes take their integer part, modulo 256.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/resize/mix_terms.h"
#include "src/base/cpu.h"

namespace lathe {

// Vectors that share each weight; pixels of no more have code of their own.
inline constexpr int kVectorsTogether = 8;

struct MixPixelsPlan {
  Isa isa = Isa::avx2;
  int terms = 1;
  bool blends = false;  // as in MixTerms
  MixElement from = MixElement::f32, to = MixElement::f32;
  int elements = 0;         // of a pixel: a few vectors; 0: any number, but as many as a vector has
  int stride = 0;           // bytes from pixel to pixel of the result, where `elements` are known
  int alike = 1;            // few-vector pixels made of the same ones that are made together, where there are so many
  bool by_element = false;  // of any number, one after the other: a pixel is shorter than a vector

  bool is_valid() const;
};
std::string to_string(const MixPixelsPlan& plan);

// For pixels of so many elements, those of the result `stride` bytes apart.
MixPixelsPlan mix_pixels_plan(Isa isa, const MixTerms& terms, MixElement from, MixElement to, int64_t elements,
                              int64_t stride);

// The same sums in each of several rows. All distances are in bytes.
struct MixPixelsArgs {
  const void* from;
  void* to;
  const int64_t* offsets;  // [pixels][terms]: into a row of `from`
  const float* weights;    // [pixels][terms]
  const int32_t* alike;    // of each pixel, as in MixTerms; read where the plan's is not 1
  int64_t pixels;          // of a row of the result; >= 1
  int64_t elements;        // of a pixel, and
  int64_t stride;          // from pixel to pixel of the result, where the plan does not say them
  int64_t rows;            // >= 1
  int64_t from_row, to_row;
};
using MixPixelsFn = void(const MixPixelsArgs* args);
Kernel<MixPixelsFn> mix_pixels_kernel(const MixPixelsPlan& plan);

}  // namespace lathe
