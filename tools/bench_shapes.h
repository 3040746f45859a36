#pragma once
#include <string>
#include <vector>

#include "tools/model_inputs.h"

namespace lathe::tools {

struct ShapeTime {
  std::vector<std::string> dims;  // SYMBOL=N
  double new_ms = 0;              // its first run, which makes what the shape needs
  double again_ms = 0;            // the least of later runs, when all other shapes had been there in between
};

// Runs the model once with each of `dims` in their order, and then `again` times more. Inputs are made, and results let
// go, outside of the time taken.
std::vector<ShapeTime> time_shapes(const Session& session, InputOptions inputs,
                                   const std::vector<std::vector<std::string>>& dims, int again);

// Mean times of shapes. The new ones are of the second half: until then weights are packed for all shapes there are.
struct ShapeMeans {
  double new_ms = 0, again_ms = 0;
};
ShapeMeans means_of(const std::vector<ShapeTime>& times);

}  // namespace lathe::tools
