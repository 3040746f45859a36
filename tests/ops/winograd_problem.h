#pragma once
// Convolutions that Winograd's method may compute.
#include "ops/conv/conv_problem.h"

namespace lathe::testing {

// With a bias, and at the accuracy level that allows each form with sums of any length.
inline ConvProblem problem_of(int64_t batch, int64_t in, int64_t out, int taps, const ConvAxis& y, const ConvAxis& x,
                              Isa isa) {
  ConvProblem problem;
  problem.batch = batch;
  problem.in_channels = in;
  problem.out_channels = out;
  problem.window_y = problem.window_x = taps;
  problem.lanes = vector_lanes(isa);
  problem.has_bias = true;
  problem.longest_winograd_sum = 0;
  problem.phases = {{y, x, problem.lanes}};
  return problem;
}

}  // namespace lathe::testing
