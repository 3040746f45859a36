#include "graph/verify.h"

#include "tests/graph/import_fixture.h"

namespace lathe {
namespace {

using import_test::error_of;
using import_test::test_ops;
using ::testing::HasSubstr;

struct Case {
  Graph graph;
  ValueId x, y;
  NodeId node;

  explicit Case(std::string_view op, std::string_view domain = "") {
    x = graph.add_value("x", TensorType::of(DType::f32, {2}));
    y = graph.add_value("y", {});
    Node made;
    made.op = &test_ops().require(domain, op, 21);
    made.name = "n";
    made.inputs = {x};
    made.outputs = {y};
    node = graph.add_node(std::move(made));
    graph.inputs = {x};
    graph.outputs = {y};
  }
  Node& n() { return graph.node(node); }
  std::string complaint() {
    const Error error = error_of([&] { verify(graph); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_model);
    return error.what();
  }
};

TEST(Verify, AcceptsASoundGraph) { EXPECT_NO_THROW(verify(Case("Relu").graph)); }

TEST(Verify, WantsEnoughInputs) {
  EXPECT_THAT(Case("Add").complaint(), HasSubstr("node 'n' (Add): has 1 inputs, expected 2"));
}

TEST(Verify, WantsNoMoreInputsThanThereAre) {
  Case made("Relu");
  made.n().inputs = {made.x, made.x};
  EXPECT_THAT(made.complaint(), HasSubstr("has 2 inputs, expected 1"));
}

TEST(Verify, WantsRequiredInputsPresent) {
  Case made("Add");
  made.n().inputs = {made.x, ValueId::none};
  EXPECT_THAT(made.complaint(), HasSubstr("required input 1 is absent"));
}

TEST(Verify, AllowsOptionalInputsAbsent) {
  Case made("Clip");
  made.n().inputs = {made.x, ValueId::none, made.x};
  EXPECT_NO_THROW(verify(made.graph));
}

TEST(Verify, WantsDefinitionBeforeUse) {
  Case made("Relu");
  made.n().inputs = {made.graph.add_value("nowhere", {})};
  EXPECT_THAT(made.complaint(), HasSubstr("'nowhere' is used before it is defined"));
}

TEST(Verify, WantsOutputsComputed) {
  Case made("Relu");
  made.graph.outputs = {made.graph.add_value("ghost", {})};
  EXPECT_THAT(made.complaint(), HasSubstr("'ghost': nothing computes it"));
}

TEST(Verify, WantsUniqueNames) {
  Case made("Relu");
  made.graph.add_value("x", {});
  EXPECT_THAT(made.complaint(), HasSubstr("'x': the name is defined twice"));
}

TEST(Verify, RejectsUnknownAttributesOfOnnxButNotOfOtherDomains) {
  Case strict("Relu");
  strict.n().attributes.set("bogus", int64_t{1});
  EXPECT_THAT(strict.complaint(), HasSubstr("unknown attribute 'bogus'"));
  Case tolerant("Hint", "com.microsoft");
  tolerant.n().attributes.set("bogus", int64_t{1});
  EXPECT_NO_THROW(verify(tolerant.graph));
}

TEST(Verify, WantsAttributesOfTheRightKindAndRequiredOnes) {
  Case kind("Softmax");
  kind.n().attributes.set("axis", std::string("one"));
  EXPECT_THAT(kind.complaint(), HasSubstr("attribute 'axis' is a string, expected an int"));
  EXPECT_THAT(Case("Concat").complaint(), HasSubstr("attribute 'axis' is required"));
}

TEST(Verify, ChecksBodies) {
  Case made("If");
  auto body = std::make_shared<Graph>();
  made.n().attributes.set("then_branch", std::shared_ptr<const Graph>(body));
  made.n().attributes.set("else_branch", std::shared_ptr<const Graph>(body));
  EXPECT_THAT(made.complaint(), HasSubstr("has 0 inputs and 0 outputs, expected 0 and 1"));
  const ValueId one = body->add_constant("one", Tensor::scalar<float>(1));
  body->outputs = {one};
  EXPECT_NO_THROW(verify(made.graph));
  body->outputs = {body->add_value("ghost", {})};
  EXPECT_THAT(made.complaint(), HasSubstr("'ghost': nothing computes it"));
}

}  // namespace
}  // namespace lathe
