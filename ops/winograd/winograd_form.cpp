#include "ops/winograd/winograd_form.h"

#include <fmt/format.h>

#include "src/base/divide.h"

namespace lathe {

bool has_plain_taps(const ConvAxis& axis) {
  if (axis.out_step != 1 || axis.out_first != 0 || axis.out_extent != axis.out) return false;
  for (size_t i = 0; i < axis.taps.size(); ++i) {
    if (axis.taps[i].kernel != static_cast<int>(i)) return false;
    if (axis.taps[i].offset != axis.taps[0].offset + static_cast<int64_t>(i)) return false;
  }
  return true;
}

namespace {

// Windows of more taps are cut into pieces.
constexpr int kMostWhole = 5, kMostPieces = 5;

// Into those that cost the fewest multiplications; up to F(4x4) as exact as that of three taps.
void cut(WinogradForm& form) {
  const int taps = form.taps;
  int least = 0;
  for (int each = 3; each <= kMostWhole; ++each) {
    const int pieces = divide_up(taps, each), size = form.outputs + each - 1;
    const bool is_allowed = size == 4 || size == 6 || (form.outputs > 4 && (size == 7 || size == 8));
    if (!is_allowed || (least > 0 && pieces * size >= least)) continue;
    least = pieces * size;
    form.taps = each;
    form.pieces = pieces;
  }
}

}  // namespace

std::string to_string(const WinogradPlan& plan) {
  return fmt::format("{} {} tiles={}{}{}", name_of(plan.isa), to_string(plan.form), plan.tile_group,
                     plan.strassen ? " strassen" : "", plan.narrow ? " bfp24" : "");
}

WinogradPlan winograd_plan(const ConvPlan& plan) {
  WinogradPlan made;
  made.isa = plan.isa;
  made.form.outputs = plan.winograd;
  made.tile_group = plan.winograd_group;
  made.strassen = plan.strassen;
  made.narrow = plan.narrow;
  return made;
}

WinogradForm winograd_form(const ConvProblem& problem, int outputs) {
  WinogradForm form;
  form.outputs = outputs;
  form.taps = static_cast<int>(problem.phases[0].x.taps.size());
  form.stride = static_cast<int>(problem.phases[0].x.stride);
  form.is_line = problem.phases[0].y.taps.size() == 1;
  if (form.stride == 1 && form.taps > kMostWhole) cut(form);
  return form;
}

int longest_sum_of(const WinogradForm& form, const ConvProblem& problem) {
  return is_large(form) ? problem.longest_winograd_sum : 0;
}

bool is_winograd_of_blocks(const ConvProblem& problem, int outputs) {
  if (problem.phases.size() != 1 || problem.is_transposed) return false;
  const ConvAxis &y = problem.phases[0].y, &x = problem.phases[0].x;
  constexpr size_t kMostTaps = size_t{kMostWhole} * kMostPieces;
  if (problem.in_lanes() != problem.lanes || outputs < 2 || x.stride < 1 || x.stride > 2 || x.taps.size() > kMostTaps)
    return false;
  const WinogradForm form = winograd_form(problem, outputs);
  if (form.taps < 3 || !has_plain_taps(y) || !has_plain_taps(x)) return false;
  if (y.stride != (form.is_line ? 1 : form.stride) || (!form.is_line && y.taps.size() != x.taps.size())) return false;
  // What a frequency's product reads of a group's channels lies together, in whole blocks.
  const auto has_whole_blocks = [&](int64_t channels) { return channels % problem.lanes == 0; };
  const bool are_whole = has_whole_blocks(problem.in_channels_each()) && has_whole_blocks(problem.out_channels_each());
  if (problem.groups > 1 && (!are_whole || form.pieces > 1 || form.stride > 1 || problem.frames != ConvFrames()))
    return false;
  // Channels of several phases stand side by side.
  if (form.pieces > 1) return form.pieces <= kMostPieces && problem.in_channels % problem.lanes == 0;
  if (form.stride == 2)
    return form.taps <= 7 && outputs <= 4 && form.size() <= 7 && problem.in_channels % problem.lanes == 0;
  return form.taps <= 5 && form.size() % 2 == 0 && form.size() <= 8;
}

}  // namespace lathe
