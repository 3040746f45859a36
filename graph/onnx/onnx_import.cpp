#include "graph/onnx/onnx_import.h"

#include <onnx/onnx_pb.h>

#include <set>

#include "graph/onnx/onnx_type.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr size_t kNodesInMessage = 50;  // of one unsupported operator

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

// What the model says about a value, against what is known of it.
void add_hint(const onnx::ValueInfoProto& info, Value& value, const std::string& place) {
  if (!info.has_type()) return;
  const std::optional<TensorType> hint = type_of_onnx(info.type(), place);
  if (!hint) return;
  if (value.type.dtype != DType::undefined && value.type.dtype != hint->dtype) {
    reject(place + ": declared as " + to_string(*hint) + ", but it is " + to_string(value.type));
  }
  if (!value.type.has_rank) value.type = *hint;
}

bool extents_agree(const TensorType& declared, const Dims& dims) {
  if (!declared.has_rank) return true;
  if (declared.dims.size() != dims.size()) return false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (declared.dims[i].known() && declared.dims[i].extent != dims[i]) return false;
  }
  return true;
}

// A formal input of the main graph has a type; one of a body may leave it to inference.
TensorType input_type(const onnx::ValueInfoProto& info, const std::string& place, bool is_body) {
  if (info.has_type()) {
    if (std::optional<TensorType> type = type_of_onnx(info.type(), place)) return *std::move(type);
    if (!is_body || info.type().value_case() != onnx::TypeProto::VALUE_NOT_SET) {
      throw Error(ErrorCode::unsupported, place + ": is " + kind_of_type(info.type()) + ", which is not supported");
    }
  }
  if (!is_body) reject(place + ": has no type");
  return {};
}

}  // namespace

std::shared_ptr<Graph> GraphImporter::run(const onnx::GraphProto& proto, const Opsets& opsets) {
  functions_.expanded_nodes(proto, limits_);
  auto graph = std::make_shared<Graph>();
  GraphInProgress progress(*graph);
  Scope scope(progress);
  scope.opsets = &opsets;
  fill(proto, scope);
  if (unsupported_.empty()) return graph;
  std::string message;
  for (const auto& [op, nodes] : unsupported_) {
    message += (message.empty() ? "" : "; ") + op + ": ";
    for (size_t i = 0; i < nodes.size() && i < kNodesInMessage; ++i)
      message += (i == 0 ? "node " : ", node ") + nodes[i];
    if (nodes.size() > kNodesInMessage) message += " and " + std::to_string(nodes.size() - kNodesInMessage) + " more";
  }
  throw Error(ErrorCode::unsupported, message);
}

void GraphImporter::fill(const onnx::GraphProto& proto, Scope& scope) {
  Graph& graph = scope.target.graph;
  graph.name = proto.name();
  declare_initializers(proto, scope);
  declare_inputs(proto, scope);
  for (const onnx::NodeProto& node : proto.node()) {
    declare_outputs(node, scope);
    scope.target.reserve_node_name(node.name());
  }
  record_types(proto, scope);
  for (int i = 0; i < proto.node_size(); ++i) convert(proto.node(i), i, scope);
  set_outputs(proto, scope);
  // ONNX asks for sorted nodes; any acyclic order is taken.
  graph.sort();
}

void GraphImporter::declare_constant(const std::string& name, const std::string& kind, Tensor tensor, Scope& scope) {
  if (name.empty()) reject(scope.place + kind + " without a name");
  if (scope.declares(name)) reject(scope.place + kind + " " + in_quotes(name) + ": the name is defined twice");
  const ValueId id = scope.target.graph.add_constant(scope.target.unique_value_name(name), std::move(tensor));
  scope.target.mark_defined(id);
  scope.declare(name, id);
}

void GraphImporter::declare_initializers(const onnx::GraphProto& proto, Scope& scope) {
  for (const onnx::TensorProto& tensor : proto.initializer()) {
    declare_constant(tensor.name(), "initializer", tensors_.read(tensor, "initializer " + in_quotes(tensor.name())),
                     scope);
  }
  for (const onnx::SparseTensorProto& tensor : proto.sparse_initializer()) {
    const std::string& name = tensor.values().name();
    declare_constant(name, "sparse initializer", tensors_.read_sparse(tensor, "sparse initializer " + in_quotes(name)),
                     scope);
  }
}

void GraphImporter::declare_inputs(const onnx::GraphProto& proto, Scope& scope) {
  Graph& graph = scope.target.graph;
  const bool is_body = scope.outer != nullptr;
  std::set<std::string_view> seen;
  for (const onnx::ValueInfoProto& info : proto.input()) {
    const std::string place = "input " + in_quotes(info.name());
    if (info.name().empty()) reject("an input of graph " + in_quotes(graph.name) + " has no name");
    if (!seen.insert(info.name()).second) reject(place + ": the name is defined twice");
    const TensorType type = input_type(info, place, is_body);
    if (const std::optional<ValueId> initializer = scope.find_own(info.name())) {
      // The main graph's defaults (before IR 4: all initializers) are listed as inputs too: here they are constants.
      if (is_body) reject(place + ": the name is defined twice");
      const Tensor& constant = graph.value(*initializer).constant;
      if (type.dtype != constant.dtype() || !extents_agree(type, constant.dims())) {
        reject(place + ": declared as " + to_string(type) + ", its initializer is " +
               to_string(graph.value(*initializer).type));
      }
      continue;
    }
    const ValueId id = graph.add_value(scope.target.unique_value_name(info.name()), type);
    scope.target.mark_defined(id);
    scope.declare(info.name(), id);
    graph.inputs.push_back(id);
  }
}

void GraphImporter::declare_outputs(const onnx::NodeProto& node, Scope& scope) {
  for (const std::string& name : node.output()) {
    if (name.empty()) continue;
    if (scope.declares(name)) {
      reject(scope.place + "node " + in_quotes(node.name()) + " (" + node.op_type() + "): output " + in_quotes(name) +
             ": the name is defined twice");
    }
    const ValueId id = scope.target.graph.add_value(scope.target.unique_value_name(scope.prefix + name), {});
    scope.declare(name, id);
  }
}

void GraphImporter::record_types(const onnx::GraphProto& proto, Scope& scope) {
  Graph& graph = scope.target.graph;
  for (const onnx::ValueInfoProto& info : proto.value_info()) {
    const std::optional<ValueId> id = scope.find_own(info.name());
    if (id) add_hint(info, graph.value(*id), "value " + in_quotes(info.name()));
  }
  for (const onnx::ValueInfoProto& info : proto.output()) {
    const std::optional<ValueId> id = scope.find_own(info.name());
    if (id) add_hint(info, graph.value(*id), "output " + in_quotes(info.name()));
  }
}

void GraphImporter::set_outputs(const onnx::GraphProto& proto, Scope& scope) {
  const bool is_body = scope.outer != nullptr;
  for (const onnx::ValueInfoProto& info : proto.output()) {
    const std::string place = "output " + in_quotes(info.name());
    const std::optional<ValueId> id = scope.resolve(info.name());
    if (!id || *id == ValueId::none) reject(place + " of graph " + in_quotes(proto.name()) + ": nothing computes it");
    const bool has_type = info.has_type() && info.type().value_case() != onnx::TypeProto::VALUE_NOT_SET;
    if (has_type && !is_body && !type_of_onnx(info.type(), place)) {
      throw Error(ErrorCode::unsupported, place + ": is " + kind_of_type(info.type()) + ", which is not supported");
    }
    scope.target.graph.outputs.push_back(*id);
  }
}

}  // namespace lathe
