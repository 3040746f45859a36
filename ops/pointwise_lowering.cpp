#include "ops/pointwise_lowering.h"

namespace lathe {

bool lower_pointwise(LowerContext&) { return false; }

}  // namespace lathe
