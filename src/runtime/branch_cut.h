#pragma once
#include <memory>
#include <span>

#include "graph/graph.h"
#include "src/runtime/cut_graph.h"

namespace lathe {

// A graph that an If falls into, which goes one way or the other as data say: one file often has a decoder's first run
// and its later ones in two branches. The graph is cut there before any shape is known, so that other shapes do not ask
// for the whole again: what lies before the If, each branch, and what lies behind it adapt to shapes on their own, and
// may be cut into stages (growth.h). Immutable once made; thread-safe.
class BranchCut {
 public:
  // nullptr: no branch that is worth it. `cuts`: that lie before the graph.
  static std::unique_ptr<const BranchCut> make(const Graph& graph, const std::shared_ptr<RunnerContext>& context,
                                               const std::shared_ptr<BodyRunners>& bodies, size_t cuts);
  ~BranchCut();

  // As GraphRunner::run().
  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;

 private:
  BranchCut() = default;

  std::unique_ptr<GraphRunner> head_;  // null: nothing is before the branch
  std::unique_ptr<CutGraph> behind_;
};

}  // namespace lathe
