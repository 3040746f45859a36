#pragma once
// Orders of axes: axis i of what is put in order is axis perm[i] of what there was.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lathe {

using AxisOrder = std::vector<int64_t>;

inline bool is_permutation(const AxisOrder& perm, size_t rank) {
  std::vector<bool> seen(rank, false);
  if (perm.size() != rank) return false;
  for (const int64_t axis : perm) {
    if (axis < 0 || axis >= static_cast<int64_t>(rank) || seen[static_cast<size_t>(axis)]) return false;
    seen[static_cast<size_t>(axis)] = true;
  }
  return true;
}

inline bool is_same_order(const AxisOrder& perm) {
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// The order that undoes `perm`.
inline AxisOrder inverse_order(const AxisOrder& perm) {
  AxisOrder result(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) result[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  return result;
}

// Extents, strides or dimensions in the order `perm`; empty: as they are. Requires: is_permutation().
template <class Axes>
Axes permuted(const Axes& axes, const AxisOrder& perm) {
  if (perm.empty()) return axes;
  Axes result;
  for (const int64_t axis : perm) result.push_back(axes[static_cast<size_t>(axis)]);
  return result;
}

}  // namespace lathe
