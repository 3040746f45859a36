#pragma once
#include <memory>
#include <string>

#include "graph/model.h"
#include "lathe/session.h"
#include "src/runtime/graph_runner.h"

namespace lathe {

// What a Session holds. Public to Lathe's own tools (inspect, tune), not installed.
class Session::State {
 public:
  // `ops`: the operators that the model was imported with.
  State(Model model, std::shared_ptr<const OpRegistry> ops, const SessionOptions& options);

  // Values that are no tensors are boxed (src/base/box.h), here and in run().
  // Throws Error(invalid_argument) naming the input whose count, type or shape does not fit.
  void check_inputs(std::span<const Tensor> inputs) const;
  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;

  Model model;  // its graph has moved into `runner`
  std::vector<ValueInfo> inputs, outputs;
  std::vector<TensorType> input_types, output_types;  // as the model declares them
  std::shared_ptr<RunnerContext> context;
  std::unique_ptr<GraphRunner> runner;

 private:
  void find_shared_extents();

  // An open extent whose name an earlier input (or axis) has too: both must be equal.
  struct SharedExtent {
    size_t input, axis;
    size_t first_input, first_axis;
  };
  std::vector<SharedExtent> shared_extents_;
};

}  // namespace lathe
