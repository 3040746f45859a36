#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "ops/lower.h"
#include "src/base/thread_team.h"
#include "src/runtime/arena_pool.h"
#include "src/runtime/result_memory.h"
#include "src/runtime/shared_constants.h"
#include "tuner/cached_plans.h"

namespace lathe {

// What all graphs of one loaded model share: the main graph, bodies, and the parts behind a data-dependent shape.
struct RunnerContext {
  std::shared_ptr<const OpRegistry> registry;  // keeps `ops` and its libraries
  const OpRegistry& ops;
  Limits limits;
  Target target;
  std::shared_ptr<ThreadTeam> team;
  std::shared_ptr<PackedWeights> packed;
  std::shared_ptr<CachedPlans> plans;
  int optimization_level = 99;
  std::vector<std::string> disabled_passes;
  std::shared_ptr<std::set<std::string_view>> fired =
      nullptr;  // null or takes in which passes changed any of the graphs

  std::shared_ptr<ArenaPool> arenas = std::make_shared<ArenaPool>();
  std::shared_ptr<SharedConstants> constants = std::make_shared<SharedConstants>();
  std::shared_ptr<ResultMemory> results = std::make_shared<ResultMemory>(0);

  // Of this context's lifetime.
  PassContext pass_context() const;
};

}  // namespace lathe
