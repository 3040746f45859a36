#include "ops/conv/conv_int8_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/conv/conv_program.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Beyond this, prefetched weights of the next operator would leave the L2 cache before they are used.
constexpr int64_t kNextOperatorBytes = 64 << 10;
constexpr int kLine = 64;  // cache line

ConvInt8Plan kernel_plan(const ConvInt8Problem& problem, int blocks) {
  ConvInt8Plan kernel;
  kernel.isa = int8_isa(problem.isa);
  kernel.dot = problem.dot;
  kernel.blocks = blocks;
  // Fewer channels than a block: the block is what there is.
  const int64_t groups = problem.shape.in_channels, in_lanes = problem.shape.in_lanes();
  kernel.groups = static_cast<int>(std::min(groups, in_lanes));
  kernel.tail = static_cast<int>(groups > in_lanes ? groups % in_lanes : 0);
  kernel.epilogue = problem.epilogue;
  kernel.store = problem.store;
  return kernel;
}

}  // namespace

std::string ConvInt8Problem::key() const {
  ConvProblem whole = shape;
  whole.epilogue = epilogue;
  const std::string groups = channel_groups > 1 ? fmt::format("/{}", channel_groups) : "";
  return fmt::format("{} {} k{}{} {} {}", name_of(int8_isa(isa)), to_string(dot), in_channels, groups, to_string(store),
                     to_string(whole));
}

ConvProblem ConvInt8Problem::channels() const {
  ConvProblem real = shape;
  real.in_channels = in_channels;
  real.groups = channel_groups;
  real.phases[0].lanes = shape.in_lanes() * group_of(dot);
  return real;
}

int64_t ConvInt8Problem::depth() const {
  if (channel_groups == 1) return shape.in_channels;
  int most = 0;
  for (const ConvBlockGroup& group : make_block_groups(channels(), 1, 1)) most = std::max(most, group.in_count);
  return int64_t{most} * shape.in_lanes();
}

ConvInt8Program::ConvInt8Program(ConvInt8Problem problem, int threads, std::vector<int64_t> operand_batch_bytes,
                                 const std::optional<ConvInt8Tile>& tile)
    : problem_(std::move(problem)), threads_(threads), operand_batch_bytes_(std::move(operand_batch_bytes)) {
  if (problem_.dot == Int8Dot::crossed && !can_cross(problem_)) throw JitError("products cannot be crossed");
  if (tile) {
    cut(*tile);
    return;
  }
  for (const ConvInt8Tile& overlapped : overlapped_conv_int8_tiles(problem_)) {
    try {
      cut(overlapped);
      return;
    } catch (const JitError&) {
      // The epilogue takes too many registers.
    }
  }
  cut(choose_conv_int8_tile(problem_));
}

void ConvInt8Program::cut(const ConvInt8Tile& tile) {
  plan_ = tile;
  ConvPlan split;
  split.blocks = plan_.blocks;
  split.rows = plan_.rows;
  split.cols = plan_.cols;
  split_.channels = threads_over_channels(problem_.shape, split, threads_, kFewPixelsOfBytes);
  split_.pixels = threads_ / split_.channels;
  set_groups();
  // In time as so many float operations.
  const double flop = problem_.dots() / 4 * group_of(problem_.dot);
  split_.refine(flop, threads_, static_cast<double>(packed_bytes()), static_cast<int64_t>(groups_.size()));
  const auto pixel_bytes = static_cast<int>(problem_.shape.lanes * problem_.out_bytes());
  tiling_ = make_conv_tiling(problem_.shape.phases[0], plan_.rows, plan_.cols, pixel_bytes / 4);
  kernels_.clear();
  if (problem_.unit_bytes != 4) set_units();
  order_tiles();
  make_kernels();
}

void ConvInt8Program::set_groups() {
  groups_ = make_block_groups(problem_.channels(), plan_.blocks, split_.channels);
  int64_t weights = 0;
  for (ConvBlockGroup& group : groups_) {
    group.weights = weights;
    weights += groups_read(group) * group.count * problem_.shape.lanes;
  }
}

int64_t ConvInt8Program::groups_read(const ConvBlockGroup& group) const {
  return std::min<int64_t>(int64_t{group.in_count} * problem_.shape.in_lanes(), problem_.shape.in_channels);
}

