#include "tests/graph/pass_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "graph/passes/rewrite.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "tests/graph/pass_op_meanings.h"

namespace lathe::testing {
namespace {

std::vector<OpSchema> make_schemas() {
  std::vector<OpSchema> all;
  for (const char* name : {"Relu", "Sigmoid", "Erf", "Sqrt", "Cast"}) {
    all.push_back({.name = name,
                   .infer = infer_pointwise,
                   .reference = reference_pointwise,
                   .express = express,
                   .layout = LayoutRole::any_same});
  }
  all.back().attributes = {{"to", AttributeSpec::Kind::integer}};
  for (const char* name : {"Add", "Sub", "Mul", "Div", "Pow", "Less"}) {
    all.push_back({.name = name,
                   .min_inputs = 2,
                   .max_inputs = 2,
                   .infer = infer_pointwise,
                   .reference = reference_pointwise,
                   .express = express,
                   .layout = LayoutRole::any_same});
  }
  all.push_back({.name = "Clip",
                 .max_inputs = 3,
                 .infer = infer_pointwise,
                 .reference = reference_pointwise,
                 .express = express,
                 .layout = LayoutRole::any_same});
  all.push_back({.name = "Conv",
                 .min_inputs = 2,
                 .max_inputs = 3,
                 .attributes = {{"pads"}, {"strides"}, {"group"}},
                 .infer = infer_conv,
                 .reference = reference_conv,
                 .layout = LayoutRole::blocked,
                 .accepts_blocked = conv_accepts_blocked,
                 .fuses_epilogue = true});
  all.push_back({.name = "MatMul",
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = infer_matmul,
                 .reference = reference_matmul,
                 .fuses_epilogue = true});
  all.push_back({.name = "BatchNormalization",
                 .min_inputs = 5,
                 .max_inputs = 5,
                 .max_outputs = 5,
                 .attributes = {{"epsilon"}, {"training_mode"}},
                 .infer = infer_same,
                 .reference = reference_batch_norm});
  all.push_back({.name = "ReduceMean",
                 .max_inputs = 2,
                 .attributes = {{"axes"}, {"keepdims"}},
                 .infer = infer_reduce_mean,
                 .reference = reference_reduce_mean});
  all.push_back({.name = "LayerNormalization",
                 .min_inputs = 2,
                 .max_inputs = 3,
                 .attributes = {{"axis"}, {"epsilon"}},
                 .infer = infer_same,
                 .reference = reference_layer_norm});
  all.push_back({.name = "GlobalAveragePool",
                 .infer = infer_pool,
                 .reference = reference_pool,
                 .layout = LayoutRole::blocked,
                 .accepts_blocked = always_blocked});
  all.push_back({.name = "Shape", .attributes = {{"start"}, {"end"}}, .infer = infer_shape});
  all.push_back(
      {.name = "Gather", .min_inputs = 2, .max_inputs = 2, .infer = infer_gather, .reference = reference_gather});
  all.push_back({.name = "Concat",
                 .max_inputs = -1,
                 .attributes = {{"axis"}},
                 .infer = infer_concat,
                 .reference = reference_concat,
                 .layout = LayoutRole::channel_join});
  all.push_back(
      {.name = "Reshape", .min_inputs = 2, .max_inputs = 2, .infer = infer_reshape, .reference = reference_reshape});
  all.push_back({.name = "Unsqueeze",
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = infer_unsqueeze,
                 .reference = reference_unsqueeze});
  all.push_back(
      {.name = "Squeeze", .min_inputs = 2, .max_inputs = 2, .infer = infer_squeeze, .reference = reference_squeeze});
  all.push_back(
      {.name = "Transpose", .attributes = {{"perm"}}, .infer = infer_transpose, .reference = reference_transpose});
  all.push_back({.name = "Identity", .infer = infer_same, .reference = reference_same});
  all.push_back(
      {.name = "Dropout", .max_inputs = 3, .max_outputs = 2, .infer = infer_same, .reference = reference_same});
  all.push_back({.name = "If",
                 .max_outputs = -1,
                 .attributes = {{"then_branch"}, {"else_branch"}},
                 .infer = infer_if,
                 .reference = reference_if});
  all.push_back(
      {.name = "RandomUniformLike", .infer = infer_same, .reference = reference_random, .deterministic = false});
  all.push_back({.name = "Pointwise", .domain = "lathe", .infer = infer_same, .layout = LayoutRole::any_same});
  all.push_back({.name = "Reorder", .domain = "lathe", .infer = infer_same});
  return all;
}

class PassOps : public OpLookup {
 public:
  const OpSchema* find(std::string_view domain, std::string_view name, int) const override {
    for (const OpSchema& schema : schemas_) {
      if (schema.domain == domain && schema.name == name) return &schema;
    }
    return nullptr;
  }

