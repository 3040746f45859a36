#pragma once
// Strings of an Einsum's letters, one for each axis.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace lathe::passes {

inline bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// Those letters that are wanted, in their order.
std::string those(const std::string& letters, auto&& is_wanted) {
  std::string some;
  std::copy_if(letters.begin(), letters.end(), std::back_inserter(some), is_wanted);
  return some;
}

inline bool are_different_letters(const std::string& letters) {
  return std::all_of(letters.begin(), letters.end(), [&](char c) {
    return std::isalpha(static_cast<unsigned char>(c)) != 0 && std::count(letters.begin(), letters.end(), c) == 1;
  });
}

struct EinsumLetters {
  std::vector<std::string> operands;  // one for each input
  std::string result;
};

// nullopt: the equation does not spell out its result, has an ellipsis, or an operand names an axis twice.
inline std::optional<EinsumLetters> letters_of(const Node& node) {
  const std::string text = those(node.attributes.get_string("equation", ""), [](char c) { return c != ' '; });
  const size_t arrow = text.find("->");
  if (arrow == std::string::npos) return std::nullopt;
  EinsumLetters found{{}, text.substr(arrow + 2)};
  for (size_t begin = 0, end = 0; end != arrow; begin = end + 1) {
    end = std::min(text.find(',', begin), arrow);
    found.operands.push_back(text.substr(begin, end - begin));
    if (!are_different_letters(found.operands.back())) return std::nullopt;
  }
  if (found.operands.size() != node.inputs.size() || !are_different_letters(found.result)) return std::nullopt;
  return found;
}

}  // namespace lathe::passes
