#include "ops/rows/byte_softmax.h"

#include "ops/int8/int8_lower.h"

namespace lathe {

std::optional<ByteSoftmax> byte_softmax(Isa isa, const Expression& epilogue) {
  const auto bytes = as_requantization(epilogue);
  if (!bytes) return std::nullopt;
  ByteSoftmax softmax{{.isa = isa, .store = bytes->store}, bytes->factor};
  softmax.plan.store.is_bounded = bytes->factor < 1e9F;  // what it multiplies is at most 1
  return softmax;
}

}  // namespace lathe
