// Bodies of If and Loop are closed over what they use.
#include "tests/graph/import_fixture.h"

namespace lathe::import_test {
namespace {

using ::testing::HasSubstr;

// y = If(c) {then: Relu(x), else: Relu(w)}
struct Branches {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  onnx::GraphProto* then_body;
  onnx::GraphProto* else_body;
  Branches() {
    declare(*graph.add_input(), "c", onnx::TensorProto::BOOL, {});
    add_input(graph, "x");
    add_input(graph, "w");
    add_output(graph, "y");
    onnx::NodeProto* branch = add_node(graph, "If", {"c"}, {"y"});
    branch->set_name("if");
    then_body = add_body(*branch, "then_branch", "t");
    else_body = add_body(*branch, "else_branch", "e");
    add_node(*then_body, "Relu", {"x"}, {"t"});
    add_node(*else_body, "Relu", {"w"}, {"e"});
  }
};

TEST(ImportBody, BothBranchesEndWithAllCaptures) {
  const Model model = import_model(Branches().model);
  const Node& node = model.graph->node(model.graph->order()[0]);
  EXPECT_EQ(node.captures, 2);
  ASSERT_EQ(node.inputs.size(), 3u);
  const auto then_body = node.attributes.get_graph("then_branch");
  const auto else_body = node.attributes.get_graph("else_branch");
  ASSERT_EQ(then_body->inputs.size(), 2u);
  ASSERT_EQ(else_body->inputs.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const std::string& outer = model.graph->value(node.inputs[1 + i]).name;
    EXPECT_EQ(then_body->value(then_body->inputs[i]).name, outer);
    EXPECT_EQ(else_body->value(else_body->inputs[i]).name, outer);
    EXPECT_EQ(to_string(then_body->value(then_body->inputs[i]).type), "float32[2,2]");
  }
}

TEST(ImportBody, ConstantsFromOutsideAreSharedAndNotCaptured) {
  Branches made;
  add_floats(made.graph, "k", {1, 2, 3});
  made.then_body->mutable_node(0)->set_input(0, "k");
  const Model model = import_model(made.model);
  const Node& node = model.graph->node(model.graph->order()[0]);
  EXPECT_EQ(node.captures, 1);
  const auto body = node.attributes.get_graph("then_branch");
  EXPECT_THAT(to_text(*body), HasSubstr("const %k: float32[3] [1, 2, 3]"));
}

TEST(ImportBody, CapturesPassThroughNestedBodies) {
  Branches made;
  onnx::GraphProto* body = made.then_body;
  body->clear_node();
  onnx::NodeProto* inner = add_node(*body, "If", {"c"}, {"t"});
  add_node(*add_body(*inner, "then_branch", "a"), "Add", {"x", "w"}, {"a"});
  add_node(*add_body(*inner, "else_branch", "b"), "Relu", {"x"}, {"b"});
  const Model model = import_model(made.model);
  const Node& outer_node = model.graph->node(model.graph->order()[0]);
  EXPECT_EQ(outer_node.captures, 3);  // x, w and c
  const auto outer_body = outer_node.attributes.get_graph("then_branch");
  const Node& inner_node = outer_body->node(outer_body->order()[0]);
  EXPECT_EQ(inner_node.captures, 2);
  EXPECT_EQ(inner_node.attributes.get_graph("else_branch")->inputs.size(), 2u);
}

TEST(ImportBody, ABodyMayGiveAnOuterValueAsItsOutput) {
  Branches made;
  made.then_body->clear_node();
  made.then_body->mutable_output(0)->set_name("x");
  EXPECT_NO_THROW(import_model(made.model));
}

TEST(ImportBody, InnerNamesHideOuterOnes) {
  Branches made;
  made.then_body->mutable_node(0)->set_output(0, "w");
  made.then_body->mutable_output(0)->set_name("w");
  const Model model = import_model(made.model);
  const auto body = model.graph->node(model.graph->order()[0]).attributes.get_graph("then_branch");
  EXPECT_EQ(body->value(body->outputs[0]).name, "w");
  EXPECT_NE(body->value(body->outputs[0]).producer, NodeId::none);
}

TEST(ImportBody, LoopKeepsItsFormalInputsInFront) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  declare(*graph.add_input(), "m", onnx::TensorProto::INT64, {});
  add_input(graph, "x");
  add_input(graph, "w");
  add_output(graph, "y");
  onnx::GraphProto* body = add_body(*add_node(graph, "Loop", {"m", "", "x"}, {"y"}), "body", "go");
  declare(*body->add_input(), "i", onnx::TensorProto::INT64, {});
  declare(*body->add_input(), "go", onnx::TensorProto::BOOL, {});
  body->add_input()->set_name("state");  // untyped
  add_output(*body, "next");
  add_node(*body, "Add", {"state", "w"}, {"next"});
  const Model imported = import_model(model);
  const auto graph_of_body = imported.graph->node(imported.graph->order()[0]).attributes.get_graph("body");
  std::vector<std::string> names;
  for (ValueId id : graph_of_body->inputs) names.push_back(graph_of_body->value(id).name);
  EXPECT_THAT(names, ::testing::ElementsAre("i", "go", "state", "w"));
  body->add_input()->set_name("too_many");
  EXPECT_THAT(import_error(model).what(), HasSubstr("body 'body' has 5 inputs"));
}

TEST(ImportBody, OuterValuesMustBeDefinedBefore) {
  Branches made;
  made.then_body->mutable_node(0)->set_input(0, "later");
  add_node(made.graph, "Relu", {"x"}, {"later"});
  EXPECT_THAT(import_error(made.model).what(), HasSubstr("input 'later' is not defined before it is used"));
  made.then_body->mutable_node(0)->set_input(0, "y");  // the If's own output
  EXPECT_THAT(import_error(made.model).what(), HasSubstr("input 'y' is not defined before it is used"));
}

TEST(ImportBody, NestingIsLimited) {
  Branches made;
  onnx::GraphProto* body = made.then_body;
  for (int depth = 1; depth < 40; ++depth) {
    body->clear_node();
    const std::string output = body->output(0).name();
    onnx::NodeProto* inner = add_node(*body, "If", {"c"}, {output});
    add_node(*add_body(*inner, "else_branch", "b"), "Relu", {"x"}, {"b"});
    body = add_body(*inner, "then_branch", "a");
    add_node(*body, "Relu", {"x"}, {"a"});
  }
  EXPECT_NO_THROW(import_model(made.model));
  Limits limits;
  limits.subgraph_depth = 40;
  EXPECT_NO_THROW(import_model(made.model, limits));
  limits.subgraph_depth = 39;
  EXPECT_EQ(import_error(made.model, limits).code(), ErrorCode::limit);
}

}  // namespace
}  // namespace lathe::import_test
