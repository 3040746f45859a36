#pragma once
// A step that looks up bytes.
#include <string>

#include "ops/lower.h"
#include "ops/pointwise/byte_table.h"

namespace lathe {

// to[i] = table[from[i]] over the whole storage of a value of this type; the two may be the same. Lanes past the
// channels of a layout in blocks become zero.
void add_look_up(const LowerContext& context, const ByteTable& table, const TensorType& type, BufferId from,
                 BufferId to, const std::string& kernel);

}  // namespace lathe
