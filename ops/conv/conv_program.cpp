#include "ops/conv/conv_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/core_cycles.h"
#include "ops/work_split.h"
#include "src/base/check.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Beyond this, prefetched weights of the next operator would leave the L2 cache before they are used.
constexpr int64_t kNextOperatorBytes = 64 << 10;
constexpr int kLine = 64;  // cache line

int64_t tiles_of(const ConvShape& shape, const ConvPlan& plan) {
  if (plan.rows == 0) return divide_up(shape.y.out * shape.x.out, plan.cols);
  return divide_up(shape.y.out, plan.rows) * divide_up(shape.x.out, plan.cols);
}

// Stems read large pictures from memory in more streams than the hardware follows.
ConvBelow input_below(const ConvProblem& problem, const ConvShape& shape, const ConvPlan& plan) {
  constexpr int64_t kLargePicture = 128 << 10, kMostLines = 16, kMostBytes = 1 << 28;
  const int64_t row_bytes = shape.x.in * 4;
  if (problem.in_lanes() != 1 || shape.taps() == 1 || plan.rows == 0 || problem.groups > 1) return {};
  if (problem.in_channels * shape.y.in * row_bytes < kLargePicture) return {};
  int64_t lowest = 0;
  for (const ConvTap& tap : shape.y.taps) lowest = std::max(lowest, tap.offset);
  ConvBelow below;
  below.first_byte = ((plan.rows - 1) * shape.y.stride + lowest + 1) * row_bytes;
  below.row_bytes = row_bytes;
  const int64_t rows = plan.rows * shape.y.stride, lines = divide_up(plan.cols * shape.x.stride * 4, kLine);
  if (rows * lines > kMostLines || below.first_byte + rows * row_bytes > kMostBytes) return {};
  below.rows = static_cast<int>(rows);
  below.lines = static_cast<int>(lines);
  return below;
}

double weight_bytes(const ConvProblem& problem) {
  return problem.flop() / static_cast<double>(problem.batch * problem.out_pixels()) * 2;
}

}  // namespace

// Threads that split the channels read each other's pixels: of many pixels, one tile more for a thread costs less (64
// channels at 40x40, 267 tiles: 79 us by channels, 54 by pixels).
int threads_over_channels(const ConvProblem& problem, const ConvPlan& plan, int threads, int64_t few_pixels) {
  constexpr double kWorth = 1.1;
  const bool has_few = problem.out_pixels() <= few_pixels;
  const int64_t tiles = tiles_of(problem.phases[0], plan) * problem.batch;
  const int64_t groups = divide_up(problem.out_blocks(), plan.blocks);
  int best = 1;
  int64_t best_cost = -1;
  for (int over_channels = 1; over_channels <= threads; ++over_channels) {
    if (threads % over_channels != 0) continue;
    const int64_t cost = divide_up(groups, over_channels) * divide_up(tiles, threads / over_channels);
    const bool is_better =
        has_few ? cost <= best_cost : static_cast<double>(cost) * kWorth < static_cast<double>(best_cost);
    if (best_cost < 0 || is_better) {
      best = over_channels;
      best_cost = cost;
    }
  }
  return best;
}

void ConvSplit::refine(double flop, int threads, double weight_bytes, int64_t groups) {
  constexpr double kNearBytes = 256 << 10;
  const int finer = worthwhile_shares(flop, threads) / threads;
  if (channels > 1) {
    channels *= finer;
  } else if (weight_bytes <= kNearBytes) {
    pixels *= finer;
  } else if (groups >= finer) {
    channels = finer;
    keeps_pixels = true;
  }
}

