#pragma once
#include <cstddef>
#include <cstdint>

namespace lathe {

// Everything that a hostile model could drive to absurdity, in one struct.
struct Limits {
  size_t model_bytes = size_t{64} << 30;
  size_t tensor_bytes = size_t{64} << 30;  // one tensor; the machine's memory limits it further
  size_t folded_bytes = size_t{64} << 20;  // one result of constant folding
  int64_t nodes = 2'000'000;               // after functions are expanded
  int function_depth = 64;
  int subgraph_depth = 64;
  int rank = 64;
  int64_t loop_iterations = 4'000'000;  // of one Loop: two seconds of the smallest body
};

}  // namespace lathe
