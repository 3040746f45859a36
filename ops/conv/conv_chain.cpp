#include "ops/conv/conv_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLine = 64;

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

// From one row to the next.
int64_t source_row_bytes(const ConvProblem& problem) { return problem.phases[0].x.in * problem.in_lanes() * 4; }
int64_t target_row_bytes(const ConvProblem& problem) { return problem.phases[0].x.out * problem.lanes * 4; }

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

ConvChain::ConvChain(std::vector<ChainStage> stages, Isa isa, int threads, int64_t band_rows)
    : stages_(std::move(stages)), isa_(isa), threads_(threads) {
  LATHE_CHECK(stages_.size() >= 2 && stages_.size() <= kMostStages, "a chain of too few or too many convolutions");
  const int64_t rows = stages_.back().problem.phases[0].y.out, images = stages_.back().problem.batch;
  bands_ = std::clamp<int64_t>(divide_up(rows, band_rows), 1, rows);
  // Parts of equal size for all threads.
  if (images * bands_ % threads_ != 0 && images < threads_) {
    bands_ = std::min(rows, round_up(bands_, threads_));
  }
  band_rows_ = divide_up(rows, bands_);
  programs_.resize(stages_.size());
  for (std::vector<Band>& bands : schedule_) bands.resize(static_cast<size_t>(bands_));
  for (int64_t band = 1; band < bands_; ++band) schedule_[0][static_cast<size_t>(band)] = make_band(band, false);
  schedule_[1][0] = make_band(0, true);
  for (int thread = 1; thread < threads_; ++thread) {
    const Range range = split_evenly(static_cast<long>(images * bands_), thread, threads_);
    const int64_t band = range.begin % bands_;
    if (band > 0 && range.begin < range.end) schedule_[1][static_cast<size_t>(band)] = make_band(band, true);
  }
  place_rows();
}

double ConvChain::longest_share() const {
  std::array<double, kMostStages> flop_of_row{};
  double all = 0, most = 0;
  for (size_t s = 0; s < stages_.size(); ++s) {
    const ConvProblem& problem = stages_[s].problem;
    flop_of_row[s] = problem.flop() / static_cast<double>(problem.batch * problem.phases[0].y.out);
    all += problem.flop();
  }
  for (int thread = 0; thread < threads_; ++thread) {
    const Range range = split_evenly(static_cast<long>(stages_.back().problem.batch * bands_), thread, threads_);
    double own = 0;
    for (long unit = range.begin; unit < range.end; ++unit) {
      const auto band = static_cast<size_t>(unit % bands_);
      const size_t is_fresh = band == 0 || unit == range.begin ? 1 : 0;
      for (size_t s = 0; s < stages_.size(); ++s)
        own += flop_of_row[s] * static_cast<double>(schedule_[is_fresh][band][s].rows);
    }
    most = std::max(most, own);
  }
  return most * threads_ / all;
}

// The row behind the last one that `stage` must have computed when this band of the last stage ends.
int64_t ConvChain::last_row(size_t stage, int64_t band) const {
  int64_t end = stages_.back().problem.phases[0].y.out * (band + 1) / bands_;
  for (size_t s = stages_.size() - 1; s > stage; --s) {
    const ConvAxis& y = stages_[s].problem.phases[0].y;
    end = end == 0 ? 0 : std::clamp<int64_t>((end - 1) * y.stride + last_offset(y) + 1, 0, y.in);
  }
  return end;
}

ConvChain::Band ConvChain::make_band(int64_t band, bool is_fresh) {
  Band result;
  for (size_t s = stages_.size(); s-- > 0;) {
    StageBand& own = result[s];
    const int64_t end = last_row(s, band);
    if (s + 1 == stages_.size()) {
      own.kept = own.first = end == 0 || band == 0 ? 0 : last_row(s, band - 1);
    } else {
      const ConvAxis& next = stages_[s + 1].problem.phases[0].y;
      own.kept = std::clamp<int64_t>(result[s + 1].first * next.stride + first_offset(next), 0, end);
      own.first = is_fresh || band == 0 ? own.kept : std::max(own.kept, last_row(s, band - 1));
    }
    own.rows = std::max<int64_t>(0, end - own.first);
    if (own.rows == 0) continue;
    const BandAxis part = band_of(stages_[s].problem.phases[0].y, own.first, own.rows);
    own.source = part.source;
    own.program = program_of(s, part.axis);
  }
  return result;
}

