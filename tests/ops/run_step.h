#pragma once
#include "ops/step.h"

namespace lathe::testing {

// All shares of a step, the last one first: they may be taken in any order, by any thread.
inline void run_step(const Step& step, void* const* addresses) {
  const int shares = step.share_count();
  for (int share = shares; share-- > 0;) step.run({addresses, share, shares, share % step.threads, step.threads});
}

}  // namespace lathe::testing
