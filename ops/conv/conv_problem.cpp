#include "ops/conv/conv_problem.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/conv/conv_strassen.h"
#include "ops/core_cycles.h"
#include "ops/winograd/fewer_products.h"
#include "ops/winograd/winograd_program.h"
#include "src/base/divide.h"

namespace lathe {

double ConvProblem::flop() const {
  double sum = 0;
  for (const ConvShape& phase : phases) {
    sum += 2.0 * static_cast<double>(phase.y.out * phase.x.out) * phase.taps();
  }
  return sum * static_cast<double>(batch) * static_cast<double>(out_channels) * static_cast<double>(in_channels_each());
}

int64_t ConvProblem::source_image(int64_t image) const {
  const int64_t blocks = in_blocks() / frames.joined, frame = image % frames.out * frames.step;
  const int64_t volume_bytes = frames.in * blocks * source_frame_bytes();
  return volume(image) * volume_bytes + frame * (frames.are_outer ? blocks : 1) * source_frame_bytes();
}

int ConvProblem::most_blocks_at_once() const {
  if (longest_sum == 0) return 0;
  int taps = 1;  // a transposed convolution with long strides has phases without any
  for (const ConvShape& phase : phases) taps = std::max(taps, phase.taps());
  const int most = std::max(1, longest_sum / (in_lanes() * taps));
  return most < in_blocks() ? most : 0;
}

void merge_axes(ConvProblem& problem) {
  if (problem.phases.size() != 1) return;
  ConvAxis &y = problem.phases[0].y, &x = problem.phases[0].x;
  for (const ConvAxis* axis : {&y, &x}) {
    if (axis->taps.size() != 1 || axis->taps[0].offset != 0 || axis->stride != 1 || axis->in != axis->out ||
        axis->out_step != 1 || axis->out_extent != axis->out) {
      return;
    }
  }
  x.in = x.out = x.out_extent = y.in * x.in;
  y = ConvAxis();
}

std::string to_string(const ConvProblem& problem) {
  std::string text =
      fmt::format("n{} {}>{}/{} {}x{}{} c{}{}", problem.batch, problem.in_channels, problem.out_channels,
                  problem.groups, problem.window_y, problem.window_x, problem.is_transposed ? " transposed" : "",
                  problem.lanes, problem.has_bias ? " bias" : "");
  for (const ConvShape& phase : problem.phases) text += " | " + to_string(phase);
  if (const ConvFrames& frames = problem.frames; frames != ConvFrames()) {
    text += fmt::format(" frames {}>{} step{} join{} stack{}{}", frames.in, frames.out, frames.step, frames.joined,
                        frames.stacked, frames.are_outer ? " outer" : "");
  }
  if (problem.longest_winograd_sum != ConvProblem().longest_winograd_sum)
    text += fmt::format(" wsums{}", problem.longest_winograd_sum);
  if (problem.most_winograd != ConvProblem().most_winograd) text += fmt::format(" w{}", problem.most_winograd);
  if (problem.has_exact_weights) text += " exact";
  if (problem.longest_sum > 0) text += fmt::format(" sums{}", problem.longest_sum);
  return text + " | " + to_string(problem.epilogue);
}

std::string to_string(const ConvPlan& plan) {
  if (plan.winograd > 0)
    return fmt::format("{} winograd F({}) tiles={}{}{}", name_of(plan.isa), plan.winograd, plan.winograd_group,
                       plan.strassen ? " strassen" : "", plan.narrow ? " bfp24" : "");
  if (plan.strassen) return fmt::format("{} strassen", name_of(plan.isa));
  return fmt::format("{} {}x({}x{}) {} unroll={} chunk={} group={}{}{}", name_of(plan.isa), plan.blocks, plan.rows,
                     plan.cols, plan.embedded ? "embedded" : "separate", plan.unroll, plan.chunk, plan.tile_group,
                     plan.prefetch ? " prefetch" : "",
                     plan.ahead  ? " ahead"
                     : plan.dots ? " dots"
                                 : "");
}

Candidate to_candidate(const ConvPlan& plan) {
  return {{"blocks", plan.blocks},     {"rows", plan.rows},
          {"cols", plan.cols},         {"embedded", plan.embedded},
          {"unroll", plan.unroll},     {"chunk", plan.chunk},
          {"group", plan.tile_group},  {"prefetch", plan.prefetch},
          {"winograd", plan.winograd}, {"winograd_group", plan.winograd_group},
          {"ahead", plan.ahead},       {"dots", plan.dots},
          {"strassen", plan.strassen}, {"narrow", plan.narrow}};
}

ConvPlan plan_of(const Candidate& candidate, Isa isa) {
  auto get = [&](const char* name) { return candidate.at(name); };
  return {isa,
          get("blocks"),
          get("rows"),
          get("cols"),
          get("embedded") != 0,
          get("unroll"),
          get("chunk"),
          get("group"),
          get("prefetch") != 0,
          get("winograd"),
          get("winograd_group"),
          get("ahead") != 0,
          get("dots") != 0,
          get("strassen") != 0,
          get("narrow") != 0};
}

int dots_of(const ConvProblem& problem) {
  const int64_t out_each = problem.out_channels_each();
  if (problem.groups == 1) return out_each <= ConvKernelPlan::kMostDots ? static_cast<int>(out_each) : 0;
  const bool is_narrow = out_each == problem.in_channels_each() && out_each < problem.lanes &&
                         (out_each == 2 || out_each == 4 || out_each == 8);
  return is_narrow ? static_cast<int>(out_each) : 0;
}

bool can_be_strassen(const ConvPlan& plan, const ConvProblem& problem) {
  return plan.winograd > 0 ? can_multiply_fewer(problem, plan.isa, plan.winograd) : is_strassen(problem, plan.isa);
}

bool can_be_narrow(const ConvProblem& problem) {
  return !problem.has_exact_weights && problem.in_channels_each() % Bfp24::kGroupRows == 0;
}

bool is_valid(const ConvPlan& plan, const ConvProblem& problem) {
  if (plan.rows < 0 || plan.cols < 1 || plan.unroll < 1 || plan.chunk < 0 || plan.tile_group < 0) return false;
  if (plan.blocks > blocks_alike(problem)) return false;
  if (const int most = problem.most_blocks_at_once(); most > 0 && (plan.chunk == 0 || plan.chunk > most)) return false;
  if (plan.winograd < 0 || plan.winograd > problem.most_winograd || plan.winograd_group < 0) return false;
  if (plan.winograd > 0 && !is_winograd(problem, plan.winograd)) return false;
  if (plan.winograd_group > 0 && is_winograd_stem(problem, plan.winograd)) return false;
  if (plan.ahead && (problem.phases[0].taps() != 1 || plan.rows != 1)) return false;
  if (plan.strassen && !can_be_strassen(plan, problem)) return false;
  if (plan.narrow && (plan.winograd == 0 || plan.strassen || !can_be_narrow(problem) ||
                      !is_winograd_of_blocks(problem, plan.winograd))) {
    return false;
  }
  ConvKernelPlan kernel;
  if (plan.dots) {
    kernel.dots = dots_of(problem);
    if (kernel.dots == 0 || plan.prefetch || plan.ahead || plan.winograd > 0 || plan.strassen) return false;
    kernel.has_narrow_groups = problem.groups > 1;
    kernel.lanes = problem.in_lanes();
    kernel.tail = static_cast<int>(problem.in_channels % kernel.lanes);
  }
  kernel.isa = plan.isa;
  kernel.blocks = plan.blocks;
  kernel.embedded = plan.embedded;
  // Runs over ends of rows differ in every tile: worth it only for a few tiles.
  if (plan.rows == 0 && problem.out_pixels() > 16 * plan.cols) return false;
  return fits_registers(kernel, std::max(plan.rows, 1) * plan.cols);
}

namespace {

int64_t channels_end(const ConvProblem& problem, const ConvBlockGroup& group) {
  return std::min(int64_t{group.first + group.count} * problem.lanes, problem.out_channels);
}

// Input channels that the outputs depend on.
std::pair<int64_t, int64_t> channels_read(const ConvProblem& problem, const ConvBlockGroup& group) {
  const int64_t begin = int64_t{group.first} * problem.lanes, end = channels_end(problem, group);
  const int64_t out_each = problem.out_channels_each(), in_each = problem.in_channels_each();
  return {begin / out_each * in_each, ((end - 1) / out_each + 1) * in_each};
}

// Whether output blocks of different groups never mix, so that several can share their input.
bool has_whole_blocks(const ConvProblem& problem) {
  return problem.groups == 1 || problem.out_channels_each() % problem.lanes == 0;
}

// Input channels that only outputs in the first half of a block's lanes depend on.
int channels_of_first_half(const ConvProblem& problem, const ConvBlockGroup& group) {
  const int64_t first = int64_t{group.first} * problem.lanes, middle = first + problem.lanes / 2;
  if (problem.lanes < vector_lanes(Isa::avx512) || group.count > 1 || channels_end(problem, group) <= middle) return 0;
  const int64_t out_each = problem.out_channels_each(), in_each = problem.in_channels_each();
  const int64_t ended = middle / out_each;  // groups of channels
  return static_cast<int>(std::max<int64_t>(0, ended - first / out_each) * in_each);
}

}  // namespace

bool has_one_tap(const ConvProblem& problem) {
  if (problem.phases.size() != 1 || problem.groups != 1 || problem.window_y != 1 || problem.window_x != 1 ||
      problem.frames != ConvFrames()) {
    return false;
  }
  const auto is_plain = [](const ConvAxis& axis) {
    return axis.taps == ConvAxis().taps && axis.out_step == 1 && axis.out_first == 0 && axis.out_extent == axis.out;
  };
  return is_plain(problem.phases[0].y) && is_plain(problem.phases[0].x);
}

std::optional<ConvProblem> with_taken_pixels(const ConvProblem& problem) {
  // Pixels that a stride keeps apart find half of the sets of L1, too few for all channels of a tile, which come again
  // for each panel of outputs.
  constexpr int64_t kFewestChannels = 256;
  if (!has_one_tap(problem) || problem.in_lanes() != problem.lanes ||
      std::min(problem.in_channels, problem.out_channels) < kFewestChannels) {
    return std::nullopt;
  }
  ConvProblem taken = problem;
  ConvAxis &y = taken.phases[0].y, &x = taken.phases[0].x;
  if (y.stride * x.stride == 1) return std::nullopt;
  for (const ConvAxis* axis : {&y, &x}) {
    if ((axis->out - 1) * axis->stride >= axis->in) return std::nullopt;
  }
  x.stride = 1;
  x.in = x.out = x.out_extent = y.out * x.out;
  y = ConvAxis();
  return taken;
}

std::optional<ConvProblem> padded(const ConvProblem& problem) {
  if (problem.phases.size() != 1 || problem.frames != ConvFrames()) return std::nullopt;
  constexpr int64_t kMostZeros = 256;
  ConvProblem whole = problem;
  bool has_zeros = false;
  for (ConvAxis* axis : {&whole.phases[0].y, &whole.phases[0].x}) {
    int64_t before = 0, after = 0;
    for (const ConvTap& tap : axis->taps) {
      before = std::max(before, -tap.offset);
      after = std::max(after, (axis->out - 1) * axis->stride + tap.offset - (axis->in - 1));
    }
    // Not where zeros are what there is most of.
    if (before + after > 3 * axis->in + kMostZeros) return std::nullopt;
    for (ConvTap& tap : axis->taps) tap.offset += before;
    axis->in += before + after;
    has_zeros = has_zeros || before + after > 0;
  }
  if (!has_zeros) return std::nullopt;
  return whole;
}

int64_t blocks_alike(const ConvProblem& problem) {
  if (!has_whole_blocks(problem)) return 1;
  return problem.groups == 1 ? problem.out_blocks() : problem.out_channels_each() / problem.lanes;
}

int shared_pixels(const ConvProblem& problem, const ConvPlan& plan, int64_t blocks, const CoreRates& rates) {
  if (plan.embedded || blocks < 2) return 1;
  return rows_that_share(problem.out_channels % problem.lanes, plan.isa, rates);
}

std::vector<ConvBlockGroup> make_block_groups(const ConvProblem& problem, int blocks, int even_for) {
  const int64_t alike = blocks_alike(problem);
  int64_t parts = divide_up(alike, blocks);
  if (parts * (problem.out_blocks() / alike) % even_for != 0) {
    const int64_t rounded = (parts + even_for - 1) / even_for * even_for;
    // Worth smaller groups only when they stay nearly as large.
    if (rounded <= alike && rounded * 4 <= parts * 5) parts = rounded;
  }
  std::vector<ConvBlockGroup> groups;
  int64_t weights = 0;
  const int taps_lanes = problem.lanes;
  for (int64_t base = 0; base < problem.out_blocks(); base += alike) {
    for (int64_t part = 0; part < parts; ++part) {
      ConvBlockGroup group;
      group.first = static_cast<int>(base + alike * part / parts);
      group.count = static_cast<int>(base + alike * (part + 1) / parts) - group.first;
      const auto [begin, end] = channels_read(problem, group);
      const int lanes = problem.in_lanes();
      group.in_first = static_cast<int>(begin / lanes);
      group.in_count = static_cast<int>((end + lanes - 1) / lanes) - group.in_first;
      group.has_tail = (group.in_first + group.in_count == problem.in_blocks()) && problem.in_channels % lanes != 0;
      group.weights = weights;  // for a window of one tap
      const int64_t channels =
          int64_t{group.in_count} * lanes - (group.has_tail ? lanes - problem.in_channels % lanes : 0);
      weights += channels * group.count * taps_lanes;
      groups.push_back(group);
    }
  }
  return groups;
}

void read_exactly(const ConvProblem& problem, std::vector<ConvBlockGroup>& groups) {
  const int lanes = problem.in_lanes();
  int64_t weights = 0;
  for (ConvBlockGroup& group : groups) {
    const auto [begin, end] = channels_read(problem, group);
    const int64_t in_blocks = std::min<int64_t>(int64_t{group.in_first + group.in_count} * lanes, problem.in_channels) -
                              int64_t{group.in_first} * lanes;
    const int lead = channels_of_first_half(problem, group);
    if (end - begin < in_blocks || lead > 0)
      group.channels = {static_cast<int>(begin % lanes), static_cast<int>(end - begin), lead};
    group.weights = weights;
    weights += (end - begin) * group.count * problem.lanes;
  }
}

}  // namespace lathe
