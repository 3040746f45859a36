#pragma once
#include <memory>
#include <span>
#include <vector>

#include "src/runtime/graph_runner.h"
#include "src/runtime/open_stages.h"

namespace lathe {

// A graph some of whose inputs' extents change from run to run, cut into stages (open_stages.h) that run in turn. Fixed
// stages are specialized once; open ones for each new shape, equal ones of several layers together. Immutable once
// made, but for the specializations; thread-safe.
class StagedGraph {
 public:
  // nullptr: does not pay. Requires and throws: as stages_of().
  static std::shared_ptr<const StagedGraph> make(const Graph& graph, std::shared_ptr<RunnerContext> context,
                                                 std::span<const DType> dtypes, std::span<const Dims> first,
                                                 std::span<const Dims> second);

  // The inputs differ from those that it was made for in open extents only.
  bool fits(std::span<const Tensor> inputs) const;
  // As GraphRunner::run(). False: a shape that was taken for fixed is another one for these inputs; `outputs` are as
  // they were, apart from the contents of buffers.
  bool run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;

  struct Counts {
    size_t stages = 0, open_stages = 0, open_runners = 0;
  };
  Counts counts() const;

 private:
  struct RunnableStage {
    std::shared_ptr<GraphRunner> runner;
    bool is_open = false;
    std::vector<size_t> inputs, outputs;   // slots
    std::vector<TensorType> output_types;  // what is assumed of them
    std::vector<size_t> dead;              // slots that nothing behind it reads
  };
  struct Result {
    size_t slot = kConstant;
    Tensor constant;
  };
  static constexpr size_t kConstant = ~size_t{0};

  StagedGraph() = default;
  void add_stage(const Stage& stage, std::shared_ptr<GraphRunner> runner, const std::vector<TensorType>& types,
                 std::vector<size_t>& slots);
  void find_results(const Graph& graph, const std::vector<size_t>& slots);
  void find_dead();
  bool run_stage(const RunnableStage& stage, std::vector<Tensor>& values, std::span<const Tensor> outputs,
                 Profile* profile) const;

  std::vector<TensorType> input_types_;
  std::vector<RunnableStage> stages_;
  std::vector<Result> results_;
  size_t slots_ = 0;  // the inputs, then what stages make
};

}  // namespace lathe
