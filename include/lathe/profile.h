#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

// One step of one run. Times are nanoseconds since the run began.
struct StepTime {
  std::string node;    // name of the graph node
  std::string op;      // its operator, with what was fused into it: "Conv+Add+Relu"
  std::string kernel;  // the plan's text, or "reference"
  int threads = 1;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  double flop = 0;   // floating-point operations (a multiply-add is two)
  double bytes = 0;  // least traffic: inputs, weights and outputs once
};

struct Profile {
  std::vector<StepTime> steps;
  int64_t total_ns = 0;
};

}  // namespace lathe
