#include "src/runtime/body_runners.h"

#include "src/base/check.h"
#include "src/runtime/graph_runner.h"

namespace lathe {

BodyRunners::BodyRunners(std::shared_ptr<RunnerContext> context) : context_(std::move(context)) {}

BodyRunners::~BodyRunners() = default;

std::shared_ptr<GraphRunner> BodyRunners::runner_of(const Graph& body) {
  const std::weak_ptr<const Graph> owner = body.weak_from_this();
  LATHE_CHECK(!owner.expired(), "a body that nothing owns");
  const std::lock_guard lock(mutex_);
  const auto found = runners_.find(&body);
  // Another body may come to lie where one was.
  if (found != runners_.end() && !found->second.body.expired()) return found->second.runner;
  std::erase_if(runners_, [](const auto& entry) { return entry.second.body.expired(); });
  auto runner = std::make_shared<GraphRunner>(std::make_unique<Graph>(body), context_, 0, Growing::cut);
  return runners_.emplace(&body, Entry{owner, std::move(runner)}).first->second.runner;
}

BodyRunner run_by(std::shared_ptr<BodyRunners> bodies) {
  return [bodies = std::move(bodies)](const Graph& body, std::span<const Tensor> inputs) {
    std::vector<Tensor> outputs(body.outputs.size());
    bodies->runner_of(body)->run(inputs, outputs, nullptr);
    return outputs;
  };
}

}  // namespace lathe
