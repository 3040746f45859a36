#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace lathe::tools {

// The upper one of an even number; of one value at least.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lathe::tools
