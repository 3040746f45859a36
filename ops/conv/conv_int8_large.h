#pragma once
// Where bytes are large in the input of a convolution of integers, so that products are halved (Int8Dot::u8s8_halved).
#include "ops/conv/conv_int8_program.h"
#include "ops/lower.h"

namespace lathe {

// The step that finds them in all input blocks: gives ConvInt8Arguments::large. `most`: most_together().
BufferId add_large_bytes(const LowerContext& context, const ConvInt8Program& program, BufferId source, int most);

}  // namespace lathe
