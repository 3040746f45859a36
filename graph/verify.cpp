#include "graph/verify.h"

#include <unordered_set>

#include "graph/op_schema.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr int kDeepestBody = 256;  // far above Limits::subgraph_depth; protects the recursion

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

bool fits(AttributeSpec::Kind kind, const Attribute& value) {
  using Kind = AttributeSpec::Kind;
  switch (kind) {
    case Kind::integer:
      return std::holds_alternative<int64_t>(value);
    case Kind::real:
      return std::holds_alternative<float>(value);
    case Kind::string:
      return std::holds_alternative<std::string>(value);
    case Kind::tensor:
      return std::holds_alternative<Tensor>(value);
    case Kind::graph:
      return std::holds_alternative<std::shared_ptr<const Graph>>(value);
    case Kind::integers:
      return std::holds_alternative<std::vector<int64_t>>(value);
    case Kind::reals:
      return std::holds_alternative<std::vector<float>>(value);
    case Kind::strings:
      return std::holds_alternative<std::vector<std::string>>(value);
    case Kind::type:
      return std::holds_alternative<TensorType>(value);
    case Kind::any:
      return true;
  }
  return false;
}

// ONNX wants two inputs of a Loop, trip count and condition, and lets both be absent.
bool counts_absent_inputs(const OpSchema& op) { return op.domain.empty() && op.name == "Loop"; }

std::string_view expected(AttributeSpec::Kind kind) {
  static constexpr std::string_view kNames[] = {"an int",  "a float",        "a string",         "a tensor",
                                                "a graph", "a list of ints", "a list of floats", "a list of strings",
                                                "a type",  "anything"};
  return kNames[static_cast<size_t>(kind)];
}

class Verifier {
 public:
  Verifier(const Graph& graph, int depth) : graph_(graph), depth_(depth), is_defined_(graph.value_count(), false) {}

  void run() {
    if (depth_ > kDeepestBody) reject("graph " + in_quotes(graph_.name) + ": bodies are nested too deeply");
    check_values();
    for (ValueId id : graph_.inputs) check_input(id);
    for (NodeId id : graph_.order()) check_node(id);
    for (ValueId id : graph_.outputs) {
      check_id(id, "an output of the graph");
      if (!is_defined_[index_of(id)]) reject("output " + in_quotes(graph_.value(id).name) + ": nothing computes it");
    }
  }

 private:
  void check_id(ValueId id, const std::string& where) const {
    if (id == ValueId::none || index_of(id) >= graph_.value_count()) reject(where + " is not a value of the graph");
  }

  void check_values() {
    std::unordered_set<std::string_view> names;
    for (size_t i = 0; i < graph_.value_count(); ++i) {
      const Value& value = graph_.value(static_cast<ValueId>(i));
      if (value.is_constant()) {
        if (value.producer != NodeId::none) reject("value " + in_quotes(value.name) + ": both a constant and computed");
        is_defined_[i] = true;
      }
      if (!value.name.empty() && !names.insert(value.name).second) {
        reject("value " + in_quotes(value.name) + ": the name is defined twice");
      }
    }
  }

  void check_input(ValueId id) {
    check_id(id, "an input of the graph");
    const Value& value = graph_.value(id);
    if (value.producer != NodeId::none) reject("input " + in_quotes(value.name) + ": also computed by a node");
    if (is_defined_[index_of(id)]) reject("input " + in_quotes(value.name) + ": defined twice");
    is_defined_[index_of(id)] = true;
  }

