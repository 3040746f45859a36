// Graphs written back as ONNX: read again, they give the same results.
#include <gtest/gtest.h>

#include <filesystem>

#include "graph/infer.h"
#include "graph/model.h"
#include "graph/onnx/onnx_export.h"
#include "graph/pipeline.h"
#include "graph/spell_out.h"
#include "ops/op_def.h"
#include "tests/fuzz/random_graph.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

std::vector<Tensor> results_of(const Graph& graph, const std::vector<Tensor>& inputs) {
  return run_reference_graph(graph, inputs);
}

void expect_equal(const std::vector<Tensor>& want, const std::vector<Tensor>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(want[i].dims(), got[i].dims());
    float largest = 1;
    for (const float x : want[i].elements<float>()) largest = std::max(largest, std::abs(x));
    for (int64_t e = 0; e < want[i].size(); ++e) {
      ASSERT_NEAR(want[i].data<float>()[e], got[i].data<float>()[e], 1e-5f * largest) << "output " << i << " at " << e;
    }
  }
}

TEST(SaveOptimized, GivesAModelWithTheSameResultsForRandomGraphs) {
  const std::string path = std::filesystem::temp_directory_path() / "lathe_save_optimized_test.onnx";
  int written = 0;
  for (uint32_t seed = 500; seed < 560; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const testing::BuiltCase built = testing::build(testing::random_case(seed));
    Graph graph = built.graph;
    const Limits limits;
    infer_types(graph, limits);
    run_passes(graph, load_passes(), {OpRegistry::builtin(), limits, 8}, 99, {});
    ExportOptions options{{{"", 17}}, 8, {}};
    for (size_t i = 0; i < graph.outputs.size(); ++i) options.outputs.push_back("result" + std::to_string(i));
    export_model_file(path, graph, OpRegistry::builtin(), options);
    const Model model = import_model_file(path, OpRegistry::builtin());
    for (const NodeId id : model.graph->order()) EXPECT_TRUE(model.graph->node(id).op->domain.empty());
    EXPECT_EQ(model.graph->value(model.graph->outputs[0]).name, "result0");
    expect_equal(results_of(built.graph, built.inputs), results_of(*model.graph, built.inputs));
    if (HasFatalFailure()) break;
    ++written;
  }
  EXPECT_EQ(written, 60);
  std::filesystem::remove(path);
}

// What is read back from the file of the optimized graph.
Graph reread(const Graph& graph, bool optimizes) {
  const std::string path = std::filesystem::temp_directory_path() / "lathe_save_reread_test.onnx";
  Graph written = graph;
  const Limits limits;
  infer_types(written, limits);
  if (optimizes) run_passes(written, load_passes(), {OpRegistry::builtin(), limits, 8}, 99, {});
  export_model_file(path, written, OpRegistry::builtin(), {{{"", 17}}, 8, {}});
  Model model = import_model_file(path, OpRegistry::builtin());
  std::filesystem::remove(path);
  return std::move(*model.graph);
}

TEST(SaveOptimized, SaysProductsOfIntegers) {
  testing::PassNet net;
  const ValueId x = net.input(Dims{2, 3, 8});
  const ValueId scale = net.scalar(0.02f), zero = net.constant(Tensor::scalar<uint8_t>(120));
  const ValueId bytes = net.op("QuantizeLinear", {x, scale, zero});
  const ValueId left = net.op("DequantizeLinear", {bytes, scale, zero});
  Tensor weights(DType::i8, {8, 4});
  for (int64_t i = 0; i < 32; ++i) weights.mutable_data<int8_t>()[i] = static_cast<int8_t>(7 * i - 90);
  const ValueId scales = net.weights({4}, 0.01f, 0.02f);
  const ValueId right =
      net.op("DequantizeLinear", {net.constant(weights), scales, net.constant(Tensor(DType::i8, {4}))},
             {{"axis", int64_t{1}}});
  const ValueId y = net.op("Relu", {net.op("Add", {net.op("MatMul", {left, right}), net.weights({4})})});
  net.output(net.op("DequantizeLinear", {net.op("QuantizeLinear", {y, scale, zero}), scale, zero}));
  const std::vector<Tensor> inputs{net.noise({2, 3, 8})};
  const Graph read = reread(net.graph, true);
  EXPECT_NE(testing::ops_of(read).find("MatMulInteger"), std::string::npos) << testing::ops_of(read);
  expect_equal(results_of(net.graph, inputs), results_of(read, inputs));
}

// With a scale for each output channel or one for all, and zero points of the weights of either count.
TEST(SaveOptimized, SaysConvolutionsOfIntegers) {
  for (const int64_t scales : {1, 4}) {
    for (const int64_t zeros : {1, 4}) {
      SCOPED_TRACE(std::to_string(scales) + " scales, " + std::to_string(zeros) + " zero points");
      testing::PassNet net;
      const ValueId scale = net.scalar(0.02f), zero = net.constant(Tensor::scalar<uint8_t>(120));
      Tensor weights(DType::i8, {4, 3, 2, 2}), weight_zeros(DType::i8, zeros == 1 ? Dims{} : Dims{4}),
          bias(DType::i32, {4});
      for (int64_t i = 0; i < 48; ++i) weights.mutable_data<int8_t>()[i] = static_cast<int8_t>(5 * i - 120);
      for (int64_t i = 0; i < zeros; ++i) weight_zeros.mutable_data<int8_t>()[i] = static_cast<int8_t>(i - 2);
      for (int32_t i = 0; i < 4; ++i) bias.mutable_data<int32_t>()[i] = 300 * i - 500;
      const ValueId y = net.op("QLinearConv",
                               {net.op("QuantizeLinear", {net.input(Dims{2, 3, 5, 6}), scale, zero}), scale, zero,
                                net.constant(weights), net.weights(scales == 1 ? Dims{} : Dims{4}, 0.01f, 0.02f),
                                net.constant(weight_zeros), scale, zero, net.constant(bias)},
                               {{"strides", std::vector<int64_t>{2, 1}}, {"pads", std::vector<int64_t>{1, 0, 0, 1}}});
      net.output(net.op("DequantizeLinear", {y, scale, zero}));
      const std::vector<Tensor> inputs{net.noise({2, 3, 5, 6})};
      const Graph read = reread(net.graph, true);
      EXPECT_NE(testing::ops_of(read).find("Conv"), std::string::npos) << testing::ops_of(read);
      EXPECT_EQ(testing::ops_of(read).find("QLinearConv"), std::string::npos) << testing::ops_of(read);
      expect_equal(results_of(net.graph, inputs), results_of(read, inputs));
    }
  }
}

