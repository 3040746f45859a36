#pragma once
#include <string>

#include "lathe/tensor.h"

namespace lathe::tools {

struct Tolerance {
  double rtol = 1e-3;
  double atol = 1e-5;
};

// "" when |got - want| <= atol + rtol * |want| everywhere (NaN equals NaN; infinities, int64, uint64, bool and strings
// exactly) and types and shapes are equal; of sequences and maps, item by item (boxed: src/base/box.h). Otherwise one
// line: what differs, where, and by how much.
std::string describe_difference(const Tensor& got, const Tensor& want, const Tolerance& tolerance);

}  // namespace lathe::tools
