#pragma once
#include <memory>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "src/runtime/runner_context.h"

namespace lathe {

class StagedGraph;

// What is done where extents of a graph's inputs keep changing: nothing; the graph is cut, into stages (below) or at a
// branch (branch_cut.h); passes that do nothing are left out, as each stage does.
enum class Growing { ignored, cut, replayed };

// Types and shapes of a graph's inputs.
struct InputShapes {
  std::vector<DType> dtypes;  // of an optional: of what it holds
  std::vector<Dims> shapes;

  static InputShapes of(std::span<const Tensor> inputs);
  bool are_of(std::span<const Tensor> inputs) const;
  // Equal for tensors of equal types and shapes.
  static size_t hash(std::span<const Tensor> inputs);
};

// Notices which extents of a graph's inputs keep changing, and cuts the graph where they matter. Not thread-safe.
class Growth {
 public:
  // For inputs whose shapes have no specialization of their own. `last`: those of the last run that had one, or null.
  // A staged graph when the same extents, and no others, changed from run to run; null: specialize the whole.
  std::shared_ptr<const StagedGraph> staged_for(const Graph& graph, const std::shared_ptr<RunnerContext>& context,
                                                const InputShapes* last, std::span<const Tensor> inputs);
  // An assumption of this one does not hold; nor is it made again.
  void drop(const StagedGraph& staged);

 private:
  using Axes = std::vector<std::pair<size_t, size_t>>;  // input, axis
  struct Staged {
    Axes open;
    std::shared_ptr<const StagedGraph> graph;
  };
  bool repeats(std::span<const Tensor> inputs);
  std::shared_ptr<const StagedGraph> make(const Graph& graph, const std::shared_ptr<RunnerContext>& context,
                                          const InputShapes& last, std::span<const Tensor> inputs);
  void refuse(Axes axes);
  static Axes changed(const InputShapes& last, std::span<const Tensor> inputs);

  std::vector<Staged> staged_;  // most recently used first
  std::vector<Axes> refused_;   // that do not pay
  Axes last_change_;
  InputShapes last_staged_;  // what the last run by stages was given
  int repetitions_ = 0;      // of these
};

}  // namespace lathe
