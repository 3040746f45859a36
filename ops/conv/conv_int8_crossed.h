#pragma once
// Convolutions of integers whose products are crossed (Int8Dot): when, and their input.
#include <utility>

#include "ops/conv/conv_int8_input.h"
#include "ops/conv/conv_int8_program.h"

namespace lathe {

// `crossed`: the same as `direct`, of pairs, with a border where that has taps outside of the input.
bool pays_crossed(const ConvInt8Problem& direct, const ConvInt8Problem& crossed);

// From one pixel of the input to the next of those that are widened.
struct CrossedSteps {
  int64_t y = 1, x = 1;
};
// With one tap and no border, only pixels that are read shall be widened: `problem` becomes the one over these, side by
// side.
CrossedSteps take_pixels(const ConvInt8Input& input, ConvInt8Problem& problem);

// The steps that widen the input, and sum up what crossed products add to each pixel's sums. Gives the buffers of both,
// the latter's as ConvInt8Arguments::terms. `zero_at` as for ConvInt8Input::add_step().
std::pair<BufferId, BufferId> add_crossed_input(const LowerContext& context, const ConvInt8Input& input,
                                                const CrossedSteps& steps, const ConvProblem& shape, BufferId from,
                                                BufferId zero_at);

}  // namespace lathe
