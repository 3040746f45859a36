#pragma once
// Random graphs of real operators on small tensors, from recipes: plain data that can be cut down while a bug stays.
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace lathe::testing {

// One step of building: which kind of node or small pattern, and what it picks. Every recipe means something in every
// graph (picks count modulo what there is), so that any part of a list of recipes is a list of recipes.
struct Recipe {
  uint32_t kind = 0;
  uint32_t picks[4] = {};
  bool is_output = false;  // what it makes is an output of the graph too
};

struct RandomCase {
  uint32_t seed = 0;        // of the elements
  bool has_symbol = false;  // the inputs' first extents are open at load
  std::vector<Recipe> recipes;
};

RandomCase random_case(uint32_t seed);

struct BuiltCase {
  Graph graph;
  std::vector<Tensor> inputs;
};
// The same case builds the same graph and the same elements.
BuiltCase build(const RandomCase& what);

// "random_case(7), recipes 0 3 4": with the graph in text form, for a report.
std::string describe(const RandomCase& what);

}  // namespace lathe::testing
