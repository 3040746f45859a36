#pragma once
#include "ops/gemm/gemm_plan.h"
#include "tuner/task.h"

namespace lathe {

// The search for a product's plan. Candidates run over operands of their own, weights coming from memory.
TuningTask gemm_tuning_task(const GemmProblem& problem);

}  // namespace lathe
