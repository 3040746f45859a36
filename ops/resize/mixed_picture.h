#pragma once
// Planes of rows and columns whose every pixel becomes a weighted sum of others, by generated code: what linear, cubic
// and antialiased Resize are along one axis, or two neighbouring ones. Both are done in one go over bands of rows that
// stay in L1, in the order that is less work.
#include <optional>
#include <string>
#include <vector>

#include "ops/resize/row_mixers.h"
#include "src/base/thread_team.h"

namespace lathe {

class MixedPicture {
 public:
  struct Extents {
    int64_t planes = 1, rows = 1, columns = 1;
    int64_t lanes = 1;  // of a pixel: a block of channels, channels behind the picture, or a single element
  };
  struct Elements {
    MixElement from = MixElement::f32, to = MixElement::f32;
  };
  // Of the input; nullopt: along this axis pixels stay. Requires: one of them is there, no extent is zero, and the
  // bytes of a row fit 31 bits.
  MixedPicture(Isa isa, const Extents& extents, const std::optional<MixTerms>& rows,
               const std::optional<MixTerms>& columns, const Elements& elements);

  int64_t row_count() const { return planes_ * out_rows_; }  // of the result: what threads share
  size_t scratch_bytes() const;                              // of each thread
  double flop() const { return flop_; }
  double bytes() const;      // that are read and written
  std::string text() const;  // how it is done
  // Of the result, if it is of float32.
  size_t float_row_bytes() const { return static_cast<size_t>(out_elements_ * bytes_of(MixElement::f32)); }
  void run(const std::byte* from, std::byte* to, std::byte* scratch, Range rows) const noexcept;

 private:
  enum class Order { rows, columns, columns_first, rows_first };

  void choose_order(const Extents& extents, const MixTerms* rows, const MixTerms* columns);
  void choose_band(const MixTerms* rows);
  void mix_columns(RowsToRead from, RowsToWrite to, int64_t rows, std::byte* scratch) const;
  void run_plane(const std::byte* from, std::byte* to, Range rows, std::byte* scratch) const;
  void run_columns(const std::byte* from, std::byte* to, Range rows, std::byte* scratch) const;
  void run_columns_first(const std::byte* from, std::byte* to, Range rows, std::byte* scratch) const;

  // Of each thread: rows of float32 as long as the input's, and behind them as long as the result's.
  std::byte* result_rows(std::byte* scratch) const { return scratch + band_ * in_stride_; }

  Order order_ = Order::rows;
  int64_t planes_, in_rows_, out_rows_;
  int64_t out_elements_;            // of a row
  int64_t in_bytes_, out_bytes_;    // of a row
  int64_t in_stride_, out_stride_;  // of a row of float32 in scratch
  int64_t band_ = 1;                // rows in scratch
  double flop_ = 0;
  std::optional<RowMixer> rows_;
  std::optional<ColumnMixer> columns_;
  std::optional<RowConverter> widen_, narrow_;
  std::vector<int32_t> first_, last_;  // of each row of the result: rows that it is made of
};

}  // namespace lathe
