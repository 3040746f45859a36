#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "graph/pipeline.h"
#include "lathe/profile.h"
#include "src/runtime/body_runners.h"
#include "src/runtime/cut_graph.h"
#include "src/runtime/pass_replay.h"
#include "src/runtime/result_memory.h"
#include "src/runtime/runner_context.h"
#include "src/runtime/specialization.h"

namespace lathe {

// A graph at one set of input shapes. Where a value has no place in a planned buffer, because its shape depends on data
// (NonZero, a Loop) or because it holds strings, a sequence, an optional or a map, the graph is cut:
//   head   everything that does not depend on that value, specialized
//   cut    the node that makes it, run alone (src/runtime/cut_node.h), and those behind it that must run by references
//   rest   everything behind: a graph with open extents of its own, specialized when the shapes are known
// Each rest may be cut again. Behind many cuts the nodes run alone, one by one, so that depth and copies are bounded.
// Immutable once made; thread-safe.
class GraphPart {
 public:
  // `cuts`: that lie before it. `bodies`: that run those of the graph. `replay`: of the passes; null: all run. Throws
  // Error when the shapes do not fit the graph.
  GraphPart(std::unique_ptr<Graph> graph, std::span<const Tensor> inputs, const std::shared_ptr<RunnerContext>& context,
            size_t cuts, const std::shared_ptr<BodyRunners>& bodies, Constants constants = Constants::keep,
            PassReplay* replay = nullptr);
  ~GraphPart();

  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;

  const Specialization& head() const { return *head_; }
  const CutGraph* behind() const { return behind_.get(); }  // null: the head is everything
  const std::vector<PassReport>& passes() const { return passes_; }
  // What it keeps in memory, about, beside what all parts share.
  size_t kept_bytes() const;

 private:
  void run_all_passes(Graph& graph, const std::vector<Pass>& passes, const RunnerContext& context,
                      PassScript* script = nullptr);
  void specialize(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context,
                  const std::shared_ptr<BodyRunners>& bodies, Constants constants);
  void split(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context, size_t cuts,
             const std::shared_ptr<BodyRunners>& bodies);

  std::unique_ptr<Specialization> head_;
  std::optional<ResultMemory> result_memory_;  // of what the head makes
  std::vector<PassReport> passes_;
  std::unique_ptr<CutGraph> behind_;  // null: the head is everything
  size_t constant_bytes_ = 0;         // that passes have made for these shapes
};

}  // namespace lathe
