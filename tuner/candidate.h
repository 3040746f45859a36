#pragma once
#include "tuner/task.h"

namespace lathe {

// Every knob has exactly one value, each among the knob's choices, and the space allows the combination.
bool is_valid(const SearchSpace& space, const Candidate& candidate);

}  // namespace lathe