// The tiling counts positions of 4 bytes. Taps that are 4 bytes apart now are one run.
void ConvInt8Program::set_units() {
  const auto scaled = [&](auto bytes) { return bytes / 4 * problem_.unit_bytes; };
  for (ConvTile& tile : tiling_.tiles) tile.source = scaled(tile.source);
  for (ConvTileShape& shape : tiling_.shapes) {
    std::vector<ConvTapRun> runs;
    for (ConvTapRun& tap : shape.taps) {
      for (ConvUse& use : tap.uses) use.source = scaled(use.source);
      std::vector<ConvUse> next = runs.empty() ? std::vector<ConvUse>() : runs.back().uses;
      for (ConvUse& use : next) use.source += 4 * runs.back().run;
      if (!runs.empty() && runs.back().index + runs.back().run == tap.index && next == tap.uses) {
        ++runs.back().run;
      } else {
        runs.push_back(std::move(tap));
      }
    }
    shape.taps = std::move(runs);
  }
}

// In the order of the pixels, or down the columns, as inside the picture a tile and the one below it run the same code:
// whichever takes fewer calls.
void ConvInt8Program::order_tiles() {
  runs_ = find_runs(tiling_.tiles);
  if (plan_.rows == 0) return;
  const auto across = static_cast<size_t>(divide_up(problem_.shape.phases[0].x.out, plan_.cols));
  std::vector<ConvTile> ordered;
  for (size_t column = 0; column < across; ++column) {
    for (size_t i = column; i < tiling_.tiles.size(); i += across) ordered.push_back(tiling_.tiles[i]);
  }
  const auto calls = [](const std::vector<TileRun>& runs) {
    int64_t count = 0;
    for (size_t i = 0; i < runs.size(); i += static_cast<size_t>(runs[i].tiles)) ++count;
    return count;
  };
  std::vector<TileRun> runs = find_runs(ordered);
  if (calls(runs_) <= calls(runs)) return;
  tiling_.tiles = std::move(ordered);
  runs_ = std::move(runs);
}

auto ConvInt8Program::find_runs(const std::vector<ConvTile>& tiles) -> std::vector<TileRun> {
  std::vector<TileRun> runs(tiles.size());
  for (size_t i = tiles.size(); i-- > 1;) {
    TileRun& run = runs[i - 1];
    run.source_step = tiles[i].source - tiles[i - 1].source;
    run.target_step = tiles[i].target - tiles[i - 1].target;
    if (tiles[i].shape != tiles[i - 1].shape) continue;
    const TileRun& next = runs[i];
    const bool goes_on = next.source_step == run.source_step && next.target_step == run.target_step;
    run.tiles = next.tiles == 1 || goes_on ? next.tiles + 1 : 2;
  }
  return runs;
}

void ConvInt8Program::make_kernels() {
  const int64_t tiles = static_cast<int64_t>(tiling_.tiles.size()) * problem_.shape.batch;
  const int64_t tiles_each = std::max<int64_t>(1, tiles / split_.pixels);
  const int64_t calls = plan_.group > 0 ? std::min<int64_t>(plan_.group, tiles_each) : tiles_each;
  for (const ConvBlockGroup& group : groups_) {
    kernels_.resize(std::max<size_t>(kernels_.size(), static_cast<size_t>(group.count)));
    ConvInt8Kernels& kernels = kernels_[static_cast<size_t>(group.count - 1)];
    if (kernels) continue;
    ConvInt8Plan plan = kernel_plan(problem_, group.count);
    plan.ahead = plan_.ahead;
    if (plan.ahead > groups_read(group) / problem_.shape.in_lanes())
      throw JitError("a convolution tile runs ahead of more input blocks than there are");
    if (plan.ahead > 0) plan.bytes = bytes_beside_products(problem_);
    const int64_t lines = int64_t{plan.unroll} * plan.blocks * problem_.shape.lanes * 4 / kLine;
    plan.prefetch_lines = static_cast<int>(std::max<int64_t>(1, divide_up(lines, calls)));
    kernels = ConvInt8Kernels::make(plan, tiling_.shapes);
  }
}

std::string ConvInt8Program::plan_text() const {
  return fmt::format("conv int8 {} {}x({}x{}) group={}{}", to_string(problem_.dot), plan_.blocks, plan_.rows,
                     plan_.cols, plan_.group, plan_.ahead > 0 ? " overlapped" : "");
}

std::string ConvInt8Program::packing() const {
  std::string text =
      fmt::format("conv_int8.1 {} g{}>{} {}x{} u{} ", to_string(problem_.dot), problem_.shape.in_lanes(),
                  problem_.shape.lanes, problem_.shape.window_y, problem_.shape.window_x, problem_.unit_bytes);
  if (problem_.channel_groups > 1) text += fmt::format("/{} ", problem_.channel_groups);
  for (const ConvBlockGroup& group : groups_) text += fmt::format("{},", group.count);
  return text;
}

