#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "lathe/session.h"

namespace lathe::tools {

// Where the plans of the session's tasks came from so far: "31 of 53 tasks took their plan from the tuning cache
// /x/y.db".
std::string describe_plans(const Session& session, const SessionOptions& options);
// The same for programs: tasks, from_cache, refused.
nlohmann::json plan_counts(const Session& session);

}  // namespace lathe::tools
