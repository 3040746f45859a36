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

namespace lathe::testing {

class OpTester {
 public:
  explicit OpTester(std::string op, int version = 28, std::string domain = "");
  ~OpTester();

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
  OpTester& epilogue(Expression expression, const std::vector<Tensor>& operands, bool are_constant = false);

  // Results of the reference, which shape inference must have foretold. Throws what either throws.
  std::vector<Tensor> reference();
  Tensor result() { return reference()[0]; }

  // Results of the generated code; those not wanted are undefined. nullopt: the lowering declined.
  std::optional<std::vector<Tensor>> lowered(Isa isa, int threads);
  // Of the steps that ran last, a line each.
  const std::string& kernels() const { return kernels_; }

 private:
  OpTester& add(Tensor tensor, bool is_constant);
  void build();
  void check_inferred(size_t i, const Tensor& result) const;

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
