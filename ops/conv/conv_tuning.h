#pragma once
#include "ops/conv/conv_problem.h"
#include "tuner/task.h"

namespace lathe {

// The search for a direct convolution's plan. Candidates run over operands of their own, weights coming from memory.
TuningTask conv_tuning_task(const ConvProblem& problem, Isa isa, int threads);

}  // namespace lathe
