#include "tests/graph/import_fixture.h"

namespace lathe::import_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string complaint(const onnx::ModelProto& model, ErrorCode code = ErrorCode::invalid_model) {
  const Error error = import_error(model);
  EXPECT_EQ(error.code(), code) << error.what();
  return error.what();
}

TEST(Import, ReadsNodesTypesAndSymbols) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_input(graph, "x", {-2, -1, 3});
  add_output(graph, "y");
  add_int(*add_node(graph, "Softmax", {"x"}, {"t"}), "axis", -1);
  add_floats(graph, "w", {1, 2});
  add_node(graph, "Add", {"t", "w"}, {"y"})->set_name("sum");
  declare(*graph.add_value_info(), "t", onnx::TensorProto::FLOAT, {-2, -1, 3});
  EXPECT_EQ(text_of(model),
            "graph g\n"
            "in %x: float32[N,?,3]\n"
            "const %w: float32[2] [1, 2]\n"
            "%t: float32[N,?,3] = Softmax[axis=-1](%x)\n"
            "%y: undefined[...] = Add(%t, %w)\n"
            "out %y\n");
}

TEST(Import, MakesUpNamesThatAreUnique) {
  onnx::ModelProto model = relu_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_node(graph, "Relu", {"x"}, {"a"});                      // Relu_1
  add_node(graph, "Relu", {"x"}, {"b"})->set_name("Relu_1");  // has it already
  add_node(graph, "Relu", {"x"}, {"c"})->set_name("relu");    // a second one
  const Model imported = import_model(model);
  std::vector<std::string> names;
  for (NodeId id : imported.graph->order()) names.push_back(imported.graph->node(id).name);
  EXPECT_THAT(names, ::testing::ElementsAre("relu", "Relu_1_1", "Relu_1", "relu_1"));
}

TEST(Import, AnInitializerThatIsListedAsInputIsAConstant) {
  onnx::ModelProto model = relu_model();
  add_floats(*model.mutable_graph(), "w", {1, 2});
  add_input(*model.mutable_graph(), "w", {2});
  const Model imported = import_model(model);
  EXPECT_EQ(imported.graph->inputs.size(), 1u);
  model.mutable_graph()->mutable_input(1)->mutable_type()->mutable_tensor_type()->set_elem_type(7);
  EXPECT_THAT(complaint(model), HasSubstr("input 'w': declared as int64[2], its initializer is float32[2]"));
}

TEST(Import, SortsNodesAndRefusesCycles) {
  onnx::ModelProto model = empty_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  add_input(graph, "x");
  add_output(graph, "y");
  add_node(graph, "Relu", {"a"}, {"y"})->set_name("last");
  add_node(graph, "Relu", {"x"}, {"a"})->set_name("first");
  EXPECT_THAT(text_of(model), HasSubstr("%a: undefined[...] = Relu(%x)\n%y: undefined[...] = Relu(%a)\n"));
  graph.mutable_node(1)->set_input(0, "y");
  EXPECT_THAT(complaint(model), AllOf(HasSubstr("'last'"), HasSubstr("cycle")));
}

TEST(Import, ListsEveryUnsupportedOperatorWithItsNodes) {
  onnx::ModelProto model = relu_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  auto* import = model.add_opset_import();
  import->set_domain("com.example");
  import->set_version(3);
  add_node(graph, "Foo", {"x"}, {"f"})->set_name("one");
  add_node(graph, "Foo", {"f"}, {"g"})->set_name("two");
  add_node(graph, "Bar", {"g"}, {"h"})->set_domain("com.example");
  EXPECT_THAT(complaint(model, ErrorCode::unsupported),
              AllOf(HasSubstr("operator 'Foo' (ai.onnx 21) is not supported: node 'one', node 'two'"),
                    HasSubstr("operator 'Bar' (com.example 3) is not supported: node 'Bar_3'")));
}

TEST(Import, FindsOperatorsByOpset) {
  onnx::ModelProto model = relu_model();
  model.mutable_graph()->mutable_node(0)->set_op_type("Gelu");
  EXPECT_NO_THROW(import_model(model));
  model.mutable_opset_import(0)->set_version(13);
  EXPECT_THAT(complaint(model, ErrorCode::unsupported),
              HasSubstr("operator 'Gelu' (ai.onnx 13) is not supported, but known in ai.onnx 20 and newer: node"));
}