int ConvChain::program_of(size_t stage, const ConvAxis& y) {
  std::vector<Program>& programs = programs_[stage];
  for (size_t i = 0; i < programs.size(); ++i) {
    if (programs[i].y == y) return static_cast<int>(i);
  }
  const ChainStage& whole = stages_[stage];
  Program program;
  program.y = y;
  ConvProblem problem = whole.problem;
  problem.batch = 1;
  problem.phases[0].y = y;
  switch (whole.kind) {
    case ChainKind::dense:
      merge_axes(problem);
      program.dense = std::make_unique<ConvProgram>(std::move(problem), whole.plan, 1);
      break;
    case ChainKind::depthwise:
      program.depthwise = std::make_unique<DepthwiseProgram>(std::move(problem), isa_, 1);
      break;
    case ChainKind::max_pool:
      program.pool = PoolKernels::make(isa_, PoolKind::max, {problem.phases[0], {}, {}, DType::f32});
      break;
  }
  programs.push_back(std::move(program));
  return static_cast<int>(programs.size()) - 1;
}

void ConvChain::place_rows() {
  for (size_t s = 0; s + 1 < stages_.size(); ++s) {
    int64_t most = 0;
    for (const std::vector<Band>& bands : schedule_) {
      for (const Band& band : bands) most = std::max(most, band[s].end() - band[s].kept);
    }
    Rows& rows = rows_[s];
    rows.row_bytes = target_row_bytes(stages_[s].problem);
    // A line more: the same pixels of all blocks must not meet in one set of the first cache.
    rows.block_bytes = most * rows.row_bytes + kLine;
    rows.offset = scratch_bytes_;
    scratch_bytes_ += rows.block_bytes * stages_[s].problem.out_blocks();
  }
}

std::string ConvChain::packing(size_t stage) const {
  return stages_[stage].kind == ChainKind::dense ? dense(stage).packing()
                                                 : programs_[stage].front().depthwise->packing();
}
int64_t ConvChain::packed_size(size_t stage) const {
  return stages_[stage].kind == ChainKind::dense ? dense(stage).packed_size()
                                                 : programs_[stage].front().depthwise->packed_size();
}
void ConvChain::pack(size_t stage, const float* weights, float* packed) const {
  if (stages_[stage].kind == ChainKind::dense) return dense(stage).pack(weights, packed);
  programs_[stage].front().depthwise->pack(weights, packed);
}

std::string ConvChain::plan_text() const {
  std::string text = fmt::format("bands of {} rows", band_rows_);
  for (size_t s = 0; s < stages_.size(); ++s) {
    text += s == 0 ? ": " : " > ";
    switch (stages_[s].kind) {
      case ChainKind::dense:
        text += to_string(stages_[s].plan);
        break;
      case ChainKind::depthwise:
        text += programs_[s].front().depthwise->plan_text();
        break;
      case ChainKind::max_pool:
        text += "max pool";
        break;
    }
  }
  return text;
}

// One band of one picture.
struct ConvChain::Moment {
  const Arguments* arguments = nullptr;
  char* scratch = nullptr;  // of the thread
  int64_t image = 0;
  const Band* band = nullptr;
  const Band* before = nullptr;  // whose rows the scratch memory holds; null: none
  const void* next_weights = nullptr;
};

// Rows of the band before that this one needs, too, go to the front.
void ConvChain::keep_rows(const Moment& moment, size_t stage, int64_t begin, int64_t end) const noexcept {
  const StageBand& own = (*moment.band)[stage];
  if (moment.before == nullptr || own.first == own.kept) return;
  const int64_t moved = own.kept - (*moment.before)[stage].kept;
  if (moved == 0) return;
  const Rows& rows = rows_[stage];
  for (int64_t block = begin; block < end; ++block) {
    char* to = moment.scratch + rows.offset + block * rows.block_bytes;
    std::memmove(to, to + moved * rows.row_bytes, static_cast<size_t>((own.first - own.kept) * rows.row_bytes));
  }
}

