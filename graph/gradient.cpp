#include "graph/gradient.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/gradient_rules.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

class Differentiation {
 public:
  explicit Differentiation(ExpandContext& context) : context_(context), graph_(context.graph()) {}

  void run() {
    const Attributes& attributes = context_.node.attributes;
    const std::vector<ValueId> xs = values_of(attributes.get_strings("xs")),
                               zs = values_of(attributes.get_strings("zs"));
    if (xs.size() + zs.size() != context_.node.inputs.size())
      context_.fail("has " + std::to_string(context_.node.inputs.size()) +
                    " inputs, expected one for each of xs and zs");
    if (context_.node.outputs.size() > xs.size()) context_.fail("has more outputs than there are xs");
    const ValueId y = value_named(attributes.get_string("y", ""));
    for (size_t i = 0; i < xs.size(); ++i) place(xs[i], i);
    for (size_t i = 0; i < zs.size(); ++i) place(zs[i], xs.size() + i);
    varying_.insert(xs.begin(), xs.end());
    collect(y);
    const std::vector<Node> path = copied_path();
    const ValueId end = placed(y);
    const ValueId one = context_.add("CastLike", {context_.constant(Tensor::scalar(1.0F)), end});
    add_gradient(end, context_.add("Expand", {one, context_.add("Shape", {end})}));
    for (auto node = path.rbegin(); node != path.rend(); ++node) go_back(*node);
    for (size_t i = 0; i < xs.size(); ++i)
      if (context_.has_output(static_cast<int>(i)))
        context_.set_output(static_cast<int>(i), gradient_or_zero(context_.input(static_cast<int>(i))));
  }

 private:
  ValueId value_named(const std::string& name) const {
    for (size_t i = 0; i < graph_.value_count(); ++i)
      if (const auto id = static_cast<ValueId>(i); graph_.value(id).name == name) return id;
    context_.fail("no value has the name " + in_quotes(name));
  }

  std::vector<ValueId> values_of(const std::vector<std::string>& names) const {
    std::vector<ValueId> values;
    for (const std::string& name : names) values.push_back(value_named(name));
    return values;
  }

  void place(ValueId named, size_t input) {
    const ValueId given = context_.input(static_cast<int>(input));
    if (given == ValueId::none) context_.fail("input " + std::to_string(input) + " is absent");
    places_[named] = given;
    if (given != named) copies_ = true;
  }

  ValueId placed(ValueId value) const {
    const auto found = places_.find(value);
    return found == places_.end() ? value : found->second;
  }

  // The nodes before `y` whose results vary with xs, in order, in path_; what a node of the graph's order reads comes
  // before it.
  void collect(ValueId y) {
    std::set<NodeId> before;
    std::vector<ValueId> waiting{y};
    while (!waiting.empty()) {
      const ValueId value = waiting.back();
      waiting.pop_back();
      const NodeId producer = value == ValueId::none ? NodeId::none : graph_.value(value).producer;
      if (producer == NodeId::none || places_.contains(value) || !before.insert(producer).second) continue;
      waiting.insert(waiting.end(), graph_.node(producer).inputs.begin(), graph_.node(producer).inputs.end());
    }
    for (const NodeId id : graph_.order()) {
      if (!before.contains(id)) continue;
      const Node& node = graph_.node(id);
      if (std::none_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId v) { return places_.contains(v) || moved_.contains(v); }))
        continue;
      moved_.insert(node.outputs.begin(), node.outputs.end());
      path_.push_back(id);
      if (std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return varying_.contains(v); }))
        varying_.insert(node.outputs.begin(), node.outputs.end());
    }
  }

  // The path's nodes over the node's own inputs: themselves when these are the ones that xs and zs name.
  std::vector<Node> copied_path() {
    std::vector<Node> path;
    for (const NodeId id : path_) {
      Node node = graph_.node(id);
      const bool is_varying =
          std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return varying_.contains(v); });
      for (ValueId& input : node.inputs) input = placed(input);
      if (copies_) {
        const std::vector<ValueId> results = context_.add_copy(node, node.inputs);
        for (size_t i = 0; i < results.size(); ++i) places_.emplace(node.outputs[i], results[i]);
        for (size_t i = 0; i < results.size(); ++i)
          if (varying_.contains(node.outputs[i])) varying_.insert(results[i]);
        node.outputs = results;
      }
      if (is_varying) path.push_back(std::move(node));
    }
    for (const auto& [named, given] : places_)
      if (varying_.contains(named)) varying_.insert(given);
    return path;
  }

  void go_back(const Node& node) {
    const bool is_reached = std::any_of(node.outputs.begin(), node.outputs.end(),
                                        [&](ValueId output) { return gradients_.contains(output); });
    if (!is_reached) return;
    GradientRule* rule = node.op->domain.empty() && !node.epilogue ? gradient_rule(node.op->name) : nullptr;
    if (rule == nullptr || !gradients_.contains(node.outputs[0])) {
      throw Error(ErrorCode::unsupported, describe(context_.node) + ": operator " +
                                              in_quotes(std::string(node.op->name)) + " of node " +
                                              in_quotes(node.name) + " has no derivative here");
    }
    GradientStep step(context_, node, node.inputs, node.outputs[0], gradients_.at(node.outputs[0]));
    rule(step);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (step.gradients[i] != ValueId::none && varying_.contains(node.inputs[i]))
        add_gradient(node.inputs[i], step.gradients[i]);
  }

  void add_gradient(ValueId value, ValueId gradient) {
    ValueId& sum = gradients_.try_emplace(value, ValueId::none).first->second;
    sum = sum == ValueId::none ? gradient : context_.add("Add", {sum, gradient});
  }

  ValueId gradient_or_zero(ValueId x) {
    if (const auto found = gradients_.find(x); found != gradients_.end()) return found->second;
    const ValueId zero = context_.add("CastLike", {context_.constant(Tensor::scalar(0.0F)), x});
    return context_.add("Expand", {zero, context_.add("Shape", {x})});
  }

  ExpandContext& context_;
  const Graph& graph_;
  std::map<ValueId, ValueId> places_;  // of a named value (or a node's result): what stands for it
  std::set<ValueId> varying_, moved_;  // with xs; with xs or zs
  std::vector<NodeId> path_;
  std::map<ValueId, ValueId> gradients_;
  bool copies_ = false;
};

}  // namespace

void differentiate(ExpandContext& context) { Differentiation(context).run(); }

}  // namespace lathe
