#pragma once
// Pointwise convolutions of pictures of one pixel (classifiers behind a pool, squeeze-and-excitation) are products of
// rows, which know how to wait for weights: in few bits, and for all rows of a batch at once.
#include "ops/conv/conv_operands.h"
#include "ops/conv/conv_problem.h"
#include "ops/lower.h"

namespace lathe {

// False: it is none, too small, or channels do not fill blocks, of which a product would leave the rest as it is.
// `problem`: of the node, before layouts are known.
bool lower_rows(LowerContext& context, const ConvProblem& problem, const BoundEpilogue& bound);

}  // namespace lathe