// For the blocks from the first one on.
ConvArguments ConvChain::arguments_of(const Moment& moment, size_t stage) const noexcept {
  const StageBand& own = (*moment.band)[stage];
  const ChainStage& whole = stages_[stage];
  const ConvProblem& problem = whole.problem;
  const StageArguments& bound = moment.arguments->stages[stage];
  const bool is_last = stage + 1 == stages_.size();
  ConvArguments call;
  call.weights = bound.weights;
  call.bias = bound.bias;
  call.next_weights = is_last ? moment.next_weights : nullptr;
  const char* source = nullptr;
  if (stage == 0) {
    call.source_block_bytes = problem.source_block_bytes();
    source = reinterpret_cast<const char*>(moment.arguments->source) +
             moment.image * problem.in_blocks() * call.source_block_bytes + own.source * source_row_bytes(problem);
  } else {
    call.source_block_bytes = rows_[stage - 1].block_bytes;
    source = moment.scratch + rows_[stage - 1].offset;
  }
  char* target = nullptr;
  if (is_last) {
    call.target_block_bytes = problem.target_block_bytes();
    target = reinterpret_cast<char*>(moment.arguments->target) +
             moment.image * problem.out_blocks() * call.target_block_bytes + own.first * target_row_bytes(problem);
  } else {
    const Rows& rows = rows_[stage];
    call.target_block_bytes = rows.block_bytes;
    target = moment.scratch + rows.offset + (own.first - own.kept) * rows.row_bytes;
  }
  call.source = reinterpret_cast<const float*>(source);
  call.target = reinterpret_cast<float*>(target);
  for (size_t i = 0; i < problem.epilogue.operands.size(); ++i) {
    const char* at = static_cast<const char*>(bound.operands[i]) + moment.image * whole.operand_batch_bytes[i];
    if (problem.epilogue.operands[i] == ConvOperand::full) at += own.first * target_row_bytes(problem);
    call.operands[i] = at;
  }
  return call;
}

void ConvChain::pool_blocks(const PoolKernels& pool, const ConvArguments& call, int64_t begin, int64_t end) noexcept {
  for (int64_t block = begin; block < end; ++block) {
    char* target = reinterpret_cast<char*>(call.target) + block * call.target_block_bytes;
    for (const PoolStrip& strip : pool.strips()) {
      // Windows may begin before the rows.
      const auto from = reinterpret_cast<intptr_t>(call.source) + block * call.source_block_bytes + strip.source;
      pool.entry(strip.entry)(reinterpret_cast<const void*>(from), target + strip.target);
    }
  }
}

// Channel blocks [begin, end) of one stage's output; of a dense one, groups of blocks.
void ConvChain::run_blocks(const Moment& moment, size_t stage, int64_t begin, int64_t end) const noexcept {
  const StageBand& own = (*moment.band)[stage];
  const ChainKind kind = stages_[stage].kind;
  if (stage + 1 < stages_.size()) {
    const bool is_dense = kind == ChainKind::dense;
    const std::vector<ConvBlockGroup>* groups = is_dense ? &dense(stage).groups() : nullptr;
    const ConvBlockGroup* last = is_dense ? &(*groups)[static_cast<size_t>(end - 1)] : nullptr;
    keep_rows(moment, stage, is_dense ? (*groups)[static_cast<size_t>(begin)].first : begin,
              is_dense ? last->first + last->count : end);
  }
  if (own.rows == 0) return;
  const ConvArguments call = arguments_of(moment, stage);
  const Program& program = programs_[stage][static_cast<size_t>(own.program)];
  switch (kind) {
    case ChainKind::dense:
      return program.dense->run_groups(call, begin, end);
    case ChainKind::depthwise:
      return program.depthwise->run_blocks(call, begin, end);
    case ChainKind::max_pool:
      return pool_blocks(program.pool, call, begin, end);
  }
}

void ConvChain::run_band(const Moment& moment) const noexcept {
  for (size_t s = 0; s < stages_.size(); ++s) {
    const int64_t blocks = stages_[s].problem.out_blocks();
    if (stages_[s].kind != ChainKind::dense) {
      run_blocks(moment, s, 0, blocks);
      continue;
    }
    const std::vector<ConvBlockGroup>& groups = dense(s).groups();
    const auto count = static_cast<int64_t>(groups.size());
    if (s + 1 == stages_.size() || stages_[s + 1].kind == ChainKind::dense) {
      run_blocks(moment, s, 0, count);
      continue;
    }
    // What works channel by channel follows each group of channels while these are in the first cache.
    for (int64_t g = 0; g < count; ++g) {
      const ConvBlockGroup& group = groups[static_cast<size_t>(g)];
      run_blocks(moment, s, g, g + 1);
      run_blocks(moment, s + 1, group.first, group.first + group.count);
    }
    ++s;
  }
}

void ConvChain::run(const Arguments& arguments, void* scratch, int share) const noexcept {
  const int64_t images = stages_.back().problem.batch;
  const Range range = split_evenly(static_cast<long>(images * bands_), share, threads_);
  Moment moment;
  moment.arguments = &arguments;
  moment.scratch = static_cast<char*>(scratch);
  for (long unit = range.begin; unit < range.end; ++unit) {
    const auto band = static_cast<size_t>(unit % bands_);
    const bool is_fresh = band == 0 || unit == range.begin;
    moment.image = unit / bands_;
    moment.before = is_fresh ? nullptr : moment.band;
    moment.band = &schedule_[is_fresh ? 1 : 0][band];
    moment.next_weights = unit + 1 == range.end ? arguments.next_weights : nullptr;
    run_band(moment);
  }
}

}  // namespace lathe