TEST(SaveOptimized, SaysPlacesThatAreSpread) {
  testing::PassNet net;
  const ValueId numbers = net.op("Mul", {net.input(Dims{1, 3, 4}), net.scalar(5)});
  const ValueId places = net.op("Cast", {numbers}, {{"to", static_cast<int64_t>(DType::i64)}});
  const ValueId spread = net.op("Expand", {places, net.integers({2, 3, 4})});
  net.output(net.op("GatherElements", {net.input(Dims{2, 3, 5}), spread}, {{"axis", int64_t{-1}}}));
  const Graph read = reread(testing::rewritten(net, {passes::bypass_expand, passes::remove_dead}), false);
  EXPECT_EQ(testing::ops_of(read), "Mul Cast Expand GatherElements");
  const std::vector<Tensor> inputs{net.noise({1, 3, 4}), net.noise({2, 3, 5})};
  expect_equal(results_of(net.graph, inputs), results_of(read, inputs));
}

// Caches of three sequences: prompts, and some tokens behind what is there.
TEST(SaveOptimized, SaysCachesOfSeveralSequences) {
  for (const int64_t total : {2, 6}) {
    testing::PassNet net;
    const auto own = [&](const char* op, std::vector<ValueId> inputs, testing::PassNet::NamedAttributes attributes) {
      const ValueId result = net.op("Identity", std::move(inputs), std::move(attributes));
      Node& node = net.graph.node(net.graph.value(result).producer);
      node.op = &OpRegistry::builtin().require("lathe", op);
      node.version = 1;
      return result;
    };
    const ValueId past = net.input(Dims{3, 2, 5, 4}), now = net.input(Dims{3, 2, 2, 4});
    const ValueId last = net.input(TensorType::of(DType::i32, {3}));
    const ValueId positions = own("SequencePositions", {last}, {{"length", int64_t{2}}, {"total", total}});
    net.output(own("CacheAppend", {past, now, positions}, {{"total", std::max<int64_t>(5, total)}}));
    net.output(net.op("Cast", {positions}, {{"to", static_cast<int64_t>(DType::f32)}}));
    const int32_t ends[] = {1, static_cast<int32_t>(total) - 1, 0};
    const std::vector<Tensor> inputs{net.noise({3, 2, 5, 4}), net.noise({3, 2, 2, 4}),
                                     Tensor::from<int32_t>({3}, ends)};
    expect_equal(results_of(net.graph, inputs), results_of(reread(net.graph, false), inputs));
  }
}

// Loops over a body that reads outer values, and asks an If in it that reads them too.
TEST(SaveOptimized, SaysBodiesThatReadOuterValues) {
  const auto branch = [](const char* op) {
    testing::PassNet body;
    const ValueId a = body.input(TensorType::unranked(DType::f32)), b = body.input(TensorType::unranked(DType::f32));
    body.output(body.op("Relu", {body.op(op, {a, b})}));
    return std::make_shared<const Graph>(std::move(body.graph));
  };
  testing::PassNet body;
  const ValueId trip = body.input(TensorType::of(DType::i64, {}));
  const ValueId goes_on = body.input(TensorType::of(DType::boolean, {}));
  const ValueId state = body.input(TensorType::unranked(DType::f32)),
                outer = body.input(TensorType::unranked(DType::f32));
  const ValueId is_first = body.op("Equal", {trip, body.constant(Tensor::scalar<int64_t>(0))});
  const ValueId next =
      body.op("If", {is_first, state, outer}, {{"then_branch", branch("Add")}, {"else_branch", branch("Sub")}});
  body.graph.node(body.graph.order().back()).captures = 2;
  body.output(goes_on);
  body.output(next);
  body.output(outer);

  testing::PassNet net;
  const ValueId x = net.input(Dims{2, 3}), trips = net.input(TensorType::of(DType::i64, {}));
  const std::vector<ValueId> results =
      net.op("Loop", {trips, ValueId::none, x, net.op("Tanh", {x})}, 2,
             {{"body", std::shared_ptr<const Graph>(std::make_shared<Graph>(std::move(body.graph)))}});
  net.graph.node(net.graph.order().back()).captures = 1;
  for (const ValueId result : results) net.output(result);
  const std::vector<Tensor> inputs{net.noise({2, 3}), Tensor::scalar<int64_t>(3)};
  for (const bool optimizes : {false, true}) {
    expect_equal(results_of(net.graph, inputs), results_of(reread(net.graph, optimizes), inputs));
  }
}

}  // namespace
}  // namespace lathe
