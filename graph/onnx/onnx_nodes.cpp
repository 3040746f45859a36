// GraphImporter: nodes, their attributes and their bodies.
#include <onnx/onnx_pb.h>

#include <algorithm>

#include "graph/onnx/onnx_import.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr int kNewestKnownOpset = 1000;  // an entry that lasts beyond has no end

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

std::string place_of(const Scope& scope, const onnx::NodeProto& proto, const std::string& name) {
  return scope.place + "node " + in_quotes(name) + " (" + proto.op_type() + ")";
}

// What to say beside "not supported": the opsets, or the other domains, in which the operator is known. "" for none.
// Its operators rely on what the passes that make them have checked; a file promises nothing.
constexpr std::string_view kOwnDomain = "lathe";

std::string known_elsewhere(const OpLookup& ops, const std::string& domain, const std::string& name) {
  // Weights lie in an order that the model does not tell.
  if (domain == "com.microsoft.nchwc")
    return " (ONNX Runtime writes it at its optimization level 'all', for one kind of CPU: save the model at "
           "'extended')";
  if (domain == kOwnDomain) return " in a file (this domain is Lathe's own)";
  std::string text;
  const auto list = [&](const std::string& where) {
    for (const OpVersions& range : ops.versions_of(where, name)) {
      text += (text.empty() ? ", but known in " : ", ") + shown_domain(where) + " " + std::to_string(range.since);
      if (range.until < kNewestKnownOpset) text += " to " + std::to_string(range.until);
      if (range.until >= kNewestKnownOpset) text += " and newer";
    }
  };
  list(domain);
  if (!text.empty()) return text;
  for (const char* other : {"", "ai.onnx.ml", "com.microsoft"}) {
    if (domain != other) list(other);
  }
  return text;
}

// The elements that a Constant node stands for; its attribute has one of eight names.
Tensor constant_of(const Attributes& attributes, const std::string& place) {
  Tensor tensor;
  int count = 0;
  for (const auto& [name, value] : attributes) {
    ++count;
    if (name == "value" || name == "sparse_value") tensor = attributes.get_tensor(name);
    if (name == "value_int") tensor = Tensor::scalar<int64_t>(attributes.get_int(name, 0));
    if (name == "value_float") tensor = Tensor::scalar<float>(attributes.get_float(name, 0));
    if (name == "value_string") tensor = Tensor::scalar<std::string>(attributes.get_string(name, ""));
    if (name == "value_ints") {
      const std::vector<int64_t> items = attributes.get_ints(name);
      tensor = Tensor::from<int64_t>({static_cast<int64_t>(items.size())}, std::span<const int64_t>(items));
    }
    if (name == "value_floats") {
      const std::vector<float> items = attributes.get_floats(name);
      tensor = Tensor::from<float>({static_cast<int64_t>(items.size())}, std::span<const float>(items));
    }
    if (name == "value_strings") {
      const std::vector<std::string> items = attributes.get_strings(name);
      tensor = Tensor::from<std::string>({static_cast<int64_t>(items.size())}, std::span<const std::string>(items));
    }
    if (!tensor.defined()) reject(place + ": unknown attribute " + in_quotes(name));
  }
  if (count != 1) reject(place + ": has " + std::to_string(count) + " values, expected 1");
  return tensor;
}

}  // namespace

void GraphImporter::convert(const onnx::NodeProto& proto, int index, Scope& scope) {
  if (proto.op_type().empty()) reject(scope.place + "node " + in_quotes(proto.name()) + ": has no operator");
  const bool is_unnamed = proto.name().empty();
  const std::string wanted = scope.prefix + (is_unnamed ? proto.op_type() + "_" + std::to_string(index) : proto.name());
  const std::string name = scope.target.unique_node_name(wanted, is_unnamed || scope.function != nullptr);
  if (scope.function != nullptr) spend(2 * name.size());
  if (const Function* function = functions_.find(proto)) {
    expand(*function, proto, name, scope);
    return;
  }
  const std::string domain = domain_of(proto.domain());
  const auto version = scope.opsets->find(domain);
  if (version == scope.opsets->end()) {
    reject(place_of(scope, proto, name) + ": no opset of domain " + in_quotes(shown_domain(domain)) + " is imported");
  }
  Node node;
  node.name = name;
  node.version = version->second;
  if (domain != kOwnDomain) node.op = ops_.find(domain, proto.op_type(), node.version);
  convert_operator(proto, std::move(node), scope);
}

void GraphImporter::convert_operator(const onnx::NodeProto& proto, Node node, Scope& scope) {
  std::vector<Body> bodies;
  read_attributes(proto, node, scope, bodies);
  if (proto.op_type() == "Constant" && domain_of(proto.domain()).empty()) {
    convert_constant(proto, node, scope);
    return;
  }
  resolve_inputs(proto, node, scope);
  close_bodies(bodies, node);
  for (const std::string& name : proto.output()) {
    node.outputs.push_back(name.empty() ? ValueId::none : *scope.find_own(name));
    if (!name.empty()) scope.target.mark_defined(node.outputs.back());
  }
  if (node.op == nullptr) {
    report_unsupported(proto, node);
  } else {
    scope.target.graph.add_node(std::move(node));
  }
}

