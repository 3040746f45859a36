#pragma once
// Bytes in expressions, and the tables that give their products with constants (BytesTimesConstants).
#include <optional>

#include "jit/expression/vector_program.h"

namespace lathe {

// min or max of a value and a constant.
struct ConstantBound {
  int value;
  float bound;
};
std::optional<ConstantBound> constant_bound(const Expression& expression, const ExprNode& node);

// Where the range of 256 whole numbers begins in which the node's value lies: an input's, or that of what is rounded
// and clamped. Nullopt where `products` are none that are looked up.
std::optional<int> lowest_of_byte(const Expression& expression, int node, BytesTimesConstants products);

// factor * byte + addend = upper[bits 4 to 7 of byte - base] + lower[its bits 0 to 3].
struct ByteTables {
  int base = 0;
  LookUpTable upper{}, lower{};
};
ByteTables byte_tables(int lowest, double factor, double addend);

}  // namespace lathe
