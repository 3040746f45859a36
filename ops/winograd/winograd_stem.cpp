#include "ops/winograd/winograd_stem.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/core_cycles.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kMostChannels = 4;
constexpr int kRing = kStemMostRows;  // rows of pixels that wait for the next row of tiles

struct StemTile {
  int rows, vecs;
};
// A broadcast factor is the operand of a multiply-add where no register is left for it.
StemTile stem_tile(Isa isa, int64_t out_blocks) {
  static constexpr int kRows512[] = {0, 12, 12, 8, 7}, kRows2[] = {0, 8, 6};
  const auto vecs = static_cast<int>(std::min<int64_t>(out_blocks, has_avx512(isa) ? 4 : 2));
  return {has_avx512(isa) ? kRows512[vecs] : kRows2[vecs], vecs};
}

bool is_plain_axis(const ConvAxis& axis, int64_t taps) {
  if (axis.stride != 2 || axis.out_step != 1 || axis.out_first != 0 || axis.out_extent != axis.out) return false;
  if (static_cast<int64_t>(axis.taps.size()) != taps) return false;
  for (size_t i = 0; i < axis.taps.size(); ++i) {
    if (axis.taps[i].kernel != static_cast<int>(i)) return false;
    if (axis.taps[i].offset != axis.taps[0].offset + static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

bool is_winograd_stem(const ConvProblem& problem, int outputs) {
  if (problem.phases.size() != 1 || problem.groups != 1 || problem.is_transposed || problem.in_lanes() != 1 ||
      problem.frames != ConvFrames()) {
    return false;
  }
  const ConvShape& shape = problem.phases[0];
  if (problem.in_channels > kMostChannels || outputs < 2 || outputs > 4) return false;
  const auto taps = static_cast<int64_t>(shape.x.taps.size());
  return taps >= 5 && taps <= 7 && is_plain_axis(shape.y, taps) && is_plain_axis(shape.x, taps);
}

double winograd_stem_cycles(const ConvProblem& problem, int outputs, Isa isa, int threads, const CoreRates& rates) {
  // Of a frequency's vector: its sum is stored, and goes through the output transform.
  constexpr double kStoreCycles = 2.5, kOutputCycles = 4.5, kPixelCycles = 1.3, kRowCycles = 8;
  const ConvShape& shape = problem.phases[0];
  const WinogradForm form = winograd_form(problem, outputs);
  const auto channels = static_cast<double>(problem.in_channels), blocks = static_cast<double>(problem.out_blocks());
  double factors = 0;
  for (const WinogradClass& part : winograd_classes(form))
    factors += static_cast<double>(part.frequencies.size()) * part.slots * channels;
  const double multiplies = factors * blocks / products_per_cycle(isa, rates) * 1.05;
  const double ends = form.frequencies() * blocks * (kStoreCycles + kOutputCycles);
  const double halves = has_avx512(isa) ? 1 : 2;
  const double inputs =
      channels * stem_window(form) * (form.stride * form.outputs * kPixelCycles + kRowCycles * halves);
  const auto tile_rows = divide_up(problem.batch * divide_up(shape.y.out, outputs), threads);
  return static_cast<double>(tile_rows * divide_up(shape.x.out, outputs)) * (multiplies + ends + inputs) + 2000;
}

// Those that the next tile row is the first to read.
struct WinogradStem::PictureRows {
  int64_t image, begin, end;
};

// Where a thread keeps what lies between the transforms.
struct WinogradStem::Work {
  float *pixels, *no_row, *rows, *tiles, *sums;
};

WinogradStem::WinogradStem(ConvProblem problem, const WinogradPlan& plan, int threads,
                           std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)), threads_(threads), operand_batch_bytes_(std::move(operand_batch_bytes)) {
  if (!is_winograd_stem(problem_, plan.form.outputs)) throw JitError("not possible here: " + to_string(plan));
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  form_ = winograd_form(problem_, plan.form.outputs);
  const ConvShape& shape = problem_.phases[0];
  tile_rows_ = divide_up(shape.y.out, form_.outputs);
  tiles_ = divide_up(shape.x.out, form_.outputs);
  row_floats_ = round_up((tiles_ - 1) * form_.outputs * form_.stride + stem_window(form_), kStemRow);
  out_stride_ = problem_.out_blocks() * problem_.lanes;
  out_frequency_ = tiles_ * out_stride_ + problem_.lanes;  // off the page
  own_scratch_ = row_floats_ + tiles_ * kStemRow * (1 + problem_.in_channels * kRing) +
                 tiles_ * stem_tile_floats(form_, problem_.in_channels) + form_.frequencies() * out_frequency_;
  own_scratch_ = round_up(own_scratch_, kStemRow);
  make_kernels(plan.isa);
}

void WinogradStem::make_kernels(Isa isa) {
  const ConvShape& shape = problem_.phases[0];
  const StemTile tile = stem_tile(isa, problem_.out_blocks());
  blocks_ = divide_up(tiles_, tile.rows);
  const auto rows = static_cast<int>(divide_up(tiles_, blocks_));
  tall_blocks_ = tiles_ - blocks_ * (rows - 1);
  const auto last_vecs = static_cast<int>((problem_.out_blocks() - 1) % tile.vecs + 1);
  for (WinogradClass& part : winograd_classes(form_)) {
    StemProductPlan plan{isa, form_, static_cast<int>(problem_.in_channels)};
    plan.row_phases = part.first_slot + part.slots > winograd_slot(form_, 1, 0) ? 2 : 1;
    plan.column_phases = part.slots / plan.row_phases;
    Products products;
    for (int is_low = 0; is_low < (tall_blocks_ < blocks_ ? 2 : 1); ++is_low) {
      for (int is_last = 0; is_last < 2; ++is_last) {
        plan.rows = rows - is_low;
        plan.vecs = is_last == 1 ? last_vecs : tile.vecs;
        products.by_rows[is_low][is_last] = stem_product(plan);
      }
    }
    part.format = {int64_t{tile.vecs} * problem_.lanes, problem_.lanes};
    part.weights = packed_size_;
    packed_size_ += static_cast<int64_t>(part.frequencies.size()) * part.weights_each(problem_);
    classes_.push_back(part);
    products_.push_back(products);
  }
  across_ = stem_across(isa, form_);
  down_ = stem_down(isa, form_);
  const auto last_of = [&](int64_t outputs) { return static_cast<int>((outputs - 1) % form_.outputs + 1); };
  for (const int stored_rows : {form_.outputs, last_of(shape.y.out)}) {
    out_.emplace_back();
    for (const int stored : {form_.outputs, last_of(shape.x.out)})
      out_.back().push_back(winograd_output({isa, form_, stored_rows, stored, problem_.has_bias, problem_.epilogue}));
  }
}

std::string WinogradStem::packing() const {
  return fmt::format("winograd_stem.2 {} c{} panels of {}", to_string(form_), problem_.lanes,
                     classes_[0].format.panel_columns);
}

void WinogradStem::pack(const float* weights, float* packed) const {
  pack_winograd(problem_, form_, classes_, weights, packed);
}

WinogradStem::Work WinogradStem::work_of(float* scratch) const {
  Work work{};
  work.pixels = scratch;
  work.no_row = work.pixels + row_floats_;
  work.rows = work.no_row + tiles_ * kStemRow;
  work.tiles = work.rows + problem_.in_channels * kRing * tiles_ * kStemRow;
  work.sums = work.tiles + tiles_ * stem_tile_floats(form_, problem_.in_channels);
  return work;
}

// Row y of the picture, along x, into its place of the ring.
void WinogradStem::transform_row(const ConvArguments& arguments, const Work& work, int64_t image,
                                 int64_t y) const noexcept {
  const ConvShape& shape = problem_.phases[0];
  const int64_t first = shape.x.taps[0].offset;  // the pixel that work.pixels begins with
  const int64_t begin = std::clamp<int64_t>(-first, 0, row_floats_);
  const int64_t end = std::clamp<int64_t>(shape.x.in - first, begin, row_floats_);
  for (int64_t channel = 0; channel < problem_.in_channels; ++channel) {
    const float* row = arguments.source + ((image * problem_.in_channels + channel) * shape.y.in + y) * shape.x.in;
    std::copy_n(row + begin + first, end - begin, work.pixels + begin);
    StemAcrossCall call;
    call.source = work.pixels;
    call.target = work.rows + (channel * kRing + y % kRing) * tiles_ * kStemRow;
    call.tiles = tiles_;
    across_(&call);
  }
}

void WinogradStem::transform_tiles(const Work& work, int64_t tile_row) const noexcept {
  const ConvAxis& axis = problem_.phases[0].y;
  const int64_t first = tile_row * form_.outputs * form_.stride + axis.taps[0].offset;
  StemDownCall call;
  call.tiles = tiles_;
  call.target_step_bytes = stem_tile_floats(form_, problem_.in_channels) * 4;
  for (int64_t channel = 0; channel < problem_.in_channels; ++channel) {
    for (int row = 0; row < stem_window(form_); ++row) {
      const int64_t y = first + row;
      const bool exists = y >= 0 && y < axis.in;
      call.rows[row] = exists ? work.rows + (channel * kRing + y % kRing) * tiles_ * kStemRow : work.no_row;
    }
    call.target = work.tiles + stem_tile_floats(form_, channel);
    down_(&call);
  }
}

// The share of `frequency`: rows are too short for the CPU's own prefetching to run ahead of their transform.
void WinogradStem::fetch_rows(const ConvArguments& arguments, const PictureRows& rows, int frequency) const noexcept {
  constexpr int64_t kLineFloats = 16;  // of a cache line
  constexpr int kIntoL2 = 2;
  const ConvShape& shape = problem_.phases[0];
  const int64_t channels = problem_.in_channels, count = (rows.end - rows.begin) * channels;
  const Range mine = split_evenly(static_cast<long>(count), frequency, form_.frequencies());
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const int64_t channel = i % channels, y = rows.begin + i / channels;
    const float* row = arguments.source + ((rows.image * channels + channel) * shape.y.in + y) * shape.x.in;
    for (int64_t x = 0; x < shape.x.in; x += kLineFloats) __builtin_prefetch(row + x, 0, kIntoL2);
  }
}

void WinogradStem::multiply(const ConvArguments& arguments, const Work& work, const PictureRows& next) const noexcept {
  const int64_t tile_floats = stem_tile_floats(form_, problem_.in_channels);
  const int64_t low_rows = (tiles_ - tall_blocks_) / blocks_;  // tiles_ = blocks_ * low_rows + tall_blocks_
  StemProductCall call;
  call.target_step_bytes = out_stride_ * 4;
  for (size_t c = 0; c < classes_.size(); ++c) {
    const WinogradClass& part = classes_[c];
    const float* weights = arguments.weights + part.weights;
    for (const int frequency : part.frequencies) {
      fetch_rows(arguments, next, frequency);
      const int64_t within = (frequency / form_.size()) * kStemRow + frequency % form_.size();
      for (int64_t column = 0; column < out_stride_; column += part.format.panel_columns) {
        const int64_t width = std::min(part.format.panel_columns, out_stride_ - column);
        const int is_last = column + width == out_stride_ ? 1 : 0;
        call.weights = weights;
        weights += part.slots * problem_.in_channels * width;
        call.tiles = work.tiles + within;
        call.target = work.sums + frequency * out_frequency_ + column;
        call.count = tall_blocks_;
        products_[c].by_rows[0][is_last](&call);
        if (tall_blocks_ == blocks_) continue;
        const int64_t done = tall_blocks_ * (low_rows + 1);
        call.tiles += done * tile_floats;
        call.target += done * out_stride_;
        call.count = blocks_ - tall_blocks_;
        products_[c].by_rows[1][is_last](&call);
      }
    }
  }
}

void WinogradStem::transform_output(const ConvArguments& arguments, const Work& work, int64_t image,
                                    int64_t tile_row) const noexcept {
  const ConvShape& shape = problem_.phases[0];
  const int lanes = problem_.lanes;
  const int64_t whole = shape.x.out / form_.outputs;
  const size_t is_last_row = tile_row + 1 == tile_rows_ ? 1 : 0;
  WinogradCall call;
  call.row_bytes = shape.x.out * lanes * 4;
  call.frequency_bytes = out_frequency_ * 4;
  call.source_step_bytes = out_stride_ * 4;
  call.target_step_bytes = int64_t{form_.outputs} * lanes * 4;
  for (int64_t block = 0; block < problem_.out_blocks(); ++block) {
    if (problem_.has_bias) call.bias = arguments.bias + block * lanes;
    for (const bool is_whole : {true, false}) {
      const int64_t first = is_whole ? 0 : whole;
      call.tiles = is_whole ? whole : tiles_ - whole;
      if (call.tiles == 0) continue;
      const int64_t plane =
          block * problem_.target_block_bytes() + (tile_row * shape.x.out + first) * form_.outputs * lanes * 4;
      const int64_t images = image * problem_.out_blocks() * problem_.target_block_bytes();
      call.source = work.sums + first * out_stride_ + block * lanes;
      call.target = reinterpret_cast<float*>(reinterpret_cast<char*>(arguments.target) + images + plane);
      for (size_t i = 0; i < problem_.epilogue.operands.size(); ++i) {
        const char* at = static_cast<const char*>(arguments.operands[i]) + image * operand_batch_bytes_[i];
        if (problem_.epilogue.operands[i] == ConvOperand::full) at += plane;
        if (problem_.epilogue.operands[i] == ConvOperand::per_channel) at += block * lanes * 4;
        call.operands[i] = at;
      }
      out_[is_last_row][is_whole ? 0 : 1](&call);
    }
  }
}

void WinogradStem::run_part(int /*part*/, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                            int thread) const noexcept {
  const ConvAxis& axis = problem_.phases[0].y;
  const Work work = work_of(scratch.of(thread));
  std::fill_n(work.pixels, row_floats_ + tiles_ * kStemRow, 0.0f);  // with no_row
  const Range mine = split_evenly(static_cast<long>(problem_.batch * tile_rows_), share, threads_);
  int64_t next_row = 0;  // of pixels, not yet transformed
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const int64_t image = i / tile_rows_, tile_row = i % tile_rows_;
    const int64_t first = tile_row * form_.outputs * form_.stride + axis.taps[0].offset;
    if (i == mine.begin || tile_row == 0) next_row = std::max<int64_t>(first, 0);
    next_row = std::max(next_row, std::max<int64_t>(first, 0));
    for (; next_row < std::min(axis.in, first + stem_window(form_)); ++next_row)
      transform_row(arguments, work, image, next_row);
    transform_tiles(work, tile_row);
    const int64_t rows_after = i + 1 < mine.end ? form_.outputs * form_.stride : 0;
    multiply(arguments, work, {image, next_row, std::min(axis.in, next_row + rows_after)});
    transform_output(arguments, work, image, tile_row);
  }
}

}  // namespace lathe
