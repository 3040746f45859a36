#pragma once
#include "lathe/value.h"

namespace lathe {

// Inside Lathe a value that is no tensor travels in one: a scalar of DType::object. All that moves values without
// looking into them needs to know nothing of sequences, optionals and maps, and tensors pay nothing for them.
Tensor box(AnyValue value);                                     // a tensor comes back as it is
inline AnyValue unbox(const Tensor& tensor) { return tensor; }  // the inverse; undefined gives nothing
inline bool is_boxed(const Tensor& tensor) { return tensor.dtype() == DType::object; }

}  // namespace lathe
