#pragma once
// Strings of an Einsum's letters, one for each axis.
#include <algorithm>
#include <iterator>
#include <string>

namespace lathe::passes {

inline bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// Those letters that are wanted, in their order.
std::string those(const std::string& letters, auto&& is_wanted) {
  std::string some;
  std::copy_if(letters.begin(), letters.end(), std::back_inserter(some), is_wanted);
  return some;
}

}  // namespace lathe::passes
