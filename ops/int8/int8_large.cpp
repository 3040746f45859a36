#include "ops/int8/int8_large.h"

#include <algorithm>

#include "ops/int8/large_bytes.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kGroupBytes = 4;

}  // namespace

int64_t large_parts(const Int8Problem& problem, const GemmPlan& plan) {
  return std::max<int64_t>(1, divide_up(problem.groups(), plan.k_unroll));
}

BufferId add_large_rows(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, BufferId a,
                        int64_t a_stride) {
  const RowTiles tiles = row_tiles(l->plan, l->problem.m, l->problem.threads);
  const int64_t parts = large_parts(l->problem, l->plan), part_bytes = l->plan.k_unroll * kGroupBytes;
  const int64_t row_bytes = l->problem.groups() * kGroupBytes;
  const bool is_signed = l->problem.dot == Int8Dot::s8u8_halved;
  const BufferId to = context.scratch(checked_bytes(DType::u8, {tiles.count, parts}));
  Step step;
  step.kernel = "find large bytes";
  step.reads = {a};
  step.writes = {to};
  step.bytes = static_cast<double>(l->problem.m * row_bytes + tiles.count * parts);
  step.threads =
      static_cast<int>(std::min<int64_t>(tiles.count, worthwhile_threads(step.bytes * 2, context.target.threads)));
  step.run = [=](const StepArgs& args) {
    const Range range = split_evenly(tiles.count, args.share, args.shares);
    for (int64_t tile = range.begin; tile < range.end; ++tile) {
      uint8_t* large = args.at<uint8_t>(to) + tile * parts;
      std::fill_n(large, parts, uint8_t{0});
      for (int64_t row = tiles.row_of(tile); row < tiles.row_of(tile + 1); ++row) {
        find_large_parts(args.at<const uint8_t>(a) + row * a_stride, is_signed, row_bytes, part_bytes, large);
      }
    }
  };
  context.add(std::move(step));
  return to;
}

}  // namespace lathe
