#pragma once
#include "ops/op_def.h"

namespace lathe {

// Attention of ai.onnx in any float type: each step is rounded to it, as the operator's definition does.
void run_attention_reference(ReferenceContext& context);

}  // namespace lathe
