#include "ops/conv/conv_chain.h"

#include <fmt/format.h>

#include <cstring>

namespace lathe {
namespace {

constexpr int64_t kLine = 64;

// From one row to the next.
int64_t source_row_bytes(const ConvProblem& problem) { return problem.phases[0].x.in * problem.in_lanes() * 4; }
int64_t target_row_bytes(const ConvProblem& problem) { return problem.phases[0].x.out * problem.lanes * 4; }

}  // namespace

ChainSchedule schedule_of(const std::vector<ChainStage>& stages, int threads, int64_t band_rows) {
  std::vector<ChainSchedule::Stage> rows;
  for (const ChainStage& stage : stages) {
    const ConvProblem& problem = stage.problem;
    const ConvAxis& y = problem.phases[0].y;
    rows.push_back({y, problem.flop() / static_cast<double>(problem.batch * y.out)});
  }
  return {std::move(rows), stages.back().problem.batch, threads, band_rows};
}

ConvChain::ConvChain(std::vector<ChainStage> stages, Isa isa, ChainSchedule schedule)
    : stages_(std::move(stages)), isa_(isa), schedule_(std::move(schedule)), programs_(stages_.size()) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    for (const ConvAxis& y : schedule_.axes(s)) programs_[s].push_back(program_of(s, y));
  }
  place_rows();
}

ConvChain::Program ConvChain::program_of(size_t stage, const ConvAxis& y) const {
  const ChainStage& whole = stages_[stage];
  Program program;
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
  return program;
}

void ConvChain::place_rows() {
  for (size_t s = 0; s + 1 < stages_.size(); ++s) {
    Rows& rows = rows_[s];
    rows.row_bytes = target_row_bytes(stages_[s].problem);
    // A line more: the same pixels of all blocks must not meet in one set of the first cache.
    rows.block_bytes = schedule_.most_rows(s) * rows.row_bytes + kLine;
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
  std::string text = fmt::format("bands of {} rows", schedule_.band_rows());
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
  const ChainBand* band = nullptr;
  const ChainBand* before = nullptr;  // whose rows the scratch memory holds; null: none
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
  const Program& program = programs_[stage][static_cast<size_t>(own.axis)];
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
  Moment moment;
  moment.arguments = &arguments;
  moment.scratch = static_cast<char*>(scratch);
  schedule_.for_units(share, [&](const ChainSchedule::Unit& unit) {
    moment.image = unit.image;
    moment.before = unit.is_fresh ? nullptr : moment.band;
    moment.band = unit.band;
    moment.next_weights = unit.is_last ? arguments.next_weights : nullptr;
    run_band(moment);
  });
}

}  // namespace lathe
