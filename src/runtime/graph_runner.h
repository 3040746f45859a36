#pragma once
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "graph/pipeline.h"
#include "lathe/profile.h"
#include "src/runtime/branch_cut.h"
#include "src/runtime/graph_part.h"
#include "src/runtime/growth.h"
#include "src/runtime/runner_context.h"

namespace lathe {

// A graph with open extents, and its specializations by input shape. Thread-safe.
class GraphRunner {
 public:
  // Infers types and runs the load passes on `graph`. `cuts`: that lie before it. `bodies`: that have run other parts
  // of the same graph; null: own ones.
  GraphRunner(std::unique_ptr<Graph> graph, std::shared_ptr<RunnerContext> context, size_t cuts = 0,
              Growing growing = Growing::ignored, std::shared_ptr<BodyRunners> bodies = nullptr);

  // Any shapes and types that fit the graph. `outputs` has one tensor per graph output: defined ones are written into
  // (Error(invalid_argument) when type or shape differ), others are allocated. `profile` may be null.
  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile);

  // The caller's promise: types and shapes of the inputs are always the same. graph() then gives its constants away to
  // the one specialization that there will be, which lets go of those that it packs.
  void expect_one_shape() { has_one_shape_ = true; }
  // For tools that look at, or lower, the graph of a specialization. Requires: none was made yet.
  void keep_constants() { has_one_shape_ = false; }

  // The specialization for these inputs, made if needed.
  std::shared_ptr<const GraphPart> part_for(std::span<const Tensor> inputs);
  // What run() would use instead of a specialization; null: nothing.
  std::shared_ptr<const StagedGraph> staged_for(std::span<const Tensor> inputs);
  // What run() uses for all shapes; null: the above.
  const BranchCut* branch_cut();

  const Graph& graph() const { return *graph_; }
  BodyRunners& bodies() const { return *bodies_; }
  const std::vector<PassReport>& load_report() const { return load_report_; }

 private:
  std::unique_ptr<Graph> graph_;
  std::shared_ptr<RunnerContext> context_;
  const size_t cuts_;
  std::vector<PassReport> load_report_;

  struct Entry {
    InputShapes inputs;
    size_t hash;
    std::shared_ptr<const GraphPart> part;
  };
  using Entries = std::list<Entry>;
  // End: none for these. The mutex is held.
  Entries::iterator find_entry(std::span<const Tensor> inputs, size_t hash);
  std::shared_ptr<const GraphPart> make_part(std::span<const Tensor> inputs);
  bool keeps_too_much() const;
  void forget_oldest();

  const Growing growing_;
  const std::shared_ptr<BodyRunners> bodies_;
  std::once_flag looked_for_branch_;
  std::unique_ptr<const BranchCut> branch_cut_;
  Growth growth_;
  PassReplay replay_;
  bool has_one_shape_ = false;
  bool gave_constants_ = false;
  std::exception_ptr failure_;  // of making the one specialization: without constants there is no second attempt
  std::mutex mutex_;
  Entries recent_;  // most recently used first
  size_t kept_bytes_ = 0;
  std::unordered_multimap<size_t, Entries::iterator> by_hash_;
};

}  // namespace lathe
