#pragma once
// Models by the code for an instruction set of the test's choice, whatever the machine has besides.
#include "graph/infer.h"
#include "graph/model.h"
#include "src/runtime/default_plans.h"
#include "src/runtime/graph_runner.h"
#include "tests/model_builder.h"

namespace lathe::testing {

inline Model imported(const ModelBuilder& builder) {
  return import_model_bytes(std::make_shared<const std::string>(builder.bytes()), "", OpRegistry::builtin());
}

inline std::shared_ptr<RunnerContext> context_for(const Target& target, int level = 99) {
  SessionOptions options;
  options.use_cache = false;
  return std::make_shared<RunnerContext>(RunnerContext{.ops = OpRegistry::builtin(),
                                                       .limits = {},
                                                       .target = target,
                                                       .team = std::make_shared<ThreadTeam>(target.threads),
                                                       .packed = std::make_shared<PackedWeights>(),
                                                       .plans = default_plans(options),
                                                       .optimization_level = level,
                                                       .disabled_passes = {}});
}

}  // namespace lathe::testing
