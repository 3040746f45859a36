#include "tests/ops/op_tester.h"

#include <cstring>

#include "graph/infer.h"
#include "tests/ops/step_memory.h"

namespace lathe::testing {

OpTester::OpTester(std::string op, int version, std::string domain)
    : op_(std::move(op)), domain_(std::move(domain)), version_(version) {}

OpTester::~OpTester() = default;

OpTester& OpTester::epilogue(Expression expression, const std::vector<Tensor>& operands, bool are_constant) {
  epilogue_ = Epilogue{std::move(expression), static_cast<int>(operands.size())};
  for (const Tensor& operand : operands) add(operand, are_constant);
  return *this;
}

std::vector<Tensor> OpTester::reference() {
  build();
  std::vector<Tensor> results = run_reference(graph_.node(node_), tensors_, {});
  for (size_t i = 0; i < results.size(); ++i) check_inferred(i, results[i]);
  return results;
}

std::optional<std::vector<Tensor>> OpTester::lowered(Isa isa, int threads) {
  build();
  PackedWeights packed;
  FallbackPlans plans;
  const LoweredGraph lowered = lower_graph(graph_, {OpRegistry::builtin(), {isa, threads}, packed, plans, nullptr});
  kernels_.clear();
  for (const Step& step : lowered.steps) {
    if (step.kernel == "reference") return std::nullopt;
    kernels_ += step.kernel + "\n";
  }
  const StepMemory memory(lowered);
  const Node& node = graph_.node(node_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].defined() || is_constant_[i]) continue;
    std::memcpy(memory.at(node.inputs[i]), tensors_[i].raw(), tensors_[i].bytes());
  }
  memory.run();
  std::vector<Tensor> results(node.outputs.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.outputs[i] == ValueId::none) continue;
    const TensorType& type = graph_.value(node.outputs[i]).type;
    results[i] = Tensor::view(type.dtype, type.extents(), memory.at(node.outputs[i])).clone();
  }
  return results;
}

OpTester& OpTester::add(Tensor tensor, bool is_constant) {
  tensors_.push_back(std::move(tensor));
  is_constant_.push_back(is_constant);
  return *this;
}

void OpTester::build() {
  graph_ = Graph();
  Node made;
  made.op = &OpRegistry::builtin().require(domain_, op_, version_);
  made.version = version_;
  made.name = "tested";
  made.attributes = attributes_;
  made.epilogue = epilogue_;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string name = "input" + std::to_string(i);
    if (!tensors_[i].defined()) {
      made.inputs.push_back(ValueId::none);
    } else if (is_constant_[i]) {
      made.inputs.push_back(graph_.add_constant(name, tensors_[i]));
    } else {
      made.inputs.push_back(graph_.add_value(name, TensorType::of(tensors_[i].dtype(), tensors_[i].dims())));
      graph_.inputs.push_back(made.inputs.back());
    }
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    made.outputs.push_back(outputs_[i] ? graph_.add_value("output" + std::to_string(i), {}) : ValueId::none);
  }
  node_ = graph_.add_node(made);
  inferred_ = infer_node(graph_, graph_.node(node_));
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i]) continue;
    graph_.value(made.outputs[i]).type = inferred_[i];
    graph_.outputs.push_back(made.outputs[i]);
  }
}

void OpTester::check_inferred(size_t i, const Tensor& result) const {
  if (!outputs_[i]) return;
  const TensorType& type = inferred_[i];
  EXPECT_EQ(type.dtype, result.dtype()) << "output " << i;
  if (!type.has_rank) return;
  ASSERT_EQ(type.rank(), result.rank()) << "output " << i;
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (!type.dims[d].known()) continue;
    EXPECT_EQ(type.dims[d].extent, result.dims()[d]) << "output " << i << " axis " << d;
  }
}

}  // namespace lathe::testing
