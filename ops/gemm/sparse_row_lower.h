#pragma once
#include "ops/gemm/gemm_node.h"
#include "ops/gemm/product_steps.h"

namespace lathe {

// One row that comes from a rectifier times a large constant B that may lie in block floating point
// (GemmProblem::narrow): rows of B that meet zeros stay in memory. A row with a half of zeros takes two thirds of the
// time that panels take, one without any 2 to 15 % longer (Zen 5). False: something else.
bool lower_sparse_row(const LowerContext& context, const ProductNode& product, const GemmProblem& problem,
                      const ConstantMatrix& b);

}  // namespace lathe
