// Composites in a graph give way to their parts, at load or when the extents are known.
#include <gtest/gtest.h>

#include "graph/expand.h"
#include "graph/infer.h"
#include "graph/verify.h"
#include "lathe/error.h"
#include "ops/op_def.h"

namespace lathe {
namespace {

std::vector<std::string> operators(const Graph& graph) {
  std::vector<std::string> names;
  for (const NodeId id : graph.order()) names.emplace_back(graph.node(id).op->name);
  return names;
}

// x -> op -> h -> Relu -> y
Graph graph_with(const char* op, const TensorType& x_type, Tensor second, Attributes attributes) {
  Graph graph;
  const ValueId x = graph.add_value("x", x_type), h = graph.add_value("h", {}), y = graph.add_value("y", {});
  graph.inputs = {x};
  Node node{.op = &OpRegistry::builtin().require("com.microsoft", op), .name = "composite", .inputs = {x}};
  node.inputs.push_back(graph.add_constant("second", std::move(second)));
  node.outputs = {h};
  node.attributes = std::move(attributes);
  graph.add_node(std::move(node));
  graph.add_node({.op = &OpRegistry::builtin().require("", "Relu", 14),
                  .version = 14,
                  .name = "relu",
                  .inputs = {h},
                  .outputs = {y}});
  graph.outputs = {y};
  infer_types(graph);
  return graph;
}

Attributes turned() {
  Attributes attributes;
  attributes.set("transA", int64_t{1});
  return attributes;
}

TEST(ExpandNodes, PutsThePartsInTheNodesPlace) {
  Graph graph = graph_with("FusedMatMul", TensorType::of(DType::f32, {2, 3}), Tensor(DType::f32, {2, 4}), turned());
  EXPECT_TRUE(expand_nodes(graph, OpRegistry::builtin()));
  verify(graph);
  EXPECT_EQ(operators(graph), (std::vector<std::string>{"Transpose", "MatMul", "Relu"}));
  infer_types(graph);
  EXPECT_EQ(to_string(graph.value(graph.outputs[0]).type), "float32[3,4]");
  EXPECT_FALSE(expand_nodes(graph, OpRegistry::builtin()));
}

TEST(ExpandNodes, WaitsForWhatTheExpansionMustKnow) {
  Graph graph = graph_with("FusedMatMul", TensorType::unranked(DType::f32), Tensor(DType::f32, {2, 4}), turned());
  EXPECT_FALSE(expand_nodes(graph, OpRegistry::builtin()));
  EXPECT_EQ(operators(graph), (std::vector<std::string>{"FusedMatMul", "Relu"}));
  graph.value(graph.inputs[0]).type = TensorType::of(DType::f32, {2, 3});
  EXPECT_TRUE(expand_nodes(graph, OpRegistry::builtin()));
  verify(graph);
}

TEST(ExpandNodes, KeepsSymbolsOfExtents) {
  TensorType type = TensorType::of(DType::f32, {0, 2});
  type.dims[0] = {-1, "batch"};
  const Graph graph = graph_with("FusedMatMul", type, Tensor(DType::f32, {2, 4}), {});
  EXPECT_EQ(to_string(graph.value(graph.outputs[0]).type), "float32[batch,4]");
}

TEST(ExpandNodes, KeepsTheValueThatIsAnOutputOfTheGraph) {
  Graph graph = graph_with("BiasDropout", TensorType::of(DType::f32, {2, 4}), Tensor(DType::f32, {4}), {});
  graph.outputs.push_back(graph.node(graph.order()[0]).outputs[0]);
  EXPECT_TRUE(expand_nodes(graph, OpRegistry::builtin()));
  verify(graph);
  EXPECT_EQ(graph.value(graph.outputs[1]).name, "h");
  EXPECT_EQ(operators(graph), (std::vector<std::string>{"Add", "Relu"}));
}

TEST(ExpandNodes, AddsASkipThatBroadcastsFirst) {
  for (const bool is_same : {false, true}) {
    Graph graph;
    const ValueId x = graph.add_value("x", TensorType::of(DType::f32, {2, 3, 4})), y = graph.add_value("y", {});
    Node node{.op = &OpRegistry::builtin().require("com.microsoft", "SkipLayerNormalization"), .name = "norm"};
    node.inputs = {x, graph.add_constant("skip", Tensor(DType::f32, is_same ? Dims{2, 3, 4} : Dims{1, 3, 4})),
                   graph.add_constant("gamma", Tensor(DType::f32, {4}))};
    node.outputs = {y};
    graph.inputs = {x};
    graph.outputs = {y};
    graph.add_node(std::move(node));
    infer_types(graph);
    EXPECT_EQ(expand_nodes(graph, OpRegistry::builtin()), !is_same);
    verify(graph);
    EXPECT_EQ(operators(graph), is_same ? (std::vector<std::string>{"SkipLayerNormalization"})
                                        : (std::vector<std::string>{"Add", "LayerNormalization"}));
  }
}

// Before opset 7 a slope of rank 1 belongs to axis 1.
TEST(ExpandNodes, GivesAnOldSlopeItsAxes) {
  for (const int version : {6, 7}) {
    Graph graph;
    const ValueId x = graph.add_value("x", TensorType::of(DType::f32, {2, 3, 3})), y = graph.add_value("y", {});
    graph.inputs = {x};
    graph.outputs = {y};
    graph.add_node({.op = &OpRegistry::builtin().require("", "PRelu", version),
                    .version = version,
                    .name = "prelu",
                    .inputs = {x, graph.add_constant("slope", Tensor(DType::f32, {3}))},
                    .outputs = {y}});
    infer_types(graph);
    EXPECT_EQ(expand_nodes(graph, OpRegistry::builtin()), version == 6);
    verify(graph);
    EXPECT_EQ(operators(graph),
              version == 6 ? (std::vector<std::string>{"Reshape", "PRelu"}) : (std::vector<std::string>{"PRelu"}));
    const Node& last = graph.node(graph.order().back());
    EXPECT_EQ(to_string(graph.value(last.inputs[1]).type), version == 6 ? "float32[3,1]" : "float32[3]");
  }
}

TEST(ExpandNodes, NamesTheNodeThatItCannotExpand) {
  Attributes attributes;
  attributes.set("num_heads", int64_t{2});
  attributes.set("do_rotary", int64_t{1});
  try {
    graph_with("Attention", TensorType::of(DType::f32, {1, 2, 4}), Tensor(DType::f32, {4, 12}), attributes);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("'composite' (Attention)"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lathe