ConvProgram::ConvProgram(ConvProblem problem, const ConvPlan& plan, int threads,
                         std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)), plan_(plan), operand_batch_bytes_(std::move(operand_batch_bytes)) {
  if (!is_valid(plan_, problem_)) throw JitError("convolution plan " + to_string(plan_) + " is not valid here");
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  split_.channels = threads_over_channels(problem_, plan_, threads);
  split_.pixels = threads / split_.channels;
  groups_ = make_block_groups(problem_, plan_.blocks, split_.channels);
  if (plan_.chunk == 0 && !plan_.dots) read_exactly(problem_, groups_);
  split_.refine(problem_.flop(), threads, weight_bytes(problem_), static_cast<int64_t>(groups_.size()));
  for (const ConvBlockGroup& group : groups_) chunks_.push_back(chunks_of(group));
  int64_t weights = 0;
  for (const ConvShape& shape : problem_.phases) {
    Phase phase;
    phase.weights = weights;
    phase.tiling = make_conv_tiling(shape, plan_.rows, plan_.cols, problem_.lanes);
    phases_.push_back(std::move(phase));
    make_kernels(phases_.back());
    const ConvBlockGroup& last = groups_.back();
    weights += weights_at(phases_.back(), last, last.in_count) - phases_.back().weights;
  }
}

void ConvProgram::make_kernels(Phase& phase) {
  ConvKernelPlan plan;
  plan.isa = plan_.isa;
  plan.embedded = plan_.embedded;
  plan.unroll = plan_.unroll;
  plan.lanes = problem_.in_lanes();
  plan.tail = static_cast<int>(problem_.in_channels % plan.lanes);
  if (plan_.dots) {
    plan.dots = dots_of(problem_);
    plan.has_narrow_groups = problem_.groups > 1;
  }
  plan.has_bias = problem_.has_bias;
  plan.epilogue = problem_.epilogue;
  if (plan_.ahead) {
    const int64_t blocks =
        plan_.chunk > 0 ? std::min<int64_t>(plan_.chunk, problem_.in_blocks()) : problem_.in_blocks();
    plan.ahead_lines = static_cast<int>(divide_up(plan_.cols * problem_.lanes * 4 / kLine, static_cast<int>(blocks)));
  }
  // Tiles of a row that is split evenly have this many pixels, or one less.
  constexpr size_t kFewGroups = 8;  // of many, only the first finds its input missing
  if (plan_.ahead && groups_.size() <= kFewGroups && problem_.in_lanes() == problem_.lanes &&
      problem_.phases[0].x.stride == 1)
    plan.source_lines = static_cast<int>(divide_up(plan_.cols * problem_.lanes * 4, kLine));
  plan.below = input_below(problem_, problem_.phases[static_cast<size_t>(&phase - phases_.data())], plan_);
  const int64_t tiles = static_cast<int64_t>(phase.tiling.tiles.size()) * problem_.batch;
  const int64_t tiles_each = std::max<int64_t>(1, tiles / split_.pixels);
  const int64_t calls = plan_.tile_group > 0 ? std::min<int64_t>(plan_.tile_group, tiles_each) : tiles_each;
  for (const ConvBlockGroup& group : groups_) {
    const auto like = std::find_if(groups_.begin(), groups_.begin() + static_cast<long>(phase.kernels.size()),
                                   [&](const ConvBlockGroup& other) { return is_alike(other, group); });
    if (&*like != &group) {
      phase.kernels.push_back(phase.kernels[static_cast<size_t>(like - groups_.begin())]);
      continue;
    }
    plan.blocks = group.count;
    plan.channels = group.channels;
    plan.last_share = has_half_block(group) ? shared_pixels(problem_, plan_, group.count, core_rates()) : 1;
    plan.half_last = has_half_block(group) && plan.last_share == 1 && !plan_.dots;
    if (group.channels.count > 0) plan.ahead_lines = plan.source_lines = 0;
    const int64_t lines_per_round = int64_t{plan.unroll} * plan.blocks * problem_.lanes * 4 / kLine;
    plan.prefetch_lines =
        plan_.prefetch ? static_cast<int>(std::max<int64_t>(1, divide_up(lines_per_round, static_cast<int>(calls))))
                       : 0;
    phase.kernels.push_back(ConvKernels::make(plan, phase.tiling.shapes));
  }
}

