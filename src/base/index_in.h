#pragma once
#include <algorithm>
#include <vector>

namespace lathe {

// Where `kind` stands in `kinds`, which receives it when it is new.
template <class T>
int index_in(std::vector<T>& kinds, const T& kind) {
  const auto found = std::find(kinds.begin(), kinds.end(), kind);
  if (found != kinds.end()) return static_cast<int>(found - kinds.begin());
  kinds.push_back(kind);
  return static_cast<int>(kinds.size()) - 1;
}

}  // namespace lathe
