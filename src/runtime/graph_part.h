#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "graph/pipeline.h"
#include "lathe/profile.h"
#include "src/runtime/cut_node.h"
#include "src/runtime/pass_replay.h"
#include "src/runtime/result_memory.h"
#include "src/runtime/runner_context.h"
#include "src/runtime/specialization.h"

namespace lathe {

class GraphRunner;

// A graph at one set of input shapes. Where a value has no place in a planned buffer, because its shape depends on data
// (NonZero, a Loop) or because it holds strings, a sequence, an optional or a map, the graph is cut:
//   head   everything that does not depend on that value, specialized
//   cut    the node that makes it, run alone (src/runtime/cut_node.h), and those behind it that must run by references
//   rest   everything behind: a graph with open extents of its own, specialized when the shapes are known
// Each rest may be cut again. Behind many cuts the nodes run alone, one by one, so that depth and copies are bounded.
// Immutable once made; thread-safe.
class GraphPart {
 public:
  // `cuts`: that lie before it. `replay`: of the passes; null: all run. Throws Error when the shapes do not fit the
  // graph.
  GraphPart(std::unique_ptr<Graph> graph, std::span<const Tensor> inputs, const std::shared_ptr<RunnerContext>& context,
            size_t cuts, Constants constants = Constants::keep, PassReplay* replay = nullptr);
  ~GraphPart();

  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;

  const Specialization& head() const { return *head_; }
  const std::vector<std::unique_ptr<CutNode>>& cut() const { return cut_; }  // empty: the head is everything
  GraphRunner* rest() const { return rest_.get(); }                          // null: nothing is behind the cut
  const std::vector<PassReport>& passes() const { return passes_; }

 private:
  // Where a value of the cut graph comes from when the part runs.
  struct Source {
    enum class From { absent, constant, input, head, cut, rest };
    From from = From::absent;
    size_t index = 0;
    Tensor constant;
  };
  struct Results {
    std::span<const Tensor> inputs;
    std::vector<Tensor> head, cut, rest;  // cut: the outputs of all its nodes in order
  };
  static Tensor take(const Source& source, const Results& results);

  void run_all_passes(Graph& graph, const std::vector<Pass>& passes, const RunnerContext& context,
                      PassScript* script = nullptr);
  void specialize(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context, Constants constants);
  void split(std::unique_ptr<Graph> graph, const std::shared_ptr<RunnerContext>& context, size_t cuts);
  void run_split(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;
  // `outputs`: of the part; results that are outputs are put there at once where that is possible.
  void run_cut(Results& results, std::span<const Tensor> outputs, Profile* profile) const;

  std::unique_ptr<Specialization> head_;
  std::optional<ResultMemory> result_memory_;  // of what the head makes
  std::vector<PassReport> passes_;
  BodyRunner run_body_;
  bool is_split_ = false;
  std::vector<std::unique_ptr<CutNode>> cut_;
  std::unique_ptr<GraphRunner> rest_;
  std::vector<std::vector<Source>> cut_inputs_;  // of each of its nodes
  std::vector<Source> rest_inputs_, outputs_;
};

}  // namespace lathe
