#pragma once
#include <memory>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "lathe/profile.h"
#include "src/runtime/body_runners.h"
#include "src/runtime/cut_node.h"
#include "src/runtime/growth.h"
#include "src/runtime/runner_context.h"

namespace lathe {

class GraphRunner;

// The nodes of a graph that is cut, each list in order.
struct GraphPieces {
  std::vector<NodeId> head, cut, rest;
};
// False: there are so many cuts before it that no further one may have a rest, which holds copies of all nodes behind
// it and runs within the run of what lies before.
bool may_have_rest(const Graph& graph, size_t cuts);

// What lies at a cut and behind it: nodes that run alone (src/runtime/cut_node.h), then a graph of the others. What
// lies before it, the head, is a graph for whoever cuts. Immutable once made; thread-safe.
class CutGraph {
 public:
  struct Runners {
    std::shared_ptr<RunnerContext> context;
    std::shared_ptr<BodyRunners> bodies;
    size_t cuts = 0;  // before this one
    Growing growing_rest = Growing::ignored;
  };
  // Requires: nodes of the head see only one another, those of the cut nothing of the rest.
  CutGraph(const Graph& graph, GraphPieces pieces, const Runners& runners);
  ~CutGraph();

  // With the graph's inputs; its outputs are what others read. Once.
  std::unique_ptr<Graph> take_head() { return std::move(head_); }

  // `head`: the results of that graph. `outputs`: of the graph that was cut, as GraphRunner::run().
  void run(std::span<const Tensor> inputs, std::vector<Tensor> head, std::span<Tensor> outputs, Profile* profile) const;

  const std::vector<std::unique_ptr<CutNode>>& cut() const { return cut_; }
  GraphRunner* rest() const { return rest_.get(); }  // null: nothing is behind the cut

 private:
  // Where a value of the cut graph comes from when it runs.
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
  // `outputs`: of the graph; results that are outputs are put there at once where that is possible.
  void run_cut(Results& results, std::span<const Tensor> outputs, Profile* profile) const;

  std::unique_ptr<Graph> head_;
  std::vector<std::unique_ptr<CutNode>> cut_;
  std::unique_ptr<GraphRunner> rest_;
  std::vector<std::vector<Source>> cut_inputs_;  // of each of its nodes
  std::vector<Source> rest_inputs_, outputs_;
};

}  // namespace lathe
