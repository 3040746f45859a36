#pragma once
// The equation of an Einsum: which axes of the operands are one, and which of them the result keeps.
#include <string>
#include <vector>

#include "lathe/tensor.h"

namespace lathe {

// Axes by number: letters, then the axes that an ellipsis stands for. Two operands' ellipses meet at their last axes,
// so that these share their numbers.
struct EinsumEquation {
  std::vector<std::vector<int>> operands;
  std::vector<int> result;
};

// `ranks`: of the operands. Throws std::invalid_argument with what is wrong.
EinsumEquation parse_einsum(const std::string& text, const std::vector<int>& ranks);

// An operand or result: for each of its different axes the extent and the elements from one index to the next. An axis
// that an operand has twice is its diagonal.
struct EinsumView {
  std::vector<int> axes;
  Dims extents;
  std::vector<int64_t> strides;

  // 0 where the view has no such axis, or repeats its one element.
  int64_t stride_of(int axis) const;
  bool has(int axis) const;
};
// The view of a dense operand. Throws std::invalid_argument when the extents of a diagonal differ.
EinsumView einsum_view(const std::vector<int>& axes, const Dims& dims);
// The extent of each axis, by number, that all views agree upon; an extent of 1 is repeated. -1: no such axis. Throws
// std::invalid_argument when they do not agree.
std::vector<int64_t> einsum_extents(const std::vector<EinsumView>& views);

}  // namespace lathe
