#pragma once
// Expressions that go through one byte: what follows it is a table of 256 results.
#include <optional>
#include <vector>

#include "src/base/expression.h"

namespace lathe {

struct ByteTail {
  Expression head;             // of the same inputs; its result is the byte
  std::vector<uint8_t> table;  // by the byte's bits; of the type that the whole expression has
};
// Of an expression whose result is bytes: the first saturated rounding that all that follows depends on alone, with
// enough behind it to be worth a look-up. nullopt: there is none.
std::optional<ByteTail> byte_tail(const Expression& expression);

}  // namespace lathe
