#pragma once
#include "ops/conv/conv_int8_program.h"
#include "tuner/task.h"

namespace lathe {

// The search for the tiles of a direct convolution of integers. Candidates run over operands of their own, weights
// coming from memory.
TuningTask conv_int8_tuning_task(const ConvInt8Problem& problem, int threads);

// The tile of a candidate; nullopt: the rule's.
std::optional<ConvInt8Tile> conv_int8_tile_of(const Candidate& candidate);

}  // namespace lathe
