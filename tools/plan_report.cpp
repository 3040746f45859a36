#include "tools/plan_report.h"

#include <fmt/format.h>

#include "src/runtime/session_state.h"

namespace lathe::tools {
namespace {

CachedPlans::Counts counts_of(const Session& session) { return session.state()->context->plans->counts(); }

}  // namespace

std::string describe_plans(const Session& session, const SessionOptions& options) {
  const CachedPlans::Counts counts = counts_of(session);
  const size_t tasks = counts.hits + counts.misses;
  if (!options.use_cache)
    return fmt::format("{} tasks, all with untuned plans: the tuning cache is switched off", tasks);
  std::string text = fmt::format("{} of {} tasks took their plan from the tuning cache {}", counts.hits, tasks,
                                 tuning_cache_path(options.cache_path));
  if (counts.invalid > 0) text += fmt::format(" ({} of its plans are not valid here)", counts.invalid);
  return text;
}

nlohmann::json plan_counts(const Session& session) {
  const CachedPlans::Counts counts = counts_of(session);
  return {{"tasks", counts.hits + counts.misses}, {"from_cache", counts.hits}, {"refused", counts.invalid}};
}

}  // namespace lathe::tools
