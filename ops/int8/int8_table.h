#pragma once
// Expressions that go through one byte: what follows it is a table of 256 results.
#include <optional>

#include "ops/pointwise/byte_table.h"
#include "src/base/expression.h"

namespace lathe {

struct ByteTail {
  Expression head;  // of the same inputs; its result is the byte
  ByteTable table;  // of the type that the whole expression has
};
// Arithmetic behind the byte, for each element, from which on a look-up takes less time.
constexpr double kFlopWorthLookingUp = 3;       // among registers: six instructions for 64 bytes
constexpr double kFlopWorthAnotherLookUp = 12;  // in another pass over bytes in memory, by AVX2: 50 for 32
// Of an expression whose result is bytes: the first saturated rounding that all that follows depends on alone, with so
// much behind it. nullopt: there is none.
std::optional<ByteTail> byte_tail(const Expression& expression, double least_flop = kFlopWorthLookingUp);
// Takes a tail off an expression for kernels without tables in their registers. nullopt: there is none worth a pass.
std::optional<ByteTable> take_tail_for_look_up(Expression& expression, Isa isa);

}  // namespace lathe