int64_t ConvInt8Program::weights_bytes(const ConvBlockGroup& group) const {
  return groups_read(group) * group.count * problem_.shape.lanes * problem_.shape.phases[0].taps() * 4;
}

int64_t ConvInt8Program::packed_bytes() const { return weights_at(groups_.back()) + weights_bytes(groups_.back()); }

void ConvInt8Program::fetch_code() const noexcept {
  for (const ConvInt8Kernels& kernels : kernels_) {
    if (kernels) kernels.fetch_code();
  }
}

void ConvInt8Program::run(const ConvInt8Arguments& arguments, int share) const noexcept {
  if (arguments.is_first) fetch_code();
  const Range groups = split_evenly(static_cast<long>(groups_.size()), split_.channel_part(share), split_.channels);
  const auto tiles = static_cast<long>(tiling_.tiles.size());
  const Range units =
      split_evenly(static_cast<long>(problem_.shape.batch) * tiles, split_.pixel_part(share), split_.pixels);
  const int64_t together = plan_.group > 0 ? plan_.group : std::max(1L, units.end - units.begin);
  for (int64_t unit = units.begin; unit < units.end; unit += together) {
    const int64_t unit_end = std::min<int64_t>(unit + together, units.end);
    for (int64_t g = groups.begin; g < groups.end;) {
      Panel panel{&groups_[static_cast<size_t>(g)], 1, unit, unit_end, nullptr, 0};
      const bool ends_share = g + 1 == groups.end && panel.unit_end == units.end;
      if (ends_share && arguments.next_weights != nullptr) {
        panel.next = static_cast<const char*>(arguments.next_weights);
        panel.next_bytes = kNextOperatorBytes;
      } else if (g + 1 < static_cast<int64_t>(groups_.size())) {
        panel.next = static_cast<const char*>(arguments.weights) + weights_at(groups_[static_cast<size_t>(g + 1)]);
        panel.next_bytes = weights_bytes(groups_[static_cast<size_t>(g + 1)]);
        // Each streams the weights of the one behind it, which must be there.
        if (is_one_run(unit, unit_end)) panel.groups = std::max<int64_t>(1, groups_alike(g, groups.end) - 1);
      }
      run_panel(arguments, panel);
      g += panel.groups;
    }
  }
}

// Block groups from `first` on that differ in their places only, and those by steady steps.
int64_t ConvInt8Program::groups_alike(int64_t first, int64_t end) const noexcept {
  const auto at = [&](int64_t i) -> const ConvBlockGroup& { return groups_[static_cast<size_t>(i)]; };
  int64_t last = first + 1;
  for (; last < end; ++last) {
    const bool is_steady = at(last).in_first - at(last - 1).in_first == at(first + 1).in_first - at(first).in_first;
    if (at(last).count != at(first).count || at(last).in_count != at(first).in_count || !is_steady) break;
  }
  return last - first;
}

// All tiles are one call's.
bool ConvInt8Program::is_one_run(int64_t unit_begin, int64_t unit_end) const noexcept {
  const auto tiles = static_cast<int64_t>(tiling_.tiles.size());
  return unit_begin % tiles + unit_end - unit_begin <= tiles &&
         runs_[static_cast<size_t>(unit_begin % tiles)].tiles >= unit_end - unit_begin;
}

void ConvInt8Program::set_operands(const ConvInt8Arguments& arguments, const ConvBlockGroup& group, int64_t image,
                                   int64_t element, ConvInt8Call& call) const noexcept {
  const ConvEpilogue& epilogue = problem_.epilogue;
  for (size_t i = 0; i < epilogue.operands.size(); ++i) {
    const int64_t bytes = bits_of(epilogue.expression->inputs[i + 1]) / 8;
    const char* at = static_cast<const char*>(arguments.operands[i]) + image * operand_batch_bytes_[i];
    if (epilogue.operands[i] == ConvOperand::full) at += element * bytes;
    if (epilogue.operands[i] == ConvOperand::per_channel) at += int64_t{group.first} * problem_.shape.lanes * bytes;
    call.operands[i] = at;
    call.operand_block_bytes[i] = problem_.shape.out_pixels() * problem_.shape.lanes * bytes;
    call.operand_step[i] = call.target_step / problem_.out_bytes() * bytes;
  }
}

