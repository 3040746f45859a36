#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "src/runtime/runner_context.h"

namespace lathe {

class GraphRunner;

// One GraphRunner for each body (If, Loop, Scan) of a graph that is kept alive by the owner. Thread-safe.
class BodyRunners {
 public:
  explicit BodyRunners(std::shared_ptr<RunnerContext> context);
  ~BodyRunners();
  std::vector<Tensor> run(const Graph& body, std::span<const Tensor> inputs);

 private:
  std::shared_ptr<RunnerContext> context_;
  std::mutex mutex_;
  std::unordered_map<const Graph*, std::unique_ptr<GraphRunner>> runners_;
};

}  // namespace lathe
