#pragma once
#include "lathe/tensor.h"

namespace lathe {

// Puts a result where the caller wants it: into the buffer that `output` is, or, where that is undefined, as it is.
// Throws Error(invalid_argument) when the buffer's type or shape is another.
void deliver(const Tensor& result, Tensor& output);

}  // namespace lathe
