// A Loop of a few iterations, their number known, becomes what its body does that many times.
#include <optional>

#include "graph/passes/inline_body.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// Beyond these the graph grows more than a loop costs.
constexpr int64_t kMostTrips = 16;
constexpr size_t kMostNodes = 256;
constexpr int kVersion = 13;  // of the nodes that stack scan outputs

// The loop never ends before its count: the body's condition is true, or the one that came in, handed on.
bool always_goes_on(const Graph& body) {
  ValueId condition = body.outputs[0];
  for (size_t steps = 0; steps <= body.order().size(); ++steps) {
    if (condition == body.inputs[1]) return true;
    const Value& value = body.value(condition);
    if (value.is_constant()) {
      return value.constant.dtype() == DType::boolean && value.constant.size() == 1 && *value.constant.data<bool>();
    }
    if (value.producer == NodeId::none || !is_op(body.node(value.producer), "Identity")) return false;
    condition = body.node(value.producer).inputs[0];
  }
  return false;
}

std::optional<int64_t> known_trips(const Graph& graph, const Node& node) {
  const auto trips = integers_of(graph, input_or_none(node, 0));
  if (!trips || trips->size() != 1 || (*trips)[0] < 1 || (*trips)[0] > kMostTrips) return std::nullopt;
  const ValueId condition = input_or_none(node, 1);
  if (condition == ValueId::none) return (*trips)[0];
  const Tensor known = constant_of(graph, condition);
  const bool is_true = known.dtype() == DType::boolean && known.size() == 1 && *known.data<bool>();
  return is_true ? std::optional((*trips)[0]) : std::nullopt;
}

class Unroller {
 public:
  Unroller(Rewriter& rewriter, const OpLookup& ops) : rewriter_(rewriter), ops_(ops) {}

  bool try_loop(NodeId id) {
    if (!is_op(rewriter_.graph().node(id), "Loop")) return false;
    const Node node = rewriter_.graph().node(id);  // NOLINT(performance-unnecessary-copy-initialization): erased below
    if (node.own_input_count() < 2) return false;
    const std::shared_ptr<const Graph> body = node.attributes.get_graph("body");
    const std::optional<int64_t> trips = known_trips(rewriter_.graph(), node);
    const size_t states = node.own_input_count() - 2, captures = static_cast<size_t>(node.captures);
    if (body == nullptr || !trips || body->order().size() * static_cast<size_t>(*trips) > kMostNodes) return false;
    if (body->inputs.size() != states + 2 + captures || body->outputs.size() != node.outputs.size() + 1) return false;
    if (node.outputs.size() < states || !always_goes_on(*body)) return false;
    for (size_t slot = 2; slot < node.inputs.size(); ++slot) {
      if (node.inputs[slot] == ValueId::none) return false;
    }
    unroll(id, node, *body, *trips, states);
    return true;
  }

 private:
  void unroll(NodeId id, const Node& node, const Graph& body, int64_t trips, size_t states) {
    place_ = id;
    rewriter_.erase(id);
    const ValueId condition = rewriter_.add_constant(node.name + "/condition", Tensor::scalar(true));
    std::vector<ValueId> state(node.inputs.begin() + 2, node.inputs.begin() + 2 + static_cast<std::ptrdiff_t>(states));
    std::vector<std::vector<ValueId>> rows(node.outputs.size() - states);
    for (int64_t trip = 0; trip < trips; ++trip) {
      const std::string prefix = node.name + "/" + std::to_string(trip);
      std::vector<ValueId> arguments{rewriter_.add_constant(prefix, Tensor::scalar(trip)), condition};
      arguments.insert(arguments.end(), state.begin(), state.end());
      arguments.insert(arguments.end(), node.inputs.end() - node.captures, node.inputs.end());
      // A state may have another shape each time.
      const std::vector<ValueId> outer = inline_body(rewriter_, body, arguments, prefix, place_, BodyTypes::forgotten);
      for (size_t i = 0; i < states; ++i) state[i] = outer[index_of(body.outputs[1 + i])];
      for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(outer[index_of(body.outputs[1 + states + i])]);
    }
    for (size_t i = 0; i < states; ++i) hand_over(node.outputs[i], state[i]);
    for (size_t i = 0; i < rows.size(); ++i) stack(node.outputs[states + i], rows[i]);
  }

  ValueId add(const char* op, std::vector<ValueId> inputs, ValueId result, std::optional<int64_t> axis) {
    Node node;
    node.op = &ops_.require("", op, kVersion);
    node.version = kVersion;
    node.inputs = std::move(inputs);
    node.outputs = {result};
    if (axis) node.attributes.set("axis", *axis);
    rewriter_.add(std::move(node), place_);
    return result;
  }

  // The graph's outputs keep their values (and so their names), whatever the body hands out.
  void hand_over(ValueId output, ValueId result) {
    if (output == ValueId::none) return;
    if (rewriter_.is_output(output)) {
      add("Identity", {result}, output, std::nullopt);
    } else {
      rewriter_.replace(output, result);
    }
  }

  void stack(ValueId output, const std::vector<ValueId>& rows) {
    if (output == ValueId::none) return;
    const Graph& graph = rewriter_.graph();
    const TensorType type = TensorType::unranked(graph.value(output).type.dtype);
    const ValueId axes = rewriter_.add_integers(graph.value(output).name + "/axes", {0});
    std::vector<ValueId> parts;
    for (const ValueId row : rows) {
      parts.push_back(add("Unsqueeze", {row, axes}, rewriter_.add_value(graph.value(output).name, type), std::nullopt));
    }
    add("Concat", parts, output, 0);
  }

  Rewriter& rewriter_;
  const OpLookup& ops_;
  NodeId place_ = NodeId::none;
};

}  // namespace

bool unroll_loops(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  Unroller unroller(rewriter, context.ops);
  return rewrite_each(rewriter, [&](NodeId id) { unroller.try_loop(id); });
}

}  // namespace lathe::passes
