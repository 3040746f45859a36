#include "src/runtime/default_plans.h"

#include "src/base/cpu.h"

namespace lathe {

std::shared_ptr<CachedPlans> default_plans(const SessionOptions& options, CachedPlans::Recording recording) {
  std::shared_ptr<const TuningCache> cache;
  if (options.use_cache)
    if (const std::string path = tuning_cache_path(options.cache_path); !path.empty())
      cache = std::make_shared<const TuningCache>(path);
  return std::make_shared<CachedPlans>(std::move(cache), cpu_key(cpu_facts(), usable_isa()), recording);
}

}  // namespace lathe