std::vector<ConvProgram::Chunk> ConvProgram::chunks_of(const ConvBlockGroup& group) const {
  if (group.channels.count > 0) return {{.count = 1}};
  const int whole = group.in_count - (group.has_tail ? 1 : 0);
  const int most = plan_.chunk > 0 ? plan_.chunk : std::max(1, whole);
  std::vector<Chunk> chunks;
  for (const ConvPart& part : balanced_parts(whole, most)) {
    chunks.push_back({static_cast<int>(part.begin), static_cast<int>(part.size), false, false, false});
  }
  if (chunks.empty()) chunks.emplace_back();
  chunks.front().is_first = true;
  chunks.back().is_last = true;
  chunks.back().has_tail = group.has_tail;
  return chunks;
}

// Group weights are counted for one tap; a phase has more.
int64_t ConvProgram::weights_at(const Phase& phase, const ConvBlockGroup& group, int in_block) const {
  const int64_t taps = problem_.phases[static_cast<size_t>(&phase - phases_.data())].taps();
  const int lanes = problem_.in_lanes();
  if (group.channels.count > 0 && in_block > 0)
    return phase.weights + (group.weights + int64_t{group.channels.count} * group.count * problem_.lanes) * taps;
  const int64_t missing = group.has_tail && in_block == group.in_count ? lanes - problem_.in_channels % lanes : 0;
  const int64_t channels = int64_t{in_block} * lanes - missing;
  return phase.weights + (group.weights + channels * group.count * problem_.lanes) * taps;
}

int64_t ConvProgram::packed_size() const { return weights_at(phases_.back(), groups_.back(), groups_.back().in_count); }

std::string ConvProgram::packing() const {
  std::string text = fmt::format("conv.1 c{}>{} {}x{} {}", problem_.in_lanes(), problem_.lanes, problem_.window_y,
                                 problem_.window_x, problem_.is_transposed ? "transposed " : "");
  if (plan_.dots) text += "dots ";
  for (const ConvBlockGroup& group : groups_) {
    text += fmt::format("{},", group.count);
    const ConvChannels& c = group.channels;
    if (c.count > 0) text += fmt::format("{}-{}-{},", c.skipped, c.count, c.lead);
  }
  for (const ConvShape& phase : problem_.phases) {
    text += "/";
    for (const ConvTap& tap : phase.y.taps) text += fmt::format("{},", tap.kernel);
    text += "x";
    for (const ConvTap& tap : phase.x.taps) text += fmt::format("{},", tap.kernel);
  }
  return text;
}

namespace {

// Where the weights of one phase's taps lie within a window.
std::vector<int64_t> taps_in_window(const ConvShape& phase, int64_t window_x) {
  std::vector<int64_t> taps;
  for (const ConvTap& ty : phase.y.taps) {
    for (const ConvTap& tx : phase.x.taps) taps.push_back(ty.kernel * window_x + tx.kernel);
  }
  return taps;
}

}  // namespace

std::vector<ConvChannelPart> ConvProgram::channel_parts(const ConvBlockGroup& group) const {
  const int lanes = problem_.in_lanes();
  if (group.channels.count > 0) return parts_of(group.channels, lanes);
  const int64_t left = problem_.in_channels - int64_t{group.in_first} * lanes;
  return parts_of({.count = static_cast<int>(std::min<int64_t>(left, int64_t{group.in_count} * lanes))}, lanes);
}

