#include "tests/graph/import_fixture.h"

namespace lathe::import_test {
namespace {

using Kind = AttributeSpec::Kind;

OpSchema schema(std::string_view name, int inputs, std::vector<AttributeSpec> attributes = {}) {
  OpSchema result;
  result.name = name;
  result.min_inputs = result.max_inputs = inputs;
  result.attributes = std::move(attributes);
  return result;
}

}  // namespace

TestOps::TestOps() {
  schemas_ = {schema("Relu", 1),
              schema("Add", 2),
              schema("Identity", 1),
              schema("Softmax", 1, {{"axis", Kind::integer}}),
              schema("If", 1, {{"then_branch", Kind::graph, true}, {"else_branch", Kind::graph, true}}),
              schema("Loop", 2, {{"body", Kind::graph, true}})};
  schemas_.back().max_inputs = -1;
  schemas_.back().max_outputs = -1;
  schemas_.push_back(schema("Concat", -1, {{"axis", Kind::integer, true}}));
  schemas_.back().min_inputs = 1;
  schemas_.push_back(schema("Clip", 3));
  schemas_.back().min_inputs = 1;
  schemas_.push_back(schema("Gelu", 1));
  schemas_.back().since = 20;
  schemas_.push_back(schema("Hint", 1));
  schemas_.back().domain = "com.microsoft";
}

const OpSchema* TestOps::find(std::string_view domain, std::string_view name, int version) const {
  for (const OpSchema& each : schemas_) {
    if (each.domain == domain && each.name == name && each.since <= version && version <= each.until) return &each;
  }
  return nullptr;
}

std::vector<OpVersions> TestOps::versions_of(std::string_view domain, std::string_view name) const {
  std::vector<OpVersions> versions;
  for (const OpSchema& each : schemas_) {
    if (each.domain == domain && each.name == name) versions.push_back({each.since, each.until});
  }
  return versions;
}

const TestOps& test_ops() {
  static const TestOps ops;
  return ops;
}

onnx::ModelProto empty_model() {
  onnx::ModelProto model;
  model.set_ir_version(10);
  model.add_opset_import()->set_version(21);
  model.mutable_graph()->set_name("g");
  return model;
}

namespace {

onnx::NodeProto* fill_node(onnx::NodeProto* node, const std::string& op, const std::vector<std::string>& inputs,
                           const std::vector<std::string>& outputs) {
  node->set_op_type(op);
  for (const std::string& name : inputs) node->add_input(name);
  for (const std::string& name : outputs) node->add_output(name);
  return node;
}

}  // namespace

onnx::NodeProto* add_node(onnx::GraphProto& graph, const std::string& op, const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs) {
  return fill_node(graph.add_node(), op, inputs, outputs);
}

onnx::NodeProto* add_node(onnx::FunctionProto& function, const std::string& op, const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs) {
  return fill_node(function.add_node(), op, inputs, outputs);
}

onnx::AttributeProto* add_int(onnx::NodeProto& node, const std::string& name, int64_t value) {
  onnx::AttributeProto* attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(onnx::AttributeProto::INT);
  attribute->set_i(value);
  return attribute;
}

onnx::GraphProto* add_body(onnx::NodeProto& node, const std::string& attribute, const std::string& output) {
  onnx::AttributeProto* added = node.add_attribute();
  added->set_name(attribute);
  added->set_type(onnx::AttributeProto::GRAPH);
  added->mutable_g()->set_name(attribute);
  added->mutable_g()->add_output()->set_name(output);
  return added->mutable_g();
}

void declare(onnx::ValueInfoProto& info, const std::string& name, int type, const std::vector<int64_t>& dims) {
  info.set_name(name);
  auto* tensor = info.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (int64_t extent : dims) {
    auto* dim = tensor->mutable_shape()->add_dim();
    if (extent == -2) dim->set_dim_param("N");
    if (extent != -2) dim->set_dim_value(extent);
  }
}

void add_input(onnx::GraphProto& graph, const std::string& name, const std::vector<int64_t>& dims) {
  declare(*graph.add_input(), name, onnx::TensorProto::FLOAT, dims);
}

void add_output(onnx::GraphProto& graph, const std::string& name) { graph.add_output()->set_name(name); }

onnx::TensorProto* add_floats(onnx::GraphProto& graph, const std::string& name, const std::vector<float>& elements) {
  onnx::TensorProto* tensor = graph.add_initializer();
  tensor->set_name(name);
  tensor->set_data_type(onnx::TensorProto::FLOAT);
  tensor->add_dims(static_cast<int64_t>(elements.size()));
  for (float element : elements) tensor->add_float_data(element);
  return tensor;
}

onnx::FunctionProto* add_function(onnx::ModelProto& model, const std::string& name,
                                  const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  bool imports_local = false;
  for (const auto& import : model.opset_import()) imports_local = imports_local || import.domain() == "local";
  if (!imports_local) {
    auto* import = model.add_opset_import();
    import->set_domain("local");
    import->set_version(1);
  }
  onnx::FunctionProto* function = model.add_functions();
  function->set_name(name);
  function->set_domain("local");
  function->add_opset_import()->set_version(21);
  for (const std::string& input : inputs) function->add_input(input);
  for (const std::string& output : outputs) function->add_output(output);
  return function;
}

onnx::ModelProto relu_model() {
  onnx::ModelProto model = empty_model();
  add_input(*model.mutable_graph(), "x");
  add_output(*model.mutable_graph(), "y");
  add_node(*model.mutable_graph(), "Relu", {"x"}, {"y"})->set_name("relu");
  return model;
}

Model import_model(const onnx::ModelProto& model, const Limits& limits) {
  return import_model_bytes(std::make_shared<const std::string>(model.SerializeAsString()), "", test_ops(), limits);
}

std::string text_of(const onnx::ModelProto& model) { return to_text(*import_model(model).graph); }

Error import_error(const onnx::ModelProto& model, const Limits& limits) {
  return error_of([&] { import_model(model, limits); });
}

void add_unknown_bytes(google::protobuf::Message& message, int field, const std::string& bytes) {
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(field, bytes);
}

}  // namespace lathe::import_test
