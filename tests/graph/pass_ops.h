#pragma once
// A handful of operators with plain definitions, and a builder, for the tests of inference and passes.
#include <initializer_list>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/infer.h"
#include "graph/op_schema.h"
#include "graph/passes/passes.h"

namespace lathe::testing {

// Conv, Gemm-less; MatMul, BatchNormalization, pointwise operators, ReduceMean, LayerNormalization, Shape, Gather,
// Concat, Reshape, Transpose, Squeeze, Unsqueeze, Identity, Cast, Dropout, GlobalAveragePool, If, RandomUniform, and
// lathe's Pointwise and Reorder.
const OpLookup& pass_ops();

class Net {
 public:
  ValueId input(const std::string& name, TensorType type);
  ValueId input(const std::string& name, const Dims& dims) { return input(name, TensorType::of(DType::f32, dims)); }
  ValueId constant(Tensor tensor);
  ValueId constant(std::initializer_list<float> values) { return vector<float>(values); }
  ValueId integers(std::initializer_list<int64_t> values) { return vector<int64_t>(values); }
  ValueId scalar(float value) { return constant(Tensor::scalar<float>(value)); }
  // Seeded noise in [-1, 1].
  ValueId weights(const Dims& dims);
  ValueId op(const std::string& name, std::vector<ValueId> inputs, Attributes attributes = {}, int version = 17);
  void output(ValueId id) { graph.outputs.push_back(id); }

  Graph graph;

 private:
  template <class T>
  ValueId vector(std::initializer_list<T> values) {
    return constant(Tensor::from<T>({static_cast<int64_t>(values.size())}, values));
  }
  int count_ = 0;
};

Attributes attributes(std::initializer_list<std::pair<const char*, Attribute>> entries);
Tensor noise(const Dims& dims, unsigned seed);
TensorType symbolic(std::initializer_list<const char*> symbols);  // "3" is an extent, "?" unknown, "n" a symbol

// Operators in order, with what was fused into them: "Conv+Relu MatMul".
std::string ops_of(const Graph& graph);
int count_of(const Graph& graph, const std::string& op);

PassContext pass_context(int channel_block = 8);
using PassFn = bool(Graph&, const PassContext&);
// Infers, runs the pass, verifies, infers again, and checks that results have not changed beyond rounding. Returns the
// graph behind the pass.
Graph run_and_compare(const Graph& graph, PassFn* pass, bool expect_change, int channel_block = 8);
// The same for several passes, whether or not they fire.
Graph run_all_and_compare(const Graph& graph, const std::vector<PassFn*>& passes, int channel_block = 8);

}  // namespace lathe::testing
