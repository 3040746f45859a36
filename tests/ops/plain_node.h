#pragma once
// Nodes of plain layouts, shapes at random, and what is fused behind a node.
#include <random>
#include <string>
#include <vector>

#include "tests/ops/one_node.h"

namespace lathe::testing {

// Of `rank` axes, each of 1 to `most`.
inline Dims random_dims(std::mt19937& random, size_t rank, int64_t most) {
  Dims dims;
  for (size_t i = 0; i < rank; ++i) dims.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)));
  return dims;
}

// max(x, 0) (+ operand)
inline Epilogue clipped_sum(bool has_operand) {
  Epilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32};
  const int x = e.add({ExprOp::input, 0});
  const int zero = e.add({ExprOp::constant, -1, -1, -1, 0.0f});
  int result = e.add({ExprOp::max, x, zero});
  if (has_operand) {
    e.inputs.push_back(DType::f32);
    const int other = e.add({ExprOp::input, 1});
    result = e.add({ExprOp::add, result, other});
    epilogue.inputs = 1;
  }
  return epilogue;
}

// Of plain layouts; all inputs but the first are constants.
inline OneNode node_of(std::vector<Tensor> inputs, const std::string& op, int version, Attributes attributes) {
  OneNode tested;
  tested.inputs = std::move(inputs);
  for (size_t i = 0; i < tested.inputs.size(); ++i) tested.is_constant.push_back(i > 0);
  tested.make(op, version, std::move(attributes), std::vector<int>(tested.inputs.size(), 0), 0);
  return tested;
}

}  // namespace lathe::testing
