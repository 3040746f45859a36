#pragma once
#include "src/base/expression.h"

namespace lathe {

// The operator of ai.onnx that does what this node of an expression does; null for inputs and constants.
const char* onnx_name(ExprOp op);

// In ONNX comparisons give booleans, and logic takes them; in an expression both are numbers.
bool gives_truth(ExprOp op);
bool takes_truth(ExprOp op);

}  // namespace lathe
