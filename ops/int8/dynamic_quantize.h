#pragma once
#include "ops/int8/quantize_floats.h"
#include "ops/lower.h"

namespace lathe {

// The range of an input, by parts that as many threads find.
struct FoundRange {
  BufferId parts = BufferId::none;
  int threads = 1;

  ValueRange merged(const StepArgs& args) const noexcept;
};
// Adds the step that finds it. Any layout.
FoundRange add_range(const LowerContext& context, int input);

// DynamicQuantizeLinear: a pass over the input for its range, one that quantizes.
bool lower_dynamic_quantize(LowerContext& context);

}  // namespace lathe
