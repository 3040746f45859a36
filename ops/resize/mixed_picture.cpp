#include "ops/resize/mixed_picture.h"

#include <algorithm>
#include <set>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLine = 64;
// Of rows between both sums: half of the smallest L1, as what is read and written goes through it, too.
constexpr int64_t kBandBytes = 16 << 10;

int64_t padded(int64_t elements) { return round_up(elements * bytes_of(MixElement::f32), kLine); }

// Turns of the vector units for a sum, about: a permutation and a multiply-add for each term, or a gather of single
// elements, or the multiply-add alone.
double column_turns(const MixTerms& columns, const MixedPicture::Extents& extents) {
  if (extents.lanes > 1) return columns.terms;
  const bool is_near = extents.columns <= 2 * columns.count();
  return (is_near ? 2 : 8) * columns.terms;
}

}  // namespace

MixedPicture::MixedPicture(Isa isa, const Extents& extents, const std::optional<MixTerms>& rows,
                           const std::optional<MixTerms>& columns, const Elements& elements)
    : planes_(extents.planes), in_rows_(extents.rows), out_rows_(rows ? rows->count() : extents.rows) {
  const int64_t in = extents.columns * extents.lanes, out = columns ? columns->count() * extents.lanes : in;
  constexpr MixElement kMiddle = MixElement::f32;
  out_elements_ = out;
  in_bytes_ = in * bytes_of(elements.from);
  out_bytes_ = out * bytes_of(elements.to);
  in_stride_ = padded(in);
  out_stride_ = padded(out);
  choose_order(extents, rows ? &*rows : nullptr, columns ? &*columns : nullptr);
  choose_band(rows ? &*rows : nullptr);
  const bool writes_columns = order_ == Order::columns || order_ == Order::rows_first;
  if (writes_columns && elements.to != kMiddle) narrow_.emplace(isa, out, kMiddle, elements.to);
  const MixedRoom room = writes_columns && !narrow_ ? MixedRoom::sums : MixedRoom::vectors;
  if (columns) columns_.emplace(isa, *columns, extents.columns, extents.lanes, room);
  if (order_ == Order::rows) {
    rows_.emplace(isa, *rows, RowMixer::Places{in_bytes_}, in, elements.from, elements.to, out_bytes_);
  } else if (order_ == Order::columns_first) {
    rows_.emplace(isa, *rows, RowMixer::Places{out_stride_, band_}, out, kMiddle, elements.to, out_bytes_);
  } else if (order_ == Order::rows_first) {
    rows_.emplace(isa, *rows, RowMixer::Places{in_bytes_}, in, elements.from, kMiddle, in_stride_);
  }
  const bool reads_columns = order_ == Order::columns || order_ == Order::columns_first;
  if (reads_columns && elements.from != kMiddle) widen_.emplace(isa, in, elements.from, kMiddle);
}

void MixedPicture::choose_order(const Extents& extents, const MixTerms* rows, const MixTerms* columns) {
  const auto in = static_cast<double>(extents.columns), planes = static_cast<double>(planes_ * extents.lanes);
  if (columns == nullptr) {
    flop_ = planes * 2 * in * static_cast<double>(rows->places.size());
    return;
  }
  const auto out = static_cast<double>(columns->count()), of_sum = static_cast<double>(columns->terms);
  if (rows == nullptr) {
    order_ = Order::columns;
    flop_ = planes * 2 * out * of_sum * static_cast<double>(in_rows_);
    return;
  }
  const std::set<int32_t> read(rows->places.begin(), rows->places.end());
  const auto read_rows = static_cast<double>(read.size()), out_rows = static_cast<double>(out_rows_);
  // A store for each sum.
  const double along = column_turns(*columns, extents) + 1, across = rows->terms + 1;
  const double columns_first = out * (read_rows * along + out_rows * across);
  const double rows_first = out_rows * (in * across + out * along);
  order_ = columns_first < rows_first ? Order::columns_first : Order::rows_first;
  const bool is_columns = order_ == Order::columns_first;
  flop_ = planes * 2 *
          (out * of_sum * (is_columns ? read_rows : out_rows) + (is_columns ? out : in) * out_rows * rows->terms);
}

