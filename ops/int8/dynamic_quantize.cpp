#include "ops/int8/dynamic_quantize.h"

#include <algorithm>

#include "ops/int8/quantize_floats.h"
#include "ops/value_rows.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLine = 16;  // floats of a cache line: threads write their ranges to lines of their own

ValueRange range_of_rows(const float* x, const Range& mine, const ValueRows& of) noexcept {
  ValueRange range;
  for (int64_t row = mine.begin; row < mine.end;) {
    // Runs of whole rows lie behind each other.
    int64_t run = row / of.rows, end = row;
    const bool is_partial = of.is_partial(run);
    for (; end < mine.end && of.is_partial(run) == is_partial; ++run)
      end = std::min<int64_t>(mine.end, (run + 1) * of.rows);
    const float* at = x + row * of.lanes;
    range.include(is_partial ? range_of_lanes(at, end - row, of.lanes, of.valid)
                             : range_of(at, (end - row) * of.lanes));
    row = end;
  }
  return range;
}

}  // namespace

ValueRange FoundRange::merged(const StepArgs& args) const noexcept {
  ValueRange all;
  for (int i = 0; i < threads; ++i) {
    const float* part = args.at<const float>(parts) + i * kLine;
    all.include({part[0], part[1]});
  }
  return all;
}

FoundRange add_range(const LowerContext& context, int input, const LeadingElements& leading) {
  const ValueRows rows = ValueRows::of(context.input_type(input));
  FoundRange found;
  found.threads = worthwhile_threads(static_cast<double>(rows.count()) * 10, context.target.threads);
  found.parts = context.scratch(checked_bytes(DType::f32, {found.threads, kLine}));
  const BufferId from = context.buffer(context.input(input));
  Step step;
  step.kernel = "range";
  step.reads = {from};
  if (leading.counted_from != BufferId::none) step.reads.push_back(leading.counted_from);
  step.writes = {found.parts};
  step.threads = found.threads;
  step.bytes = 4.0 * static_cast<double>(rows.count());
  step.run = [=](const StepArgs& args) {
    const int64_t count = leading.count ? leading.count(args) : rows.runs * rows.rows;
    const Range mine = split_evenly(count, args.share, found.threads);
    const ValueRange range = range_of_rows(args.at<const float>(from), mine, rows);
    float* out = args.at<float>(found.parts) + args.share * kLine;
    out[0] = range.low;
    out[1] = range.high;
  };
  context.add(std::move(step));
  return found;
}

bool lower_dynamic_quantize(LowerContext& context) {
  if (context.input_type(0).dtype != DType::f32 || !context.has_output(0)) return false;
  if (context.input_type(0).layout != context.output_type(0).layout) return false;
  const int64_t count = ValueRows::of(context.input_type(0)).count();
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const FoundRange range = add_range(context, 0);
  const BufferId scale = context.has_output(1) ? context.buffer(context.output(1)) : BufferId::none;
  const BufferId zero = context.has_output(2) ? context.buffer(context.output(2)) : BufferId::none;
  Step step;
  step.kernel = "quantize";
  step.reads = {from, range.parts};
  step.writes = {to};
  for (const BufferId each : {scale, zero}) {
    if (each != BufferId::none) step.writes.push_back(each);
  }
  step.threads = range.threads;
  step.bytes = 5.0 * static_cast<double>(count);
  step.run = [=](const StepArgs& args) {
    const Quantization q = quantization_of(range.merged(args));
    const Range mine = split_evenly(count, args.share, range.threads);
    quantize(args.at<const float>(from) + mine.begin, mine.end - mine.begin, q, args.at<uint8_t>(to) + mine.begin);
    if (args.share != 0) return;
    if (scale != BufferId::none) *args.at<float>(scale) = q.scale;
    if (zero != BufferId::none) *args.at<uint8_t>(zero) = static_cast<uint8_t>(q.zero);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
