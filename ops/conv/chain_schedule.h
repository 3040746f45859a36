#pragma once
// Which rows each convolution of a chain computes for each band of rows of the last one's output: plain data. A stage
// computes what the next one reads and no band before did; a thread that begins within a picture computes the rows
// above its own once more.
#include <array>
#include <vector>

#include "jit/kernels/conv/conv_shape.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {

inline constexpr size_t kMostChainStages = 4;

// The rows [first, first + rows) of a convolution's output, as an axis of their own that reads rows from `source` on.
struct BandAxis {
  ConvAxis axis;
  int64_t source = 0;
};
BandAxis band_of(const ConvAxis& whole, int64_t first, int64_t rows);

// What a stage does for one band: rows [first, first + rows) from input rows `source` on. Its results lie behind rows
// [kept, first) of the band before.
struct StageBand {
  int axis = -1;  // of ChainSchedule::axes(); none: no rows to compute
  int64_t kept = 0, first = 0, rows = 0, source = 0;
  int64_t end() const { return first + rows; }
};
using ChainBand = std::array<StageBand, kMostChainStages>;

class ChainSchedule {
 public:
  struct Stage {
    ConvAxis y;
    double row_flop = 0;  // of one row of its output
  };
  // A band of one picture, as a thread comes to it.
  struct Unit {
    int64_t image = 0;
    const ChainBand* band = nullptr;
    bool is_fresh = true;  // no band before it lies in scratch memory
    bool is_last = false;  // of the thread
  };

  // `band_rows`: of the last stage's output, about. Requires: 2 to kMostChainStages stages; pictures are not empty.
  ChainSchedule(std::vector<Stage> stages, int64_t images, int threads, int64_t band_rows);

  // body(unit), in the thread's order.
  template <class Body>
  void for_units(int thread, Body body) const {
    const Range range = split_evenly(images_ * bands_, thread, threads_);
    for (int64_t unit = range.begin; unit < range.end; ++unit) {
      const int64_t band = unit % bands_;
      const bool is_fresh = band == 0 || unit == range.begin;
      body(Unit{unit / bands_, &units_[is_fresh ? 1 : 0][static_cast<size_t>(band)], is_fresh, unit + 1 == range.end});
    }
  }

  int64_t band_rows() const { return divide_up(stages_.back().y.out, bands_); }
  // Of all bands, each once.
  const std::vector<ConvAxis>& axes(size_t stage) const { return axes_[stage]; }
  // The most rows of a stage's results that are at hand at a time.
  int64_t most_rows(size_t stage) const;
  // Multiplications of the thread that has most, over an even share of all.
  double longest_share() const;

 private:
  int64_t last_row(size_t stage, int64_t band) const;
  ChainBand make_band(int64_t band, bool is_fresh);

  std::vector<Stage> stages_;
  int64_t images_;
  int threads_;
  int64_t bands_;                                // of one picture
  std::array<std::vector<ChainBand>, 2> units_;  // by band: behind the one before, and fresh
  std::vector<std::vector<ConvAxis>> axes_;      // by stage
};

}  // namespace lathe
