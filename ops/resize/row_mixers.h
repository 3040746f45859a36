#pragma once
// Kernels that mix pixels, bound to the tables of one picture: along rows, across rows, and from one element type to
// another. Rows are `stride` bytes apart.
#include <optional>

#include "jit/kernels/resize/mix_elements.h"
#include "jit/kernels/resize/mix_pixels.h"

namespace lathe {

template <class Byte>
struct MixedRows {
  Byte* first;
  int64_t stride;
};
using RowsToRead = MixedRows<const std::byte>;
using RowsToWrite = MixedRows<std::byte>;

// Where a pixel has fewer elements, sums along a row are those of its single elements.
inline constexpr int64_t kShortPixel = 8;

// Along rows of float32 pixels of `lanes` elements.
class ColumnMixer {
 public:
  // `room`: what rows of the result have room for.
  ColumnMixer(Isa isa, const MixTerms& terms, int64_t columns, int64_t lanes, MixedRoom room);
  void run(RowsToRead from, RowsToWrite to, int64_t rows) const noexcept;

 private:
  int64_t lanes_, pixels_in_row_;
  // Pixels of a vector and more; else by elements.
  Kernel<MixPixelsFn> pixels_;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> alike_;
  std::vector<float> weights_;
  Kernel<MixElementsFn> elements_;
  MixElementsTable table_;
};

// Sums of rows; of bytes, where `from` or `to` is.
class RowMixer {
 public:
  struct Places {
    int64_t stride;    // of the rows that are read
    int64_t ring = 0;  // as many lie in memory: row i where row i % ring does; 0: all
  };
  RowMixer(Isa isa, const MixTerms& terms, Places places, int64_t elements, MixElement from, MixElement to,
           int64_t to_stride);
  // `count` rows of the result from `row` on.
  void run(const std::byte* from, int64_t row, int64_t count, std::byte* to) const noexcept;

 private:
  int64_t terms_, elements_, to_stride_;
  Kernel<MixPixelsFn> kernel_;
  std::vector<int64_t> offsets_;
  std::vector<int32_t> alike_;
  std::vector<float> weights_;
};

// Rows as they are, in another type.
class RowConverter {
 public:
  RowConverter(Isa isa, int64_t elements, MixElement from, MixElement to);
  void run(RowsToRead from, RowsToWrite to, int64_t rows) const noexcept;

 private:
  int64_t elements_;
  Kernel<MixPixelsFn> kernel_;
};

}  // namespace lathe