// From the last tile of a block group to the first one of the next.
void ConvInt8Program::set_turns(const Panel& panel, int64_t tiles, ConvInt8Call& call) const noexcept {
  call.tiles_in_panel = tiles;
  if (panel.groups == 1) return;
  const ConvBlockGroup &group = panel.group[0], &next = panel.group[1];
  call.source_turn = (next.in_first - group.in_first) * call.source_block_bytes - tiles * call.source_step;
  call.terms_turn = -tiles * call.terms_step;
  call.large_turn = (next.in_first - group.in_first) * call.large_block_bytes - tiles;
  call.target_turn = group.count * call.target_block_bytes - tiles * call.target_step;
  call.weights_turn = weights_at(next) - weights_at(group);
  call.init_turn = int64_t{group.count} * problem_.shape.lanes * static_cast<int64_t>(sizeof(int32_t));
  const ConvEpilogue& epilogue = problem_.epilogue;
  for (size_t i = 0; i < epilogue.operands.size(); ++i) {
    const int64_t block = epilogue.operands[i] == ConvOperand::full
                              ? call.operand_block_bytes[i]
                              : problem_.shape.lanes * bits_of(epilogue.expression->inputs[i + 1]) / 8;
    call.operand_turn[i] =
        group.count * block - (epilogue.operands[i] == ConvOperand::full ? tiles * call.operand_step[i] : 0);
  }
}

void ConvInt8Program::run_panel(const ConvInt8Arguments& arguments, const Panel& panel) const noexcept {
  const ConvBlockGroup& group = *panel.group;
  const ConvInt8Kernels& kernels = kernels_[static_cast<size_t>(group.count - 1)];
  const int64_t source_block = problem_.source_block_bytes(), target_block = problem_.target_block_bytes();
  const int64_t whole = std::max<int64_t>(1, groups_read(group) / problem_.shape.in_lanes());
  ConvInt8Call call;
  call.weights = static_cast<const char*>(arguments.weights) + weights_at(group);
  call.init = arguments.init + int64_t{group.first} * problem_.shape.lanes;
  call.blocks = whole;
  call.source_block_bytes = source_block;
  call.target_block_bytes = target_block;
  const char* next = panel.next;
  int64_t next_left = panel.next_bytes;
  const auto tiles = static_cast<int64_t>(tiling_.tiles.size());
  int64_t image = panel.unit_begin / tiles, number = panel.unit_begin % tiles;
  for (int64_t unit = panel.unit_begin; unit < panel.unit_end;) {
    const ConvTile& tile = tiling_.tiles[static_cast<size_t>(number)];
    const TileRun& run = runs_[static_cast<size_t>(number)];
    const int64_t together = std::min(run.tiles, panel.unit_end - unit);
    const int64_t plane = group.first * target_block + tile.target;
    call.source = static_cast<const char*>(arguments.source) +
                  (image * problem_.shape.in_blocks() + group.in_first) * source_block + tile.source;
    call.target = static_cast<char*>(arguments.target) + image * problem_.shape.out_blocks() * target_block + plane;
    call.source_step = run.source_step;
    if (arguments.terms != nullptr) {
      const int64_t pixel_bytes = 4 * problem_.shape.in_lanes(), image_pixels = source_block / pixel_bytes;
      call.terms = arguments.terms + image * image_pixels + tile.source / pixel_bytes;
      call.terms_step = run.source_step / pixel_bytes * 4;
    }
    if (arguments.large != nullptr) {
      call.large_block_bytes = tiles;
      call.large = arguments.large + (image * problem_.shape.in_blocks() + group.in_first) * tiles + number;
    }
    call.target_step = run.target_step;
    call.prefetch = call.weights;
    call.prefetch_step = call.prefetch_until = 0;
    if (next_left > 0) {
      call.prefetch = next;
      call.prefetch_step = int64_t{kernels.prefetch_lines()} * kLine;
      const int64_t bytes = std::max<int64_t>(1, call.prefetch_step * kernels.rounds(tile.shape) * whole);
      const int64_t prefetching = std::min(together, divide_up(next_left, bytes));
      call.prefetch_until = prefetching + 1;
      next += bytes * prefetching;
      next_left -= bytes * prefetching;
    }
    call.tiles = together * panel.groups;
    set_operands(arguments, group, image, plane / problem_.out_bytes(), call);
    set_turns(panel, together, call);
    kernels.entry(tile.shape)(&call);
    unit += together;
    number += together;
    if (number == tiles) {
      number = 0;
      ++image;
    }
  }
}

}  // namespace lathe