TEST(Import, TellsOfAnOperatorOfTheSameNameElsewhere) {
  onnx::ModelProto model = relu_model();
  model.mutable_graph()->mutable_node(0)->set_op_type("Hint");
  EXPECT_THAT(complaint(model, ErrorCode::unsupported),
              HasSubstr("operator 'Hint' (ai.onnx 21) is not supported, but known in com.microsoft 1 and newer: node"));
}

TEST(Import, TellsHowToSaveAModelWithoutBlockedChannels) {
  onnx::ModelProto model = relu_model();
  auto* import = model.add_opset_import();
  import->set_domain("com.microsoft.nchwc");
  import->set_version(1);
  model.mutable_graph()->mutable_node(0)->set_domain("com.microsoft.nchwc");
  EXPECT_THAT(complaint(model, ErrorCode::unsupported),
              AllOf(HasSubstr("operator 'Relu' (com.microsoft.nchwc 1) is not supported"), HasSubstr("at 'extended'")));
}

TEST(Import, RefusesOperatorsThatOnlyPassesMayMake) {
  onnx::ModelProto model = relu_model();
  auto* import = model.add_opset_import();
  import->set_domain("lathe");
  import->set_version(1);
  for (const char* op : {"Reorder", "Pointwise", "Relu"}) {
    model.mutable_graph()->mutable_node(0)->set_domain("lathe");
    model.mutable_graph()->mutable_node(0)->set_op_type(op);
    EXPECT_THAT(complaint(model, ErrorCode::unsupported), HasSubstr("(lathe 1) is not supported in a file")) << op;
  }
}

TEST(Import, TheOldNameOfTheOnnxDomainIsTheSame) {
  onnx::ModelProto model = relu_model();
  model.mutable_graph()->mutable_node(0)->set_domain("ai.onnx");
  EXPECT_EQ(import_model(model).opsets.at(""), 21);
}

TEST(Import, AConstantNodeBecomesAConstant) {
  onnx::ModelProto model = relu_model();
  onnx::NodeProto* node = add_node(*model.mutable_graph(), "Constant", {}, {"c"});
  add_int(*node, "value_int", 7);
  add_output(*model.mutable_graph(), "c");
  EXPECT_THAT(text_of(model), HasSubstr("const %c: int64[] [7]\n"));
  add_int(*node, "value_float", 7);
  EXPECT_THAT(complaint(model), HasSubstr("value_float"));
}

TEST(Import, InfersTheTypeOfOldAttributes) {
  onnx::ModelProto model = relu_model();
  onnx::NodeProto* node = model.mutable_graph()->mutable_node(0);
  node->set_op_type("Softmax");
  onnx::AttributeProto* axis = add_int(*node, "axis", 1);
  axis->clear_type();
  EXPECT_THAT(text_of(model), HasSubstr("Softmax[axis=1]"));
  axis->set_type(onnx::AttributeProto::FLOAT);
  EXPECT_THAT(complaint(model), HasSubstr("has a value of type INT, its type is FLOAT"));
  axis->clear_type();
  axis->clear_i();
  EXPECT_THAT(complaint(model), HasSubstr("neither a type nor a value"));
}

struct Broken {
  std::string name;
  void (*break_it)(onnx::ModelProto&);
  std::string message;
};

void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

class BrokenModel : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenModel, IsRefusedByOneLineThatNamesTheCulprit) {
  onnx::ModelProto model = relu_model();
  GetParam().break_it(model);
  const Error error = import_error(model);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(GetParam().message), Not(HasSubstr("\n"))));
}

