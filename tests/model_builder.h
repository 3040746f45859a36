#pragma once
// Writes small ONNX models in a test's own words: names of values in, bytes of a model out. Shared by tests/runtime and
// tests/tools.
#include <onnx/onnx_pb.h>

#include <initializer_list>
#include <map>
#include <random>
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
  NodeBuilder& with(const char* name, int64_t value);
  NodeBuilder& with(const char* name, const char* value);
  NodeBuilder& with_float(const char* name, float value);
  NodeBuilder& with(const char* name, std::initializer_list<int64_t> values);
  NodeBuilder& with_strings(const char* name, const std::vector<std::string>& values);
  NodeBuilder& with_body(const char* name, const onnx::GraphProto& body);
  NodeBuilder& of_domain(const char* domain, int version = 1);
  // The name of the node's result.
  std::string result(int i = 0) const;
  operator std::string() const {
    return result();
  }  // NOLINT(google-explicit-constructor): a node stands for its result

 private:
  onnx::AttributeProto& attribute(const char* name, onnx::AttributeProto::AttributeType type);
  onnx::NodeProto& node_;
  std::map<std::string, int>* versions_;
};

void declare(onnx::ValueInfoProto& info, const std::string& name, DType dtype, const std::vector<Extent>& extents);

// A graph: the main one of a ModelBuilder, or the body of an If or Loop.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string prefix = "");

  std::string input(const std::string& name, const std::vector<Extent>& extents, DType dtype = DType::f32);
  std::string weight(const Tensor& tensor);
  // Seeded elements in [-scale, scale].
  std::string random_weight(const Dims& dims, float scale = 1);
  std::string longs(std::initializer_list<int64_t> values);
  // Results are named after the operator: "Relu_3", the second of several "Split_4.1".
  NodeBuilder node(const std::string& op, const std::vector<std::string>& inputs, int outputs = 1);
  void output(const std::string& name, DType dtype = DType::f32);
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
  std::string bytes(int opset = 17) const;
  Session load(const SessionOptions& options = {}) const;
  void save(const std::string& path) const;
};

Tensor random_input(const Dims& dims, unsigned seed);

}  // namespace lathe::testing
