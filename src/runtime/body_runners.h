#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "graph/infer.h"
#include "src/runtime/runner_context.h"

namespace lathe {

class GraphRunner;

// One GraphRunner for each body (If, Loop, Scan) that it is given, as long as the body lives. Bodies are the same ones
// in all specializations of a graph, so that what is made for them is, too. Thread-safe.
class BodyRunners {
 public:
  explicit BodyRunners(std::shared_ptr<RunnerContext> context);
  ~BodyRunners();
  // Requires: a shared_ptr owns the body.
  std::shared_ptr<GraphRunner> runner_of(const Graph& body);

 private:
  struct Entry {
    std::weak_ptr<const Graph> body;
    std::shared_ptr<GraphRunner> runner;
  };
  std::shared_ptr<RunnerContext> context_;
  std::mutex mutex_;
  std::unordered_map<const Graph*, Entry> runners_;
};

BodyRunner run_by(std::shared_ptr<BodyRunners> bodies);

}  // namespace lathe