  void check_node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op == nullptr) reject(describe(node) + ": has no operator");
    if (node.name.empty()) reject(describe(node) + ": has no name");
    if (!node_names_.insert(node.name).second) reject(describe(node) + ": the node's name is used twice");
    check_inputs(node);
    check_outputs(id, node);
    check_attributes(node);
    check_bodies(node);
  }

  void check_inputs(const Node& node) const {
    const int extra = (node.epilogue ? node.epilogue->inputs : 0) + node.captures;
    const int own = static_cast<int>(node.inputs.size()) - extra;
    const OpSchema& op = *node.op;
    if (own < op.min_inputs || (op.max_inputs >= 0 && own > op.max_inputs)) {
      reject(describe(node) + ": has " + std::to_string(own) + " inputs, expected " +
             bounds(op.min_inputs, op.max_inputs));
    }
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const ValueId input = node.inputs[slot];
      if (input == ValueId::none) {
        const bool is_own = static_cast<int>(slot) < own;
        if (!is_own || (static_cast<int>(slot) < op.min_inputs && !counts_absent_inputs(op))) {
          reject(describe(node) + ": required input " + std::to_string(slot) + " is absent");
        }
        continue;
      }
      check_id(input, describe(node) + ": input " + std::to_string(slot));
      if (!is_defined_[index_of(input)]) {
        reject(describe(node) + ": input " + in_quotes(graph_.value(input).name) + " is used before it is defined");
      }
    }
  }

  void check_outputs(NodeId id, const Node& node) {
    const int count = static_cast<int>(node.outputs.size());
    const OpSchema& op = *node.op;
    if (count < op.min_outputs || (op.max_outputs >= 0 && count > op.max_outputs)) {
      reject(describe(node) + ": has " + std::to_string(count) + " outputs, expected " +
             bounds(op.min_outputs, op.max_outputs));
    }
    for (ValueId output : node.outputs) {
      if (output == ValueId::none) continue;
      check_id(output, describe(node) + ": an output");
      const Value& value = graph_.value(output);
      if (value.producer != id || is_defined_[index_of(output)]) {
        reject(describe(node) + ": output " + in_quotes(value.name) + " is defined twice");
      }
      is_defined_[index_of(output)] = true;
    }
  }

  static std::string bounds(int low, int high) {
    if (high < 0) return "at least " + std::to_string(low);
    return low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
  }

  static void check_attributes(const Node& node) {
    for (const AttributeSpec& spec : node.op->attributes) {
      const Attribute* value = node.attributes.find(spec.name);
      if (value == nullptr) {
        if (spec.required) reject(describe(node) + ": attribute " + in_quotes(spec.name) + " is required");
        continue;
      }
      if (!fits(spec.kind, *value)) {
        reject(describe(node) + ": attribute " + in_quotes(spec.name) + " is " + std::string(kind_name(*value)) +
               ", expected " + std::string(expected(spec.kind)));
      }
    }
    // Other domains are not specified tightly enough to insist: exporters add hints there.
    if (!node.op->domain.empty()) return;
    for (const auto& [name, value] : node.attributes) {
      bool is_known = false;
      for (const AttributeSpec& spec : node.op->attributes) is_known = is_known || spec.name == name;
      if (!is_known) reject(describe(node) + ": unknown attribute " + in_quotes(name));
    }
  }

  void check_bodies(const Node& node) const {
    bool has_body = false;
    for (const auto& [name, value] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value)) {
        has_body = true;
        check_body(node, name, *body);
      } else if (const auto* bodies = std::get_if<std::vector<std::shared_ptr<const Graph>>>(&value)) {
        has_body = true;
        for (const auto& each : *bodies) check_body(node, name, each);
      }
    }
    check_body_arity(node);
    if (!has_body && node.captures != 0) reject(describe(node) + ": has captures but no body");
  }

  void check_body(const Node& node, const std::string& name, const std::shared_ptr<const Graph>& body) const {
    if (body == nullptr) reject(describe(node) + ": attribute " + in_quotes(name) + " has no graph");
    if (static_cast<int>(body->inputs.size()) < node.captures) {
      reject(describe(node) + ": body " + in_quotes(name) + " lacks inputs for the captures");
    }
    Verifier(*body, depth_ + 1).run();
  }

  // What ONNX fixes of the bodies of If and Loop; Scan's depends on an attribute and is checked by its own inference.
  static void check_body_arity(const Node& node) {
    if (!node.op->domain.empty() || (node.op->name != "If" && node.op->name != "Loop")) return;
    const bool is_loop = node.op->name == "Loop";
    const size_t own_inputs = node.inputs.size() - static_cast<size_t>(node.captures);
    // Loop: trip count and condition are the loop's own; the body has iteration number and condition instead, and gives
    // the condition back.
    const size_t carried = own_inputs > 2 ? own_inputs - 2 : 0;
    const size_t inputs = static_cast<size_t>(node.captures) + (is_loop ? 2 + carried : 0);
    const size_t outputs = node.outputs.size() + (is_loop ? 1 : 0);
    for (const auto& [name, value] : node.attributes) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value);
      if (body == nullptr) continue;
      const bool has_states = !is_loop || (*body)->outputs.size() > carried;
      if ((*body)->inputs.size() != inputs || (*body)->outputs.size() < outputs || !has_states) {
        reject(describe(node) + ": body " + in_quotes(name) + " has " + std::to_string((*body)->inputs.size()) +
               " inputs and " + std::to_string((*body)->outputs.size()) + " outputs, expected " +
               std::to_string(inputs) + " and " + std::to_string(outputs) + " or more (captures included)");
      }
    }
  }

  const Graph& graph_;
  int depth_;
  std::vector<bool> is_defined_;
  std::unordered_set<std::string_view> node_names_;
};

}  // namespace

void verify(const Graph& graph) { Verifier(graph, 0).run(); }

}  // namespace lathe