// One input block of one group at a time: its part of the packed weights stays in the first cache.
void ConvProgram::pack(const float* weights, float* packed) const {
  const int64_t in_each = problem_.in_channels_each(), out_each = problem_.out_channels_each();
  const int64_t window = problem_.window_y * problem_.window_x;
  const int in_lanes = problem_.in_lanes();
  for (const ConvShape& phase : problem_.phases) {
    const std::vector<int64_t> taps = taps_in_window(phase, problem_.window_x);
    for (const ConvBlockGroup& group : groups_) {
      const int64_t width = int64_t{group.count} * problem_.lanes;
      for (const ConvChannelPart& part : channel_parts(group)) {
        const int64_t first_in = int64_t{group.in_first + part.block} * in_lanes + part.first;
        const int64_t channels = part.count;
        if (plan_.dots) std::fill_n(packed, static_cast<int64_t>(taps.size()) * channels * width, 0.0f);
        for (int64_t lane = 0; lane < width; ++lane) {
          const int64_t out = int64_t{group.first} * problem_.lanes + lane;
          const int64_t own_first = out / out_each * in_each;  // input channels of this output's group
          for (int64_t i = 0; i < channels; ++i) {
            const int64_t in = first_in + i;
            const bool is_own = out < problem_.out_channels && in >= own_first && in < own_first + in_each;
            const float* from = nullptr;
            if (is_own) {
              from = weights + window * (problem_.is_transposed ? in * out_each + out % out_each
                                                                : out * in_each + in - own_first);
            }
            // Beside rows of whole vectors nothing is read of outputs that are none.
            if (plan_.dots && !is_own) continue;
            const int64_t row = problem_.groups > 1 ? lane ^ i : lane;
            float* to = packed + (plan_.dots ? row * problem_.lanes + i : i * width + lane);
            for (size_t tap = 0; tap < taps.size(); ++tap, to += channels * width)
              *to = is_own ? from[taps[tap]] : 0.0f;
          }
        }
        packed += static_cast<int64_t>(taps.size()) * channels * width;
      }
    }
  }
}

// 24 channels are three halves.
bool ConvProgram::has_half_block(const ConvBlockGroup& group) const {
  return has_avx512(plan_.isa) && group.first + group.count == problem_.out_blocks() &&
         is_half_vector(problem_.out_channels % problem_.lanes, problem_.lanes);
}

// One kernel serves both.
bool ConvProgram::is_alike(const ConvBlockGroup& a, const ConvBlockGroup& b) const {
  return a.count == b.count && a.channels == b.channels && has_half_block(a) == has_half_block(b);
}

ConvProgram::Share ConvProgram::share_of(int index) const {
  const Range range = split_evenly(static_cast<long>(groups_.size()), split_.channel_part(index), split_.channels);
  return {range.begin, range.end, split_.pixel_part(index), split_.pixels};
}

// One group's weights for one chunk, and the tiles that they are used for.
struct ConvProgram::Panel {
  const ConvBlockGroup* group;
  const Chunk* chunk;
  int64_t unit_begin, unit_end;  // image * tiles + tile
  const char* next = nullptr;    // the panel that follows
  int64_t next_bytes = 0;
};

void ConvProgram::run(const ConvArguments& arguments, int share) const noexcept {
  run_share(arguments, share_of(share));
}

void ConvProgram::run_groups(const ConvArguments& arguments, int64_t begin, int64_t end) const noexcept {
  run_share(arguments, {begin, end, 0, 1});
}

void ConvProgram::run_share(const ConvArguments& arguments, const Share& share) const noexcept {
  for (const Phase& phase : phases_) {
    const auto tiles = static_cast<long>(phase.tiling.tiles.size());
    const Range units = split_evenly(static_cast<long>(problem_.batch) * tiles, share.part, share.parts);
    const int64_t together = plan_.tile_group > 0 ? plan_.tile_group : std::max(1L, units.end - units.begin);
    for (int64_t unit = units.begin; unit < units.end; unit += together) {
      for (int64_t g = share.group_begin; g < share.group_end; ++g) {
        const auto& chunks = chunks_[static_cast<size_t>(g)];
        for (size_t c = 0; c < chunks.size(); ++c) {
          Panel panel{&groups_[static_cast<size_t>(g)], &chunks[c], unit,
                      std::min<int64_t>(unit + together, units.end)};
          const ConvBlockGroup& group = *panel.group;
          const Chunk& chunk = chunks[c];
          const int end = chunk.begin + chunk.count + (chunk.has_tail ? 1 : 0);
          const int64_t bytes = (weights_at(phase, group, end) - weights_at(phase, group, chunk.begin)) * 4;
          const bool ends_share = chunk.is_last && g + 1 == share.group_end && panel.unit_end == units.end;
          if (ends_share && arguments.next_weights != nullptr) {
            panel.next = static_cast<const char*>(arguments.next_weights);
            panel.next_bytes = kNextOperatorBytes;
          } else if (!chunk.is_last || g + 1 < static_cast<int64_t>(groups_.size())) {
            // Panels lie one behind the other, and are nearly of one size.
            panel.next = reinterpret_cast<const char*>(arguments.weights + weights_at(phase, group, end));
            panel.next_bytes = bytes;
          }
          run_panel(arguments, phase, panel);
        }
      }
    }
  }
}

