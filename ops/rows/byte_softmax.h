#pragma once
// Softmax over rows whose results are stored as bytes.
#include <optional>

#include "jit/kernels/rows/softmax.h"
#include "src/base/expression.h"

namespace lathe {

struct ByteSoftmax {
  SoftmaxPlan plan;
  float factor = 1;  // SoftmaxArgs::factor
};

// `epilogue`: what follows Softmax. nullopt: it is no rounding to bytes of one scale.
std::optional<ByteSoftmax> byte_softmax(Isa isa, const Expression& epilogue);

}  // namespace lathe
