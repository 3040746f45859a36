// GraphImporter: calls of model-local functions, expanded into the graph of the call.
#include <onnx/onnx_pb.h>

#include "graph/onnx/onnx_import.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr size_t kMostCopiedBytes = size_t{1} << 30;
constexpr size_t kLongestPrefix = 200;
constexpr int kNewestIdentity = 28;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

}  // namespace

void GraphImporter::spend(size_t bytes) {
  copied_bytes_ += bytes;
  if (copied_bytes_ > kMostCopiedBytes) {
    throw Error(ErrorCode::limit, "expanding the model's functions copies more than 1 GiB of names and attributes");
  }
}

void GraphImporter::expand(const Function& function, const onnx::NodeProto& call, const std::string& name,
                           Scope& scope) {
  const std::string place = scope.place + "node " + in_quotes(name) + " (" + call.op_type() + ")";
  if (scope.function_depth >= limits_.function_depth) {
    throw Error(ErrorCode::limit, place + ": functions are nested too deeply");
  }
  const std::map<std::string, Attribute> bindings = bind(function, call, place, scope);
  Scope inner(scope.target);
  inner.opsets = &function.opsets;
  inner.function = &function;
  inner.bindings = &bindings;
  inner.place = "function " + in_quotes(function.proto->name()) + ": ";
  inner.prefix = (name.size() <= kLongestPrefix ? name : name.substr(name.size() - kLongestPrefix)) + "/";
  inner.function_depth = scope.function_depth + 1;
  inner.body_depth = scope.body_depth;
  declare_formals(function, call, place, scope, inner);
  for (int i = 0; i < function.proto->node_size(); ++i) convert(function.proto->node(i), i, inner);

  for (int i = 0; i < call.output_size(); ++i) {
    if (call.output(i).empty()) continue;
    const ValueId actual = *scope.find_own(call.output(i));
    const std::string& formal = function.proto->output(i);
    const std::optional<ValueId> made = inner.find_own(formal);
    if (!made) reject(inner.place + "output " + in_quotes(formal) + ": nothing computes it");
    if (*made != actual) pass_through(formal, actual, inner);
  }
}

std::map<std::string, Attribute> GraphImporter::bind(const Function& function, const onnx::NodeProto& call,
                                                     const std::string& place, Scope& scope) {
  const BodyReader no_body = [&](const onnx::GraphProto&) -> std::shared_ptr<const Graph> {
    throw Error(ErrorCode::unsupported, place + ": graphs as attributes of a function are not supported");
  };
  Node given;
  for (const onnx::AttributeProto& attribute : call.attribute()) {
    const std::string at = place + ": attribute " + in_quotes(attribute.name());
    if (!function.attributes.count(attribute.name())) reject(at + " is unknown to the function");
    if (given.attributes.has(attribute.name())) reject(at + " is given twice");
    read_attribute(attribute, at, given, scope, no_body);
  }
  for (const auto& [name, value] : function.defaults) {
    if (given.attributes.has(name)) continue;
    const std::string at = "function " + in_quotes(function.proto->name()) + ": attribute " + in_quotes(name);
    given.attributes.set(name, attribute_of(*value, at, tensors_, no_body));
  }
  return {given.attributes.begin(), given.attributes.end()};
}

void GraphImporter::declare_formals(const Function& function, const onnx::NodeProto& call, const std::string& place,
                                    Scope& caller, Scope& inner) {
  const onnx::FunctionProto& proto = *function.proto;
  if (call.input_size() > proto.input_size() || call.output_size() > proto.output_size()) {
    reject(place + ": the call has " + std::to_string(call.input_size()) + " inputs and " +
           std::to_string(call.output_size()) + " outputs, the function has " + std::to_string(proto.input_size()) +
           " and " + std::to_string(proto.output_size()));
  }
  for (int i = 0; i < proto.input_size(); ++i) {
    ValueId actual = ValueId::none;
    if (i < call.input_size() && !call.input(i).empty()) {
      const std::optional<ValueId> found = caller.resolve(call.input(i));
      if (!found) reject(place + ": input " + in_quotes(call.input(i)) + " is not defined");
      actual = *found;
    }
    if (!inner.declare(proto.input(i), actual)) {
      reject(inner.place + "input " + in_quotes(proto.input(i)) + ": the name is defined twice");
    }
  }
  std::set<std::string_view> made;
  for (const onnx::NodeProto& node : proto.node()) made.insert(node.output().begin(), node.output().end());
  // A formal output that a node makes is the caller's value itself.
  for (int i = 0; i < call.output_size(); ++i) {
    const std::string& formal = proto.output(i);
    if (call.output(i).empty() || !made.count(formal)) continue;
    if (!inner.declares(formal)) inner.declare(formal, *caller.find_own(call.output(i)));
  }
  std::set<std::string_view> declared;
  for (const onnx::NodeProto& node : proto.node()) {
    for (const std::string& name : node.output()) {
      if (name.empty()) continue;
      const bool is_formal_input = std::find(proto.input().begin(), proto.input().end(), name) != proto.input().end();
      if (is_formal_input || !declared.insert(name).second) {
        reject(inner.place + "output " + in_quotes(name) + " of node " + in_quotes(node.name()) + " (" +
               node.op_type() + "): the name is defined twice");
      }
      if (inner.declares(name)) continue;
      const std::string unique = inner.target.unique_value_name(inner.prefix + name);
      spend(2 * unique.size());
      inner.declare(name, inner.target.graph.add_value(unique, {}));
    }
  }
}

// The function gives the caller a value that has another name already: one of its inputs, or an output given twice.
void GraphImporter::pass_through(const std::string& name, ValueId actual, Scope& inner) {
  const auto opset = inner.opsets->find("");
  Node node;
  node.version = opset != inner.opsets->end() ? opset->second : kNewestIdentity;
  node.op = &ops_.require("", "Identity", node.version);
  node.name = inner.target.unique_node_name(inner.prefix + "Identity", true);
  const ValueId source = *inner.find_own(name);
  if (source == ValueId::none) reject(inner.place + "output " + in_quotes(name) + ": nothing computes it");
  node.inputs = {source};
  node.outputs = {actual};
  inner.target.graph.add_node(std::move(node));
  inner.target.mark_defined(actual);
}

}  // namespace lathe