const Broken kBroken[] = {
    {"NoGraph", [](auto& m) { m.clear_graph(); }, "has no graph"},
    {"NoOpset", [](auto& m) { m.clear_opset_import(); }, "imports no opset"},
    {"NoIr", [](auto& m) { m.clear_ir_version(); }, "has no IR version"},
    {"NewIr", [](auto& m) { m.set_ir_version(99); }, "IR version 99 is newer"},
    {"OpsetZero", [](auto& m) { m.mutable_opset_import(0)->set_version(0); }, "opset 0 of ai.onnx"},
    {"OpsetNew", [](auto& m) { m.mutable_opset_import(0)->set_version(999); }, "opset 999 of ai.onnx is newer"},
    {"OpsetTwice", [](auto& m) { m.add_opset_import()->set_version(3); }, "imported beside another opset"},
    {"DomainNotImported", [](auto& m) { m.mutable_graph()->mutable_node(0)->set_domain("evil"); }, "domain 'evil'"},
    {"DanglingInput", [](auto& m) { m.mutable_graph()->mutable_node(0)->set_input(0, "no\nwhere"); },
     "input 'no\\nwhere' is not defined"},
    {"OutputOfNobody", [](auto& m) { m.mutable_graph()->mutable_output(0)->set_name("ghost"); }, "output 'ghost'"},
    {"OutputTwice", [](auto& m) { add_node(*m.mutable_graph(), "Relu", {"x"}, {"y"}); },
     "output 'y': the name is defined twice"},
    {"InputTwice", [](auto& m) { add_input(*m.mutable_graph(), "x"); }, "input 'x': the name is defined twice"},
    {"InputWithoutType", [](auto& m) { m.mutable_graph()->mutable_input(0)->clear_type(); }, "input 'x': has no type"},
    {"InputOfNegativeExtent",
     [](auto& m) {
       m.mutable_graph()
           ->mutable_input(0)
           ->mutable_type()
           ->mutable_tensor_type()
           ->mutable_shape()
           ->mutable_dim(0)
           ->set_dim_value(-5);
     },
     "input 'x': has an extent of -5"},
    {"InputIsSequence", [](auto& m) { m.mutable_graph()->mutable_input(0)->mutable_type()->mutable_sequence_type(); },
     "input 'x': a sequence of something that has no type that is known"},
    {"InitializerTwice",
     [](auto& m) {
       add_floats(*m.mutable_graph(), "w", {1});
       add_floats(*m.mutable_graph(), "w", {2});
     },
     "initializer 'w': the name is defined twice"},
    {"AttributeTwice",
     [](auto& m) {
       m.mutable_graph()->mutable_node(0)->set_op_type("Softmax");
       add_int(*m.mutable_graph()->mutable_node(0), "axis", 0);
       add_int(*m.mutable_graph()->mutable_node(0), "axis", 0);
     },
     "attribute 'axis': is given twice"},
    {"UnknownAttribute", [](auto& m) { add_int(*m.mutable_graph()->mutable_node(0), "bogus", 0); },
     "unknown attribute 'bogus'"},
    {"ReferenceOutsideFunction",
     [](auto& m) { add_int(*m.mutable_graph()->mutable_node(0), "axis", 0)->set_ref_attr_name("k"); },
     "attribute 'axis': refers to 'k'"},
};

INSTANTIATE_TEST_SUITE_P(Import, BrokenModel, ::testing::ValuesIn(kBroken),
                         [](const auto& tested) { return tested.param.name; });

TEST(Import, RefusesBytesThatAreNoModel) {
  const std::string good = relu_model().SerializeAsString();
  const auto code_of = [](const std::string& bytes) {
    return error_of([&] { import_model_bytes(std::make_shared<const std::string>(bytes), "", test_ops()); }).code();
  };
  EXPECT_EQ(code_of(""), ErrorCode::invalid_model);
  EXPECT_EQ(code_of("#!/bin/sh\n"), ErrorCode::invalid_model);
  EXPECT_EQ(code_of(std::string(200000, '\x0b')), ErrorCode::invalid_model);
  for (size_t size = 1; size < good.size(); ++size) {
    // Cut at a field's end, a prefix may be a smaller model; it must never be a crash.
    try {
      import_model_bytes(std::make_shared<const std::string>(good.substr(0, size)), "", test_ops());
    } catch (const Error&) {
    }
  }
}

TEST(Import, SurvivesFlippedBytes) {
  onnx::ModelProto model = relu_model();
  add_floats(*model.mutable_graph(), "w", std::vector<float>(400, 1.0f));
  onnx::NodeProto* branch = add_node(*model.mutable_graph(), "If", {"x"}, {"z"});
  add_node(*add_body(*branch, "then_branch", "t"), "Relu", {"x"}, {"t"});
  add_node(*add_body(*branch, "else_branch", "e"), "Relu", {"y"}, {"e"});
  const std::string good = model.SerializeAsString();
  for (size_t i = 0; i < good.size(); ++i) {
    for (int flip : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      try {
        import_model_bytes(std::make_shared<const std::string>(std::move(bytes)), "", test_ops());
      } catch (const Error&) {
      }
    }
  }
}

TEST(Import, AMissingFileIsAnIoError) {
  const Error error = error_of([] { import_model_file("/nowhere/model.onnx", test_ops()); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), HasSubstr("/nowhere/model.onnx"));
  EXPECT_EQ(error_of([] { import_model_file("/dev/zero", test_ops()); }).code(), ErrorCode::io);
}

}  // namespace
}  // namespace lathe::import_test
