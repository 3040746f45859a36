#include "tests/model_builder.h"

#include <fstream>
#include <span>

namespace lathe::testing {

NodeBuilder& NodeBuilder::with(const char* name, int64_t value) {
  attribute(name, onnx::AttributeProto::INT).set_i(value);
  return *this;
}

NodeBuilder& NodeBuilder::with(const char* name, const char* value) {
  attribute(name, onnx::AttributeProto::STRING).set_s(value);
  return *this;
}

NodeBuilder& NodeBuilder::with_float(const char* name, float value) {
  attribute(name, onnx::AttributeProto::FLOAT).set_f(value);
  return *this;
}

NodeBuilder& NodeBuilder::with(const char* name, std::initializer_list<int64_t> values) {
  auto& made = attribute(name, onnx::AttributeProto::INTS);
  for (int64_t value : values) made.add_ints(value);
  return *this;
}

NodeBuilder& NodeBuilder::with_strings(const char* name, const std::vector<std::string>& values) {
  auto& made = attribute(name, onnx::AttributeProto::STRINGS);
  for (const std::string& value : values) made.add_strings(value);
  return *this;
}

NodeBuilder& NodeBuilder::with_body(const char* name, const onnx::GraphProto& body) {
  *attribute(name, onnx::AttributeProto::GRAPH).mutable_g() = body;
  return *this;
}

NodeBuilder& NodeBuilder::of_domain(const char* domain, int version) {
  node_.set_domain(domain);
  (*versions_)[domain] = version;
  return *this;
}

std::string NodeBuilder::result(int i) const { return node_.output(i); }

onnx::AttributeProto& NodeBuilder::attribute(const char* name, onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto& made = *node_.add_attribute();
  made.set_name(name);
  made.set_type(type);
  return made;
}

void declare(onnx::ValueInfoProto& info, const std::string& name, DType dtype, const std::vector<Extent>& extents) {
  info.set_name(name);
  auto& type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(static_cast<int>(dtype));
  type.mutable_shape();
  for (const Extent& extent : extents) {
    auto& dim = *type.mutable_shape()->add_dim();
    if (extent.extent >= 0) dim.set_dim_value(extent.extent);
    if (!extent.name.empty()) dim.set_dim_param(extent.name);
  }
}

GraphBuilder::GraphBuilder(std::string prefix) : prefix_(std::move(prefix)) { graph_.set_name(prefix_ + "graph"); }

std::string GraphBuilder::input(const std::string& name, const std::vector<Extent>& extents, DType dtype) {
  declare(*graph_.add_input(), name, dtype, extents);
  return name;
}

std::string GraphBuilder::weight(const Tensor& tensor) {
  onnx::TensorProto& proto = *graph_.add_initializer();
  proto.set_name(prefix_ + "weight" + std::to_string(graph_.initializer_size()));
  proto.set_data_type(static_cast<int>(tensor.dtype()));
  for (int64_t extent : tensor.dims()) proto.add_dims(extent);
  proto.set_raw_data(tensor.raw(), tensor.bytes());
  return proto.name();
}

std::string GraphBuilder::random_weight(const Dims& dims, float scale) {
  Tensor tensor(DType::f32, dims);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random_);
  return weight(tensor);
}

std::string GraphBuilder::longs(std::initializer_list<int64_t> values) {
  return weight(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

NodeBuilder GraphBuilder::node(const std::string& op, const std::vector<std::string>& inputs, int outputs) {
  onnx::NodeProto& node = *graph_.add_node();
  node.set_op_type(op);
  node.set_name(prefix_ + op + "_" + std::to_string(graph_.node_size()));
  for (const std::string& input : inputs) node.add_input(input);
  for (int i = 0; i < outputs; ++i) node.add_output(node.name() + (i == 0 ? "" : "." + std::to_string(i)));
  return {node, versions_};
}

void GraphBuilder::output(const std::string& name, DType dtype) {
  onnx::ValueInfoProto& info = *graph_.add_output();
  info.set_name(name);
  info.mutable_type()->mutable_tensor_type()->set_elem_type(static_cast<int>(dtype));
}

std::string ModelBuilder::bytes(int opset) const {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(opset);
  for (const auto& [domain, version] : versions()) {
    auto& import = *model.add_opset_import();
    import.set_domain(domain);
    import.set_version(version);
  }
  *model.mutable_graph() = graph();
  return model.SerializeAsString();
}

Session ModelBuilder::load(const SessionOptions& options) const {
  const std::string model = bytes();
  return Session::load(std::as_bytes(std::span(model)), "", options);
}

void ModelBuilder::save(const std::string& path) const { std::ofstream(path, std::ios::binary) << bytes(); }

Tensor random_input(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
  return tensor;
}

}  // namespace lathe::testing