 private:
  std::vector<OpSchema> schemas_ = make_schemas();
};

void expect_equal(const Tensor& expected, const Tensor& actual, const std::string& text) {
  ASSERT_EQ(expected.dtype(), actual.dtype()) << text;
  ASSERT_EQ(expected.dims(), actual.dims()) << text;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double a = element(expected, i), b = element(actual, i);
    // Refactored arithmetic over at most a few hundred terms of magnitude about one.
    ASSERT_NEAR(a, b, 1e-5 * (1 + std::abs(a))) << "element " << i << "\n" << text;
  }
}

void compare(const Graph& before, const Graph& after) {
  std::vector<Tensor> inputs;
  for (const ValueId id : before.inputs) {
    const TensorType& type = before.value(id).type;
    Dims dims;
    for (const Dim& dim : type.dims) dims.push_back(dim.known() ? dim.extent : 4);
    Tensor values = noise(dims, static_cast<unsigned>(inputs.size() + 7));
    Tensor input(type.dtype, dims);
    for (int64_t i = 0; i < input.size(); ++i)
      set_element(input, i, values.data<float>()[i] + (type.dtype == DType::f32 ? 0 : 1));
    inputs.push_back(input);
  }
  const auto expected = run_reference_graph(before, inputs), actual = run_reference_graph(after, inputs);
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) expect_equal(expected[i], actual[i], to_text(after));
}

}  // namespace

const OpLookup& pass_ops() {
  static const PassOps ops;
  return ops;
}

ValueId Net::input(const std::string& name, TensorType type) {
  const ValueId id = graph.add_value(name, std::move(type));
  graph.inputs.push_back(id);
  return id;
}

ValueId Net::constant(Tensor tensor) {
  return graph.add_constant("constant" + std::to_string(count_++), std::move(tensor));
}

ValueId Net::weights(const Dims& dims) {
  ++count_;
  return constant(noise(dims, static_cast<unsigned>(count_)));
}

ValueId Net::op(const std::string& name, std::vector<ValueId> inputs, Attributes node_attributes, int version) {
  const bool is_own = name == "Pointwise" || name == "Reorder";
  const std::string label = name + std::to_string(count_++);
  const ValueId result = graph.add_value(label, {});
  graph.add_node({.op = &pass_ops().require(is_own ? "lathe" : "", name, version),
                  .version = version,
                  .name = label,
                  .inputs = std::move(inputs),
                  .outputs = {result},
                  .attributes = std::move(node_attributes)});
  return result;
}

Attributes attributes(std::initializer_list<std::pair<const char*, Attribute>> entries) {
  Attributes all;
  for (const auto& [name, value] : entries) all.set(name, value);
  return all;
}

Tensor noise(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
  return tensor;
}

TensorType symbolic(std::initializer_list<const char*> symbols) {
  TensorType type{DType::f32, true, {}, {}};
  for (const std::string symbol : symbols) {
    if (symbol == "?") {
      type.dims.push_back(Dim());
    } else {
      const bool is_extent = std::isdigit(static_cast<unsigned char>(symbol[0])) != 0;
      type.dims.push_back(is_extent ? Dim{std::stoll(symbol), ""} : Dim{-1, symbol});
    }
  }
  return type;
}

std::string ops_of(const Graph& graph) {
  std::string text;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    text += (text.empty() ? "" : " ") + (node.fused_from.empty() ? std::string(node.op->name) : node.fused_from);
  }
  return text;
}

int count_of(const Graph& graph, const std::string& op) {
  return static_cast<int>(std::count_if(graph.order().begin(), graph.order().end(),
                                        [&](NodeId id) { return graph.node(id).op->name == op; }));
}

PassContext pass_context(int channel_block) {
  static const Limits limits;
  return {pass_ops(), limits, channel_block};
}

Graph run_and_compare(const Graph& graph, PassFn* pass, bool expect_change, int channel_block) {
  Graph after = graph;
  infer_types(after);
  const bool changed = pass(after, pass_context(channel_block));
  EXPECT_EQ(changed, expect_change) << to_text(after);
  verify(after);
  infer_types(after);
  compare(graph, after);
  return after;
}

Graph run_all_and_compare(const Graph& graph, const std::vector<PassFn*>& passes, int channel_block) {
  Graph after = graph;
  infer_types(after);
  for (PassFn* pass : passes) {
    pass(after, pass_context(channel_block));
    verify(after);
    infer_types(after);
  }
  compare(graph, after);
  return after;
}

}  // namespace lathe::testing