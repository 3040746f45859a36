#pragma once
// Builds a graph of one node and runs it by its reference and, where it has one, by its lowering: any element types,
// any number of outputs, plain layouts. one_node.h is its sister for channel-blocked operators.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "lathe/error.h"
#include "ops/numbers.h"
#include "tests/ops/one_node.h"
#include "tests/ops/step_memory.h"

namespace lathe::testing {

class OpTester {
 public:
  explicit OpTester(std::string op, int version = 28, std::string domain = "")
      : op_(std::move(op)), domain_(std::move(domain)), version_(version) {}

  OpTester& input(Tensor tensor) { return add(std::move(tensor), false); }
  OpTester& constant(Tensor tensor) { return add(std::move(tensor), true); }
  OpTester& absent() { return add({}, false); }
  template <class T>
  OpTester& with(const std::string& name, T value) {
    if constexpr (std::is_same_v<T, int>) {
      attributes_.set(name, int64_t{value});
    } else if constexpr (std::is_same_v<T, const char*>) {
      attributes_.set(name, std::string(value));
    } else {
      attributes_.set(name, std::move(value));
    }
    return *this;
  }
  OpTester& outputs(int count) {
    outputs_.assign(static_cast<size_t>(count), true);
    return *this;
  }
  OpTester& unwanted(int output) {
    outputs_[static_cast<size_t>(output)] = false;
    return *this;
  }

  // Pointwise work behind the node, over its result and these operands.
  OpTester& epilogue(Expression expression, const std::vector<Tensor>& operands, bool are_constant = false) {
    epilogue_ = Epilogue{std::move(expression), static_cast<int>(operands.size())};
    for (const Tensor& operand : operands) add(operand, are_constant);
    return *this;
  }

  // Results of the reference, which shape inference must have foretold. Throws what either throws.
  std::vector<Tensor> reference() {
    build();
    std::vector<Tensor> results = run_reference(graph_.node(node_), tensors_, {});
    for (size_t i = 0; i < results.size(); ++i) check_inferred(i, results[i]);
    return results;
  }
  Tensor result() { return reference()[0]; }

  // Results of the generated code; those not wanted are undefined. nullopt: the lowering declined.
  std::optional<std::vector<Tensor>> lowered(Isa isa, int threads) {
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
  // Of the steps that ran last, a line each.
  const std::string& kernels() const { return kernels_; }

 private:
  OpTester& add(Tensor tensor, bool is_constant) {
    tensors_.push_back(std::move(tensor));
    is_constant_.push_back(is_constant);
    return *this;
  }

  void build() {
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

  void check_inferred(size_t i, const Tensor& result) const {
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

  std::string op_, domain_;
  int version_;
  Attributes attributes_;
  std::string kernels_;
  std::optional<Epilogue> epilogue_;
  std::vector<Tensor> tensors_;
  std::vector<bool> is_constant_, outputs_{true};
  Graph graph_;
  NodeId node_ = NodeId::none;
  std::vector<TensorType> inferred_;
};

inline OpTester microsoft(const std::string& op) { return OpTester(op, 1, "com.microsoft"); }

template <class T>
Tensor tensor(Dims dims, std::initializer_list<T> elements) {
  return Tensor::from<T>(std::move(dims), elements);
}
inline Tensor longs(std::initializer_list<int64_t> elements) {
  return Tensor::from<int64_t>({static_cast<int64_t>(elements.size())}, elements);
}
inline Tensor floats(std::initializer_list<float> elements) {
  return Tensor::from<float>({static_cast<int64_t>(elements.size())}, elements);
}
template <class T>
std::vector<T> list(const Tensor& tensor) {
  return {tensor.elements<T>().begin(), tensor.elements<T>().end()};
}

}  // namespace lathe::testing
