#pragma once
// Graphs of real operators for the tests of passes: built node by node, rewritten, and compared through references.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "graph/passes/passes.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "ops/op_def.h"

namespace lathe::testing {

struct PassNet {
  Graph graph;
  std::mt19937 random{5};

  Tensor noise(const Dims& dims, float low = -1, float high = 1);
  std::string fresh() const { return "v" + std::to_string(graph.value_count()); }
  ValueId input(const Dims& dims) { return input(TensorType::of(DType::f32, dims)); }
  ValueId input(TensorType type);
  ValueId weights(const Dims& dims, float low = -1, float high = 1);
  ValueId scalar(float value);
  ValueId integers(const std::vector<int64_t>& values);
  ValueId constant(Tensor tensor);

  using NamedAttributes = std::vector<std::pair<const char*, Attribute>>;
  std::vector<ValueId> op(const char* type, std::vector<ValueId> inputs, int outputs, NamedAttributes attributes,
                          int version = 17);
  ValueId op(const char* type, std::vector<ValueId> inputs, NamedAttributes attributes = {}, int version = 17);
  ValueId transpose(ValueId x, std::vector<int64_t> perm);
  ValueId reshape(ValueId x, const std::vector<int64_t>& dims);
  // Random weights of these extents, and a bias.
  ValueId conv(ValueId x, const Dims& extents, NamedAttributes attributes = {}, bool has_bias = true);
  void output(ValueId id) { graph.outputs.push_back(id); }
};

// "MatMul+Add Relu": what each node was made of, in order.
std::string ops_of(const Graph& graph);

using PassFn = bool(Graph&, const PassContext&);

// Runs the passes on a copy, each as often as it fires, and expects the same results from before and after. Returns the
// graph after. `tolerance`: of the largest result.
Graph rewritten(PassNet& net, const std::vector<PassFn*>& passes, double tolerance = 2e-5);

}  // namespace lathe::testing
