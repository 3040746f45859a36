// import_model_*: from a file or bytes to a verified Model.
#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>
#include <onnx/onnx_pb.h>

#include <limits>

#include "graph/model.h"
#include "graph/onnx/external_data.h"
#include "graph/onnx/onnx_functions.h"
#include "graph/onnx/onnx_import.h"
#include "graph/onnx/onnx_tensor.h"
#include "graph/onnx/onnx_wire.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr int64_t kNewestIr = 14;
constexpr int64_t kFirstIrWithOpsets = 3;
// GraphProto, NodeProto and AttributeProto for each level of bodies, and what a type or tensor needs at the bottom.
constexpr int kMessagesPerBody = 3;
constexpr int kMessagesAtBottom = 64;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

void parse(const std::string& bytes, const Limits& limits, onnx::ModelProto& proto) {
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(bytes.data()),
                                                static_cast<int>(bytes.size()));
  stream.SetTotalBytesLimit(std::numeric_limits<int>::max());
  stream.SetRecursionLimit(limits.subgraph_depth * kMessagesPerBody + kMessagesAtBottom);
  if (!proto.ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage()) {
    reject("not an ONNX file: its bytes are malformed or nested too deeply");
  }
}

Opsets check_header(const onnx::ModelProto& proto) {
  if (proto.ir_version() < 1) reject("has no IR version (is this an ONNX model?)");
  if (proto.ir_version() > kNewestIr) {
    throw Error(ErrorCode::unsupported, "IR version " + std::to_string(proto.ir_version()) +
                                            " is newer than the newest that is known, " + std::to_string(kNewestIr));
  }
  if (!proto.has_graph()) reject("has no graph");
  Opsets opsets = opsets_of(proto.opset_import(), "opset_import");
  if (proto.ir_version() < kFirstIrWithOpsets && opsets.empty()) opsets[""] = 1;
  if (opsets.empty()) reject("imports no opset (opset_import is empty)");
  return opsets;
}

Model import_from(const std::string& source, TensorReader::Source bytes, const OpLookup& ops, const Limits& limits) {
  try {
    wire::Skeleton skeleton = wire::skeleton_of_model(bytes.bytes, limits.subgraph_depth + 1);
    bytes.payloads = std::move(skeleton.payloads);
    google::protobuf::Arena arena;
    auto* proto = google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
    parse(skeleton.bytes, limits, *proto);
    skeleton.bytes = {};

    Model model;
    model.source = source;
    model.producer = proto->producer_name();
    model.ir_version = proto->ir_version();
    model.opsets = check_header(*proto);
    const FunctionTable functions(*proto);
    TensorReader tensors(std::move(bytes), limits);
    model.graph = GraphImporter(ops, functions, tensors, limits).run(proto->graph(), model.opsets);
    model.files = tensors.external_files();
    verify(*model.graph);
    return model;
  } catch (const Error& error) {
    throw Error(error.code(), in_quotes(source) + ": " + error.what());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::limit, in_quotes(source) + ": not enough memory to load the model");
  }
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Model import_model_file(const std::string& path, const OpLookup& ops, const Limits& limits) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path, limits.model_bytes);
  TensorReader::Source source;
  source.owner = file;
  source.bytes = {file->bytes().data(), file->bytes().size()};
  source.is_padded = true;
  source.directory = folder_of(path);
  Model model = import_from(path, std::move(source), ops, limits);
  model.files.push_back(file);
  return model;
}

Model import_model_bytes(std::shared_ptr<const std::string> bytes, const std::string& base_directory,
                         const OpLookup& ops, const Limits& limits) {
  if (bytes->size() > limits.model_bytes) {
    throw Error(ErrorCode::limit, "the model has " + std::to_string(bytes->size()) + " bytes, the limit is " +
                                      std::to_string(limits.model_bytes));
  }
  TensorReader::Source source;
  source.bytes = *bytes;
  source.owner = std::move(bytes);
  source.directory = base_directory;
  return import_from("<memory>", std::move(source), ops, limits);
}

}  // namespace lathe