// A Constant node is a constant, so that everything later finds elements in one place.
void GraphImporter::convert_constant(const onnx::NodeProto& proto, const Node& node, Scope& scope) {
  const std::string place = place_of(scope, proto, node.name);
  if (proto.input_size() != 0) reject(place + ": has inputs, expected none");
  if (proto.output_size() != 1) {
    reject(place + ": has " + std::to_string(proto.output_size()) + " outputs, expected 1");
  }
  Tensor tensor = constant_of(node.attributes, place);
  if (proto.output(0).empty()) return;
  const ValueId id = *scope.find_own(proto.output(0));
  Value& value = scope.target.graph.value(id);
  if (value.type.dtype != DType::undefined && value.type.dtype != tensor.dtype()) {
    reject(place + ": output " + in_quotes(value.name) + " is declared as " + to_string(value.type) + ", but it is " +
           std::string(name_of(tensor.dtype())));
  }
  value.type = TensorType::of(tensor.dtype(), tensor.dims());
  value.constant = std::move(tensor);
  scope.target.mark_defined(id);
}

void GraphImporter::report_unsupported(const onnx::NodeProto& proto, const Node& node) {
  const std::string domain = domain_of(proto.domain());
  const std::string op = "operator " + in_quotes(proto.op_type()) + " (" + shown_domain(domain) + " " +
                         std::to_string(node.version) + ") is not supported" +
                         known_elsewhere(ops_, domain, proto.op_type());
  unsupported_[op].push_back(in_quotes(node.name));
}

void GraphImporter::resolve_inputs(const onnx::NodeProto& proto, Node& node, Scope& scope) {
  for (const std::string& name : proto.input()) {
    if (name.empty()) {
      node.inputs.push_back(ValueId::none);
      continue;
    }
    const std::optional<ValueId> id = scope.resolve(name);
    if (!id) {
      reject(place_of(scope, proto, node.name) + ": input " + in_quotes(name) + " is not defined" +
             (scope.outer != nullptr ? " before it is used" : ""));
    }
    node.inputs.push_back(*id);
  }
  // Absent inputs at the end say nothing, unless the operator counts them.
  const size_t kept = node.op != nullptr ? static_cast<size_t>(node.op->min_inputs) : 0;
  while (node.inputs.size() > kept && node.inputs.back() == ValueId::none) node.inputs.pop_back();
}

void GraphImporter::read_attributes(const onnx::NodeProto& proto, Node& node, Scope& scope, std::vector<Body>& bodies) {
  const BodyReader read_body = [&](const onnx::GraphProto& body) { return import_body(body, scope, bodies); };
  for (const onnx::AttributeProto& attribute : proto.attribute()) {
    const std::string place = place_of(scope, proto, node.name) + ": attribute " + in_quotes(attribute.name());
    if (attribute.name().empty()) reject(place + ": has no name");
    if (node.attributes.has(attribute.name())) reject(place + ": is given twice");
    read_attribute(attribute, place, node, scope, read_body);
  }
}

void GraphImporter::read_attribute(const onnx::AttributeProto& proto, const std::string& place, Node& node,
                                   Scope& scope, const BodyReader& read_body) {
  if (proto.ref_attr_name().empty()) {
    Attribute value = attribute_of(proto, place, tensors_, read_body);
    if (scope.function != nullptr) spend(copied_bytes(value));
    node.attributes.set(proto.name(), std::move(value));
    return;
  }
  const std::string& referred = proto.ref_attr_name();
  if (scope.function == nullptr || !scope.function->attributes.count(referred)) {
    reject(place + ": refers to " + in_quotes(referred) + ", which is no attribute of a function around it");
  }
  // One that the call left out and that has no default leaves the node's attribute out too.
  const auto bound = scope.bindings->find(referred);
  if (bound == scope.bindings->end()) return;
  spend(copied_bytes(bound->second));
  node.attributes.set(proto.name(), bound->second);
}

std::shared_ptr<const Graph> GraphImporter::import_body(const onnx::GraphProto& proto, Scope& outer,
                                                        std::vector<Body>& bodies) {
  if (outer.body_depth >= limits_.subgraph_depth) {
    throw Error(ErrorCode::limit, "graph " + in_quotes(proto.name()) + ": graphs are nested more than " +
                                      std::to_string(limits_.subgraph_depth) + " deep");
  }
  Body body;
  body.graph = std::make_shared<Graph>();
  body.progress = std::make_unique<GraphInProgress>(*body.graph);
  Scope scope(*body.progress);
  scope.outer = &outer;
  scope.opsets = outer.opsets;
  scope.function = outer.function;
  scope.bindings = outer.bindings;
  scope.place = outer.place;
  scope.function_depth = outer.function_depth;
  scope.body_depth = outer.body_depth + 1;
  fill(proto, scope);
  bodies.push_back(std::move(body));
  return bodies.back().graph;
}

// All bodies of a node end with the same inputs: whatever any of them uses from outside.
void GraphImporter::close_bodies(std::vector<Body>& bodies, Node& node) {
  std::vector<std::pair<ValueId, const Value*>> captured;
  for (const Body& body : bodies) {
    for (const GraphInProgress::Capture& capture : body.progress->captures) {
      const auto is_same = [&](const auto& other) { return other.first == capture.outer; };
      if (std::none_of(captured.begin(), captured.end(), is_same)) {
        captured.emplace_back(capture.outer, &body.graph->value(capture.inner));
      }
    }
  }
  std::vector<Value> templates;
  for (const auto& [outer, inner] : captured) {
    templates.push_back(*inner);
    node.inputs.push_back(outer);
  }
  node.captures = static_cast<int>(captured.size());
  for (Body& body : bodies) {
    for (size_t i = 0; i < captured.size(); ++i) {
      body.graph->inputs.push_back(body.progress->capture(captured[i].first, templates[i]));
    }
  }
}

}  // namespace lathe
