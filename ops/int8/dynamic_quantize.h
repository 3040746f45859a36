#pragma once
#include <functional>

#include "ops/int8/quantize_floats.h"
#include "ops/lower.h"

namespace lathe {

// The range of an input, by parts that as many threads find.
struct FoundRange {
  BufferId parts = BufferId::none;
  int threads = 1;

  ValueRange merged(const StepArgs& args) const noexcept;
};
// Of a plain input, how many of its elements count: what a run tells, by a buffer that the step reads. None: all.
struct LeadingElements {
  BufferId counted_from = BufferId::none;
  std::function<int64_t(const StepArgs&)> count;
};
// Adds the step that finds it. Any layout.
FoundRange add_range(const LowerContext& context, int input, const LeadingElements& leading = {});

// DynamicQuantizeLinear: a pass over the input for its range, one that quantizes.
bool lower_dynamic_quantize(LowerContext& context);

}  // namespace lathe
