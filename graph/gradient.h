#pragma once
// Reverse-mode differentiation on the graph: what ai.onnx.preview.training's Gradient stands for.
#include "graph/expand.h"

namespace lathe {

// Adds, and sets as the node's outputs, the derivatives of the sum of `y` by each of `xs`, as nodes of ai.onnx. The
// node's inputs take the place of the values that `xs` and `zs` name. Throws Error(unsupported) naming a node on the
// way whose operator has no rule; Error(invalid_model) for a name that no value has. Requires: types are inferred;
// values still have the names of the model.
void differentiate(ExpandContext& context);

}  // namespace lathe