// `plane`: bytes within the output of a volume.
void ConvProgram::set_operands(const ConvArguments& arguments, const ConvBlockGroup& group, int64_t volume,
                               int64_t plane, ConvCall& call) const noexcept {
  const std::vector<ConvOperand>& operands = problem_.epilogue.operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    const char* at = static_cast<const char*>(arguments.operands[i]) + volume * operand_batch_bytes_[i];
    if (operands[i] == ConvOperand::full) at += plane;
    if (operands[i] == ConvOperand::per_channel) at += int64_t{group.first} * problem_.lanes * 4;
    call.operands[i] = at;
  }
}

void ConvProgram::run_panel(const ConvArguments& arguments, const Phase& phase, const Panel& panel) const noexcept {
  const ConvBlockGroup& group = *panel.group;
  const Chunk& chunk = *panel.chunk;
  const ConvKernels& kernels = phase.kernels[static_cast<size_t>(&group - groups_.data())];
  const int64_t source_block =
      arguments.source_block_bytes != 0 ? arguments.source_block_bytes : problem_.source_block_bytes();
  const int64_t target_block =
      arguments.target_block_bytes != 0 ? arguments.target_block_bytes : problem_.target_block_bytes();
  ConvCall call;
  call.weights = arguments.weights + weights_at(phase, group, chunk.begin);
  call.bias = arguments.bias + int64_t{group.first} * problem_.lanes;
  call.blocks = chunk.count;
  call.has_tail = chunk.has_tail;
  call.accumulate = !chunk.is_first;
  call.finish = chunk.is_last;
  call.source_block_bytes = source_block;
  call.target_block_bytes = target_block;
  const char* next = panel.next;
  int64_t next_left = panel.next_bytes;
  const auto tiles = static_cast<int64_t>(phase.tiling.tiles.size());
  int64_t image = panel.unit_begin / tiles, tile_number = panel.unit_begin % tiles;
  for (int64_t unit = panel.unit_begin; unit < panel.unit_end;) {
    const ConvTile& tile = phase.tiling.tiles[static_cast<size_t>(tile_number)];
    const int64_t volume = problem_.volume(image);
    const int64_t source = problem_.source_image(image) + (group.in_first + chunk.begin) * source_block + tile.source;
    const int64_t plane = group.first * target_block + problem_.target_frame(image) + tile.target;
    const int64_t target = problem_.target_volume(image) + plane;
    call.source = reinterpret_cast<const float*>(reinterpret_cast<intptr_t>(arguments.source) + source);
    call.target = reinterpret_cast<float*>(reinterpret_cast<intptr_t>(arguments.target) + target);
    set_operands(arguments, group, volume, plane, call);
    int64_t count = std::min(tile.alike, panel.unit_end - unit);
    const int64_t step = kernels.prefetch_lines() * kLine;
    const int64_t bytes = step * kernels.rounds(tile.shape) * std::max(1, chunk.count);  // of one tile
    if (next_left > 0 && bytes > 0) {
      count = std::min(count, divide_up(next_left, bytes));
      call.prefetch = next;
      call.prefetch_step = step;
      next += bytes * count;
      next_left -= bytes * count;
    } else {
      call.prefetch = reinterpret_cast<const char*>(call.weights);
      call.prefetch_step = 0;
    }
    call.tiles = count;
    call.source_step_bytes = tile.source_step;
    call.target_step_bytes = tile.target_step;
    kernels.entry(tile.shape)(&call);
    unit += count;
    tile_number += count;
    if (tile_number == tiles) {
      tile_number = 0;
      ++image;
    }
  }
}

}  // namespace lathe
