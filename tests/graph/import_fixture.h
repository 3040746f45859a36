#pragma once
// A handful of operators, and models built through the protobuf classes: the importer's tests need no ops/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <memory>
#include <string>
#include <vector>

#include "graph/model.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "lathe/error.h"

namespace lathe::import_test {

class TestOps : public OpLookup {
 public:
  TestOps();
  const OpSchema* find(std::string_view domain, std::string_view name, int version) const override;
  std::vector<OpVersions> versions_of(std::string_view domain, std::string_view name) const override;

 private:
  std::vector<OpSchema> schemas_;
};

const TestOps& test_ops();

// IR 10, opset 21, one graph named "g".
onnx::ModelProto empty_model();
onnx::NodeProto* add_node(onnx::GraphProto& graph, const std::string& op, const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs);
onnx::NodeProto* add_node(onnx::FunctionProto& function, const std::string& op, const std::vector<std::string>& inputs,
                          const std::vector<std::string>& outputs);
onnx::AttributeProto* add_int(onnx::NodeProto& node, const std::string& name, int64_t value);
// Names of a body: no inputs, output `output`.
onnx::GraphProto* add_body(onnx::NodeProto& node, const std::string& attribute, const std::string& output);
// Extents of -1 become unknown, of -2 the symbol "N".
void declare(onnx::ValueInfoProto& info, const std::string& name, int type, const std::vector<int64_t>& dims);
void add_input(onnx::GraphProto& graph, const std::string& name, const std::vector<int64_t>& dims = {2, 2});
void add_output(onnx::GraphProto& graph, const std::string& name);
onnx::TensorProto* add_floats(onnx::GraphProto& graph, const std::string& name, const std::vector<float>& elements);
onnx::FunctionProto* add_function(onnx::ModelProto& model, const std::string& name,
                                  const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);
// x -> Relu -> y
onnx::ModelProto relu_model();

Model import_model(const onnx::ModelProto& model, const Limits& limits = {});
std::string text_of(const onnx::ModelProto& model);
// The error that importing gives; fails the test when there is none.
Error import_error(const onnx::ModelProto& model, const Limits& limits = {});

// A wire field of length-delimited type, for what the packaged schema lacks.
void add_unknown_bytes(google::protobuf::Message& message, int field, const std::string& bytes);

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::internal, "no error");
}

}  // namespace lathe::import_test
