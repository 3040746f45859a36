// Bodies whose inputs are declared without a type: it comes with the first run.
#include <gtest/gtest.h>

#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

struct Body {
  Graph graph;
  ValueId in = ValueId::none, sum = ValueId::none;
};

// sum = in + in
Body doubling_body() {
  Body body;
  body.in = body.graph.add_value("in", {});
  body.sum = body.graph.add_value("sum", {});
  body.graph.inputs = {body.in};
  body.graph.outputs = {body.sum};
  Node add;
  add.op = &OpRegistry::builtin().require("", "Add", 14);
  add.version = 14;
  add.name = "add";
  add.inputs = {body.in, body.in};
  add.outputs = {body.sum};
  body.graph.add_node(add);
  return body;
}

TEST(UntypedInputs, LeaveWhatTheyFeedUnknown) {
  Body body = doubling_body();
  infer_types(body.graph);
  EXPECT_EQ(body.graph.value(body.sum).type.dtype, DType::undefined);
  body.graph.value(body.in).type = TensorType::of(DType::f32, {2, 3});
  infer_types(body.graph);
  EXPECT_EQ(to_string(body.graph.value(body.sum).type), "float32[2,3]");
}

TEST(Loop, StopsAtTheLimitOfIterations) {
  auto body = std::make_shared<Graph>();
  const ValueId iteration = body->add_value("i", TensorType::of(DType::i64, {}));
  const ValueId condition = body->add_value("c", TensorType::of(DType::boolean, {}));
  body->inputs = {iteration, condition};
  body->outputs = {condition};
  Node loop;
  loop.op = &OpRegistry::builtin().require("", "Loop", 16);
  loop.version = 16;
  loop.name = "endless";
  loop.attributes.set("body", std::shared_ptr<const Graph>(body));
  loop.inputs = {ValueId::none, ValueId{0}};
  Limits limits;
  limits.loop_iterations = 100;
  const Tensor inputs[] = {Tensor(), Tensor::scalar(true)};
  try {
    run_reference(loop, inputs, limits);
    FAIL() << "it ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
    EXPECT_NE(std::string(error.what()).find("endless"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lathe::testing
