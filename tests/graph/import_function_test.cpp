// Model-local functions are expanded, with what the packaged schema does not know of them.
#include "tests/graph/import_fixture.h"

namespace lathe::import_test {
namespace {

using ::testing::HasSubstr;

constexpr int kNodeOverload = 8, kFunctionAttributeProto = 11, kFunctionOverload = 13;

onnx::ModelProto calling_model(const std::string& function) {
  onnx::ModelProto model = relu_model();
  onnx::NodeProto* call = model.mutable_graph()->mutable_node(0);
  call->set_op_type(function);
  call->set_domain("local");
  call->set_name("call");
  return model;
}

std::string axis_of(const onnx::ModelProto& model) {
  const Model imported = import_model(model);
  const Node& node = imported.graph->node(imported.graph->order()[0]);
  return node.attributes.has("axis") ? std::to_string(node.attributes.get_int("axis", 0)) : "absent";
}

// F(a) = Softmax<axis = @k>(a)
onnx::FunctionProto* add_softmax(onnx::ModelProto& model) {
  onnx::FunctionProto* function = add_function(model, "F", {"a"}, {"b"});
  onnx::AttributeProto* axis = add_node(*function, "Softmax", {"a"}, {"b"})->add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_ref_attr_name("k");
  return function;
}

TEST(ImportFunction, IsExpandedWithNamesOfItsCall) {
  onnx::ModelProto model = calling_model("F");
  onnx::FunctionProto* function = add_function(model, "F", {"a"}, {"b"});
  add_node(*function, "Relu", {"a"}, {"x"});
  add_node(*function, "Add", {"x", "a"}, {"b"})->set_name("sum");
  const Model imported = import_model(model);
  EXPECT_EQ(to_text(*imported.graph),
            "graph g\n"
            "in %x: float32[2,2]\n"
            "%call/x: undefined[...] = Relu(%x)\n"
            "%y: undefined[...] = Add(%call/x, %x)\n"
            "out %y\n");
  EXPECT_EQ(imported.graph->node(imported.graph->order()[1]).name, "call/sum");
}

TEST(ImportFunction, AttributesComeFromTheCallOrTheDefaultOrAreAbsent) {
  onnx::ModelProto model = calling_model("F");
  onnx::FunctionProto* function = add_softmax(model);
  function->add_attribute("k");
  EXPECT_EQ(axis_of(model), "absent");
  function->clear_attribute();
  onnx::AttributeProto value;
  value.set_name("k");
  value.set_type(onnx::AttributeProto::INT);
  value.set_i(5);
  add_unknown_bytes(*function, kFunctionAttributeProto, value.SerializeAsString());
  EXPECT_EQ(axis_of(model), "5");
  add_int(*model.mutable_graph()->mutable_node(0), "k", 3);
  EXPECT_EQ(axis_of(model), "3");
  add_int(*model.mutable_graph()->mutable_node(0), "bogus", 3);
  EXPECT_THAT(import_error(model).what(), HasSubstr("attribute 'bogus' is unknown to the function"));
}

TEST(ImportFunction, OverloadsAreToldApart) {
  onnx::ModelProto model = calling_model("F");
  add_node(*add_function(model, "F", {"a"}, {"b"}), "Relu", {"a"}, {"b"});
  onnx::FunctionProto* other = add_function(model, "F", {"a"}, {"b"});
  add_node(*other, "Identity", {"a"}, {"b"});
  EXPECT_THAT(import_error(model).what(), HasSubstr("function 'F' (local) is defined twice"));
  add_unknown_bytes(*other, kFunctionOverload, "other");
  EXPECT_THAT(text_of(model), HasSubstr("Relu"));
  add_unknown_bytes(*model.mutable_graph()->mutable_node(0), kNodeOverload, "other");
  EXPECT_THAT(text_of(model), HasSubstr("Identity"));
}

TEST(ImportFunction, WinsOverAnOperatorOfTheSameName) {
  onnx::ModelProto model = relu_model();
  onnx::FunctionProto* function = add_function(model, "Relu", {"a"}, {"b"});
  function->clear_domain();
  add_node(*function, "Identity", {"a"}, {"b"});
  EXPECT_THAT(text_of(model), HasSubstr("%y: undefined[...] = Identity(%x)"));
}

TEST(ImportFunction, UsesItsOwnOpsets) {
  onnx::ModelProto model = calling_model("F");
  onnx::FunctionProto* function = add_function(model, "F", {"a"}, {"b"});
  add_node(*function, "Relu", {"a"}, {"b"});
  function->mutable_opset_import(0)->set_version(13);
  const Model imported = import_model(model);
  EXPECT_EQ(imported.graph->node(imported.graph->order()[0]).version, 13);
  function->mutable_opset_import(0)->set_version(999);
  EXPECT_THAT(import_error(model).what(), HasSubstr("function 'F': opset 999"));
  function->clear_opset_import();
  EXPECT_THAT(import_error(model).what(), HasSubstr("function 'F': node 'call/Relu_0' (Relu): no opset"));
}

TEST(ImportFunction, AbsentInputsStayAbsentAndPassedOnesPass) {
  onnx::ModelProto model = calling_model("F");
  add_node(*add_function(model, "F", {"a", "low", "high"}, {"b"}), "Clip", {"a", "low", "high"}, {"b"});
  EXPECT_THAT(text_of(model), HasSubstr("%y: undefined[...] = Clip(%x)\n"));
}

TEST(ImportFunction, GivesAnInputBackThroughIdentity) {
  onnx::ModelProto model = calling_model("F");
  add_function(model, "F", {"a"}, {"a"});
  EXPECT_THAT(text_of(model), HasSubstr("%y: undefined[...] = Identity(%x)"));
}

TEST(ImportFunction, BodiesInsideSeeItsValuesAndAttributes) {
  onnx::ModelProto model = calling_model("F");
  declare(*model.mutable_graph()->mutable_input(0), "x", onnx::TensorProto::BOOL, {});
  onnx::FunctionProto* function = add_function(model, "F", {"a"}, {"b"});
  add_node(*function, "Relu", {"a"}, {"r"});
  function->add_attribute("k");
  add_int(*model.mutable_graph()->mutable_node(0), "k", 9);
  onnx::NodeProto* branch = add_node(*function, "If", {"a"}, {"b"});
  onnx::NodeProto* inner = add_node(*add_body(*branch, "then_branch", "t"), "Softmax", {"r"}, {"t"});
  add_int(*inner, "axis", 0)->clear_i();
  inner->mutable_attribute(0)->set_ref_attr_name("k");
  add_node(*add_body(*branch, "else_branch", "e"), "Relu", {"a"}, {"e"});
  const Model imported = import_model(model);
  const Node& node = imported.graph->node(imported.graph->order()[1]);
  EXPECT_EQ(node.captures, 2);
  EXPECT_THAT(to_text(*node.attributes.get_graph("then_branch")), HasSubstr("Softmax[axis=9](%call/r)"));
}

TEST(ImportFunction, RefusesRecursion) {
  onnx::ModelProto model = calling_model("F");
  add_node(*add_function(model, "F", {"a"}, {"b"}), "G", {"a"}, {"b"})->set_domain("local");
  add_node(*add_function(model, "G", {"a"}, {"b"}), "F", {"a"}, {"b"})->set_domain("local");
  const Error error = import_error(model);
  EXPECT_EQ(error.code(), ErrorCode::invalid_model);
  EXPECT_THAT(error.what(), HasSubstr("function 'F': calls itself"));
}

TEST(ImportFunction, CountsNodesBeforeExpanding) {
  onnx::ModelProto model = calling_model("F30");
  add_node(*add_function(model, "F0", {"a"}, {"b"}), "Relu", {"a"}, {"b"});
  for (int i = 1; i <= 30; ++i) {
    const std::string callee = "F" + std::to_string(i - 1);
    onnx::FunctionProto* function = add_function(model, "F" + std::to_string(i), {"a"}, {"b"});
    add_node(*function, callee, {"a"}, {"t"})->set_domain("local");
    add_node(*function, callee, {"t"}, {"b"})->set_domain("local");
  }
  EXPECT_EQ(import_error(model).code(), ErrorCode::limit);
  Limits limits;
  limits.function_depth = 8;
  model.mutable_graph()->mutable_node(0)->set_op_type("F9");
  EXPECT_EQ(import_error(model, limits).code(), ErrorCode::limit);
  limits.function_depth = 10;
  EXPECT_EQ(import_model(model, limits).graph->order().size(), 512u);
}

TEST(ImportFunction, RefusesWrongCountsAndUnknownNames) {
  onnx::ModelProto model = calling_model("F");
  onnx::FunctionProto* function = add_function(model, "F", {"a"}, {"b"});
  add_node(*function, "Relu", {"outside"}, {"b"});
  EXPECT_THAT(import_error(model).what(), HasSubstr("function 'F': node 'call/Relu_0' (Relu): input 'outside'"));
  function->mutable_node(0)->set_input(0, "a");
  function->set_output(0, "ghost");
  EXPECT_THAT(import_error(model).what(), HasSubstr("function 'F': output 'ghost': nothing computes it"));
  model.mutable_graph()->mutable_node(0)->add_input("x");
  EXPECT_THAT(import_error(model).what(), HasSubstr("node 'call' (F): the call has 2 inputs"));
}

}  // namespace
}  // namespace lathe::import_test
