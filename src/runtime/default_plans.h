#pragma once
#include <memory>

#include "lathe/session.h"
#include "tuner/cached_plans.h"

namespace lathe {

// The tuning cache that the options name, over the analytic models. `recording`: remember the tasks asked for.
std::shared_ptr<CachedPlans> default_plans(const SessionOptions& options,
                                           CachedPlans::Recording recording = CachedPlans::Recording::off);

}  // namespace lathe
