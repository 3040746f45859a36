#pragma once
// Expressions whose sums of a few multiples are chains of multiply-adds.
#include <cmath>
#include <vector>

#include "ops/int8/int8_lower.h"

namespace lathe {

inline bool is_constant(const Expression& e, int node) {
  return node >= 0 && e.nodes[static_cast<size_t>(node)].op == ExprOp::constant;
}
inline float constant_at(const Expression& e, int node) { return e.nodes[static_cast<size_t>(node)].value; }

// Division by it may become a multiplication.
inline bool has_reciprocal(float value) { return std::isnormal(value) && std::isnormal(1 / value); }

inline bool is_integral(float value) { return std::nearbyint(value) == value && std::abs(value) < 65536; }

// Writes an expression anew. `coarse`: functions need no more than 16 bits. `changes`: by slot, of inputs that may take
// in constants, else null.
Expression write_chains(const Expression& expression, bool coarse, const std::vector<InputChange*>& changes);

}  // namespace lathe
