#include "ops/conv/chain_schedule.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/index_in.h"

namespace lathe {
namespace {

int64_t first_offset(const ConvAxis& axis) {
  int64_t first = axis.taps.front().offset;
  for (const ConvTap& tap : axis.taps) first = std::min(first, tap.offset);
  return first;
}
int64_t last_offset(const ConvAxis& axis) {
  int64_t last = axis.taps.front().offset;
  for (const ConvTap& tap : axis.taps) last = std::max(last, tap.offset);
  return last;
}

}  // namespace

BandAxis band_of(const ConvAxis& whole, int64_t first, int64_t rows) {
  BandAxis band;
  band.axis = whole;
  const int64_t top = first * whole.stride;
  band.source = std::clamp<int64_t>(top + first_offset(whole), 0, whole.in);
  for (ConvTap& tap : band.axis.taps) tap.offset += top - band.source;
  const int64_t reach = (rows - 1) * whole.stride + last_offset(band.axis) + 1;
  band.axis.in = std::clamp<int64_t>(reach, 0, whole.in - band.source);
  band.axis.out = band.axis.out_extent = rows;
  return band;
}

ChainSchedule::ChainSchedule(std::vector<Stage> stages, int64_t images, int threads, int64_t band_rows)
    : stages_(std::move(stages)), images_(images), threads_(threads), axes_(stages_.size()) {
  LATHE_CHECK(stages_.size() >= 2 && stages_.size() <= kMostChainStages, "a chain of too few or too many convolutions");
  const int64_t rows = stages_.back().y.out;
  bands_ = std::clamp<int64_t>(divide_up(rows, band_rows), 1, rows);
  // Parts of equal size for all threads.
  if (images_ * bands_ % threads_ != 0 && images_ < threads_) bands_ = std::min(rows, round_up(bands_, threads_));
  for (std::vector<ChainBand>& bands : units_) bands.resize(static_cast<size_t>(bands_));
  for (int64_t band = 1; band < bands_; ++band) units_[0][static_cast<size_t>(band)] = make_band(band, false);
  units_[1][0] = make_band(0, true);
  for (int thread = 1; thread < threads_; ++thread) {
    const Range range = split_evenly(images_ * bands_, thread, threads_);
    const int64_t band = range.begin % bands_;
    if (band > 0 && range.begin < range.end) units_[1][static_cast<size_t>(band)] = make_band(band, true);
  }
}

// The row behind the last one that `stage` must have computed when this band of the last stage ends.
int64_t ChainSchedule::last_row(size_t stage, int64_t band) const {
  int64_t end = stages_.back().y.out * (band + 1) / bands_;
  for (size_t s = stages_.size() - 1; s > stage; --s) {
    const ConvAxis& y = stages_[s].y;
    end = end == 0 ? 0 : std::clamp<int64_t>((end - 1) * y.stride + last_offset(y) + 1, 0, y.in);
  }
  return end;
}

ChainBand ChainSchedule::make_band(int64_t band, bool is_fresh) {
  ChainBand result;
  for (size_t s = stages_.size(); s-- > 0;) {
    StageBand& own = result[s];
    const int64_t end = last_row(s, band);
    if (s + 1 == stages_.size()) {
      own.kept = own.first = end == 0 || band == 0 ? 0 : last_row(s, band - 1);
    } else {
      const ConvAxis& next = stages_[s + 1].y;
      own.kept = std::clamp<int64_t>(result[s + 1].first * next.stride + first_offset(next), 0, end);
      own.first = is_fresh || band == 0 ? own.kept : std::max(own.kept, last_row(s, band - 1));
    }
    own.rows = std::max<int64_t>(0, end - own.first);
    if (own.rows == 0) continue;
    const BandAxis part = band_of(stages_[s].y, own.first, own.rows);
    own.source = part.source;
    own.axis = index_in(axes_[s], part.axis);
  }
  return result;
}

int64_t ChainSchedule::most_rows(size_t stage) const {
  int64_t most = 0;
  for (const std::vector<ChainBand>& bands : units_) {
    for (const ChainBand& band : bands) most = std::max(most, band[stage].end() - band[stage].kept);
  }
  return most;
}

double ChainSchedule::longest_share() const {
  double all = 0, most = 0;
  for (const Stage& stage : stages_) all += stage.row_flop * static_cast<double>(stage.y.out * images_);
  for (int thread = 0; thread < threads_; ++thread) {
    double own = 0;
    for_units(thread, [&](const Unit& unit) {
      for (size_t s = 0; s < stages_.size(); ++s)
        own += stages_[s].row_flop * static_cast<double>((*unit.band)[s].rows);
    });
    most = std::max(most, own);
  }
  return most * threads_ / all;
}

}  // namespace lathe
