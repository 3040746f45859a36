#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx/external_data.h"
#include "graph/op_schema.h"
#include "src/base/limits.h"

namespace lathe {

// A model as read: functions expanded, captures explicit, verified.
struct Model {
  std::string source;  // path or "<memory>", for messages
  std::string producer;
  int64_t ir_version = 0;
  std::map<std::string, int> opsets;  // by domain; ai.onnx is ""
  std::shared_ptr<Graph> graph;
  // What the weights lie in; empty for a model from memory without external data.
  std::vector<std::shared_ptr<const MappedFile>> files;
};

// Reads ONNX bytes. Large weights stay in the mapped file (or in the caller's copy) and are never copied.
// Throws Error: io, invalid_model, limit; unsupported lists every operator that `ops` lacks, with node names.
Model import_model_file(const std::string& path, const OpLookup& ops, const Limits& limits = {});
Model import_model_bytes(std::shared_ptr<const std::string> bytes, const std::string& base_directory,
                         const OpLookup& ops, const Limits& limits = {});

// One TensorProto file (*.pb), as in the conformance suite. Throws Error(io), Error(invalid_argument).
Tensor read_tensor_proto(const std::string& path);
void write_tensor_proto(const std::string& path, const std::string& name, const Tensor& tensor);
// One file of whatever proto holds values of this type: SequenceProto, OptionalProto, MapProto, else TensorProto.
// Values that are no tensors are boxed (src/base/box.h).
Tensor read_value_proto(const std::string& path, const TensorType& type);
void write_value_proto(const std::string& path, const std::string& name, const Tensor& value, const TensorType& type);

}  // namespace lathe