void MixedPicture::choose_band(const MixTerms* rows) {
  if (order_ == Order::rows) return;
  if (order_ != Order::columns_first) {
    const int64_t longer = std::max(in_stride_, out_stride_);
    band_ = std::max<int64_t>(kBandBytes / longer, 1);
    return;
  }
  int64_t most = 1;
  for (auto at = rows->places.begin(); at != rows->places.end(); at += rows->terms) {
    const auto [first, last] = std::minmax_element(at, at + rows->terms);
    first_.push_back(*first);
    last_.push_back(*last);
    most = std::max<int64_t>(most, *last - *first + 1);
  }
  band_ = std::max(most, std::min(kBandBytes / out_stride_, in_rows_));
}

double MixedPicture::bytes() const {
  return static_cast<double>(planes_ * (in_rows_ * in_bytes_ + out_rows_ * out_bytes_));
}

std::string MixedPicture::text() const {
  static constexpr const char* kOrders[] = {"rows", "columns", "columns first", "rows first"};
  return kOrders[static_cast<size_t>(order_)];
}

size_t MixedPicture::scratch_bytes() const {
  return order_ == Order::rows ? 0 : static_cast<size_t>(band_ * (in_stride_ + out_stride_));
}

void MixedPicture::run(const std::byte* from, std::byte* to, std::byte* scratch, Range rows) const noexcept {
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t plane = row / out_rows_, begin = plane * out_rows_, end = std::min(begin + out_rows_, rows.end);
    run_plane(from + plane * in_rows_ * in_bytes_, to + row * out_bytes_, {row - begin, end - begin}, scratch);
    row = end;
  }
}

// `to`: the first of the rows.
void MixedPicture::run_plane(const std::byte* from, std::byte* to, Range rows, std::byte* scratch) const {
  if (order_ == Order::rows) return rows_->run(from, rows.begin, rows.end - rows.begin, to);
  if (order_ == Order::columns_first) return run_columns_first(from, to, rows, scratch);
  run_columns(from, to, rows, scratch);
}

// From the input's rows to rows of float32.
void MixedPicture::mix_columns(RowsToRead from, RowsToWrite to, int64_t rows, std::byte* scratch) const {
  if (widen_) {
    widen_->run(from, {scratch, in_stride_}, rows);
    from = {scratch, in_stride_};
  }
  columns_->run(from, to, rows);
}

// Rows as they are, or their sums first.
void MixedPicture::run_columns(const std::byte* from, std::byte* to, Range rows, std::byte* scratch) const {
  const RowsToWrite floats{result_rows(scratch), out_stride_};
  for (int64_t row = rows.begin; row < rows.end; row += band_, to += band_ * out_bytes_) {
    const int64_t count = std::min(band_, rows.end - row);
    RowsToRead read{from + row * in_bytes_, in_bytes_};
    if (rows_) {
      rows_->run(from, row, count, scratch);
      read = {scratch, in_stride_};
    }
    const RowsToWrite result{to, out_bytes_};
    mix_columns(read, narrow_ ? floats : result, count, scratch);
    if (narrow_) narrow_->run({floats.first, floats.stride}, result, count);
  }
}

// Rows that are mixed along themselves lie in a ring, from which sums are taken across.
void MixedPicture::run_columns_first(const std::byte* from, std::byte* to, Range rows, std::byte* scratch) const {
  std::byte* ring = result_rows(scratch);
  int64_t begin = 0, end = 0;  // rows in the ring
  for (int64_t row = rows.begin; row < rows.end;) {
    int64_t first = first_[static_cast<size_t>(row)], last = last_[static_cast<size_t>(row)], next = row + 1;
    for (; next < rows.end; ++next) {
      const int64_t lower = std::min<int64_t>(first, first_[static_cast<size_t>(next)]);
      const int64_t upper = std::max<int64_t>(last, last_[static_cast<size_t>(next)]);
      if (upper - lower >= band_) break;
      first = lower;
      last = upper;
    }
    if (first < begin || first > end) begin = end = first;
    while (end <= last) {
      const int64_t slot = end % band_, count = std::min(last + 1 - end, band_ - slot);
      mix_columns({from + end * in_bytes_, in_bytes_}, {ring + slot * out_stride_, out_stride_}, count, scratch);
      end += count;
    }
    begin = std::max(begin, end - band_);
    rows_->run(ring, row, next - row, to);
    to += (next - row) * out_bytes_;
    row = next;
  }
}

}  // namespace lathe
