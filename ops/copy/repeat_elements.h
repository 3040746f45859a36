#pragma once
// Single elements that each fill a row of the result, as Expand of the last axis has them.
#include <cstddef>
#include <cstdint>

#include "ops/copy/copy_elements.h"

namespace lathe {

// Row i of `rows`, all `count` elements of it, becomes the element at from + i * from_stride. Strides in bytes;
// elements of 1, 2, 4, 8 or 16 bytes.
void repeat_elements(const char* from, char* to, const MoveAxis& rows, int64_t count, size_t element_bytes);

}  // namespace lathe
