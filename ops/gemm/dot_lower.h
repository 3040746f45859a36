#pragma once
// Matrix products that are thin on one side: as dot products where these take less time than panels.
#include "ops/gemm/gemm_node.h"

namespace lathe {

// Where the operands of a product are, B as it lies in memory.
struct ThinOperands {
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none;
  ValueId constant_b = ValueId::none;  // none: B is known at run time only, or differs from matrix to matrix
};

// False, and nothing added: panels serve the product as well.
bool lower_thin_product(LowerContext& context, const ProductNode& product, const GemmProblem& problem,
                        const ThinOperands& operands);

}  // namespace lathe
