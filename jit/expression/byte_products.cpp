#include "jit/expression/byte_products.h"

#include <cmath>

namespace lathe {

std::optional<ConstantBound> constant_bound(const Expression& expression, const ExprNode& node) {
  if (node.op != ExprOp::min && node.op != ExprOp::max) return std::nullopt;
  const ExprNode &a = expression.nodes[static_cast<size_t>(node.a)], &b = expression.nodes[static_cast<size_t>(node.b)];
  if (a.op == ExprOp::constant) return ConstantBound{node.b, a.value};
  if (b.op == ExprOp::constant) return ConstantBound{node.a, b.value};
  return std::nullopt;
}

std::optional<int> lowest_of_byte(const Expression& expression, int node, BytesTimesConstants products) {
  constexpr float kLargestBound = 1 << 20;
  const auto at = [&](int i) -> const ExprNode& { return expression.nodes[static_cast<size_t>(i)]; };
  if (products == BytesTimesConstants::multiplied) return std::nullopt;
  if (at(node).op == ExprOp::input) {
    const DType dtype = expression.inputs[static_cast<size_t>(at(node).a)];
    if (dtype == DType::u8) return 0;
    return dtype == DType::i8 ? std::optional(-128) : std::nullopt;
  }
  if (products != BytesTimesConstants::looked_up || at(node).op != ExprOp::min) return std::nullopt;
  const std::optional<ConstantBound> high = constant_bound(expression, at(node));
  if (!high || at(high->value).op != ExprOp::max) return std::nullopt;
  const std::optional<ConstantBound> low = constant_bound(expression, at(high->value));
  if (!low || at(low->value).op != ExprOp::round_even) return std::nullopt;
  const bool is_whole = low->bound == std::nearbyint(low->bound) && std::fabs(low->bound) < kLargestBound;
  // Bounds that are not whole would be rounded, too.
  if (!is_whole || high->bound != std::nearbyint(high->bound)) return std::nullopt;
  if (high->bound < low->bound || high->bound - low->bound > 255) return std::nullopt;
  return static_cast<int>(low->bound);
}

ByteTables byte_tables(int lowest, double factor, double addend) {
  constexpr int kEntries = 16;
  ByteTables tables;
  // From a multiple of 16 on, the bits of a number are its places in the tables.
  tables.base = lowest % kEntries == 0 ? 0 : lowest;
  for (int i = 0; i < kEntries; ++i) {
    const int part = lowest - tables.base + i * kEntries;
    const auto place = static_cast<size_t>(part / kEntries & (kEntries - 1));
    tables.upper[place] = static_cast<float>(factor * (part + tables.base) + addend);
    tables.lower[static_cast<size_t>(i)] = static_cast<float>(factor * i);
  }
  return tables;
}

}  // namespace lathe
