#pragma once
// Writes small ONNX models in a test's own words: names of values in, bytes of a model out. Shared by tests/runtime and
// tests/tools.
#include <onnx/onnx_pb.h>

#include <fstream>
#include <initializer_list>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lathe/session.h"

namespace lathe::testing {

// An extent: a number, or a name for an open one.
struct Extent {
  Extent(int64_t number) : extent(number) {}
  Extent(const char* symbol) : name(symbol) {}
  int64_t extent = -1;
  std::string name;
};

class NodeBuilder {
 public:
  NodeBuilder(onnx::NodeProto& node, std::map<std::string, int>& versions) : node_(node), versions_(&versions) {}
  NodeBuilder& with(const char* name, int64_t value) {
    attribute(name, onnx::AttributeProto::INT).set_i(value);
    return *this;
  }
  NodeBuilder& with(const char* name, const char* value) {
    attribute(name, onnx::AttributeProto::STRING).set_s(value);
    return *this;
  }
  NodeBuilder& with_float(const char* name, float value) {
    attribute(name, onnx::AttributeProto::FLOAT).set_f(value);
    return *this;
  }
  NodeBuilder& with(const char* name, std::initializer_list<int64_t> values) {
    auto& made = attribute(name, onnx::AttributeProto::INTS);
    for (int64_t value : values) made.add_ints(value);
    return *this;
  }
  NodeBuilder& with_strings(const char* name, const std::vector<std::string>& values) {
    auto& made = attribute(name, onnx::AttributeProto::STRINGS);
    for (const std::string& value : values) made.add_strings(value);
    return *this;
  }
  NodeBuilder& with_body(const char* name, const onnx::GraphProto& body) {
    *attribute(name, onnx::AttributeProto::GRAPH).mutable_g() = body;
    return *this;
  }
  NodeBuilder& of_domain(const char* domain, int version = 1) {
    node_.set_domain(domain);
    (*versions_)[domain] = version;
    return *this;
  }
  // The name of the node's result.
  std::string result(int i = 0) const { return node_.output(i); }
  operator std::string() const {
    return result();
  }  // NOLINT(google-explicit-constructor): a node stands for its result

 private:
  onnx::AttributeProto& attribute(const char* name, onnx::AttributeProto::AttributeType type) {
    onnx::AttributeProto& made = *node_.add_attribute();
    made.set_name(name);
    made.set_type(type);
    return made;
  }
  onnx::NodeProto& node_;
  std::map<std::string, int>* versions_;
};

inline void declare(onnx::ValueInfoProto& info, const std::string& name, DType dtype,
                    const std::vector<Extent>& extents) {
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

// A graph: the main one of a ModelBuilder, or the body of an If or Loop.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string prefix = "") : prefix_(std::move(prefix)) { graph_.set_name(prefix_ + "graph"); }

  std::string input(const std::string& name, const std::vector<Extent>& extents, DType dtype = DType::f32) {
    declare(*graph_.add_input(), name, dtype, extents);
    return name;
  }
  std::string weight(const Tensor& tensor) {
    onnx::TensorProto& proto = *graph_.add_initializer();
    proto.set_name(prefix_ + "weight" + std::to_string(graph_.initializer_size()));
    proto.set_data_type(static_cast<int>(tensor.dtype()));
    for (int64_t extent : tensor.dims()) proto.add_dims(extent);
    proto.set_raw_data(tensor.raw(), tensor.bytes());
    return proto.name();
  }
  // Seeded elements in [-scale, scale].
  std::string random_weight(const Dims& dims, float scale = 1) {
    Tensor tensor(DType::f32, dims);
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random_);
    return weight(tensor);
  }
  std::string longs(std::initializer_list<int64_t> values) {
    return weight(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  }
  // Results are named after the operator: "Relu_3", the second of several "Split_4.1".
  NodeBuilder node(const std::string& op, const std::vector<std::string>& inputs, int outputs = 1) {
    onnx::NodeProto& node = *graph_.add_node();
    node.set_op_type(op);
    node.set_name(prefix_ + op + "_" + std::to_string(graph_.node_size()));
    for (const std::string& input : inputs) node.add_input(input);
    for (int i = 0; i < outputs; ++i) node.add_output(node.name() + (i == 0 ? "" : "." + std::to_string(i)));
    return {node, versions_};
  }
  void output(const std::string& name, DType dtype = DType::f32) {
    onnx::ValueInfoProto& info = *graph_.add_output();
    info.set_name(name);
    info.mutable_type()->mutable_tensor_type()->set_elem_type(static_cast<int>(dtype));
  }
  const onnx::GraphProto& graph() const { return graph_; }
  const std::map<std::string, int>& versions() const { return versions_; }  // of domains but ai.onnx

 private:
  std::string prefix_;
  onnx::GraphProto graph_;
  std::map<std::string, int> versions_;
  std::mt19937 random_{1};
};

class ModelBuilder : public GraphBuilder {
 public:
  std::string bytes(int opset = 17) const {
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
  Session load(const SessionOptions& options = {}) const {
    const std::string model = bytes();
    return Session::load(std::as_bytes(std::span(model)), "", options);
  }
  void save(const std::string& path) const { std::ofstream(path, std::ios::binary) << bytes(); }
};

inline Tensor random_input(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
  return tensor;
}

}  // namespace lathe::testing
