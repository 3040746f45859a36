#pragma once
#include <memory>

#include "lathe/session.h"
#include "tuner/task.h"

namespace lathe {

// The tuning cache that the options name, over the analytic models.
std::shared_ptr<PlanSource> default_plans(const SessionOptions& options, int threads);

}  // namespace lathe
