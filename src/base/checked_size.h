#pragma once
// The one place where sizes are multiplied. Every byte count that comes from a model goes through here.
#include <cstddef>
#include <cstdint>

#include "lathe/tensor.h"

namespace lathe {

// Product of the extents. Throws Error(invalid_argument) on a negative extent, Error(limit) on overflow of int64.
int64_t checked_elements(const Dims& dims);
// Bytes of a dense tensor, sub-byte types packed. Throws as checked_elements.
size_t checked_bytes(DType dtype, const Dims& dims);
// a * b and a + b. Throw Error(limit) on overflow.
size_t checked_multiply(size_t a, size_t b);
size_t checked_add(size_t a, size_t b);

}  // namespace lathe
