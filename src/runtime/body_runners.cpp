#include "src/runtime/body_runners.h"

#include "src/runtime/graph_runner.h"

namespace lathe {

BodyRunners::BodyRunners(std::shared_ptr<RunnerContext> context) : context_(std::move(context)) {}

BodyRunners::~BodyRunners() = default;

std::vector<Tensor> BodyRunners::run(const Graph& body, std::span<const Tensor> inputs) {
  GraphRunner* runner = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto& slot = runners_[&body];
    if (!slot) slot = std::make_unique<GraphRunner>(std::make_unique<Graph>(body), context_);
    runner = slot.get();
  }
  std::vector<Tensor> outputs(body.outputs.size());
  runner->run(inputs, outputs, nullptr);
  return outputs;
}

}  // namespace lathe
