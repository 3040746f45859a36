#include "graph/passes/rewrite.h"

#include <algorithm>

#include "src/base/check.h"

namespace lathe {

namespace {

thread_local int64_t uses_read_here = 0;

}  // namespace

bool is_op(const Node& node, std::string_view name) { return node.op->domain.empty() && node.op->name == name; }
bool is_one_of(const Node& node, std::initializer_list<std::string_view> ops) {
  return node.op->domain.empty() && std::find(ops.begin(), ops.end(), node.op->name) != ops.end();
}
bool is_lathe_op(const Node& node, std::string_view name) {
  return node.op->domain == "lathe" && node.op->name == name;
}

bool is_reshape(const Node& node) { return is_one_of(node, {"Reshape", "Flatten", "Squeeze", "Unsqueeze"}); }
bool is_plain_reshape(const Node& node) { return is_reshape(node) && !node.epilogue; }

bool has_bodies(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& entry) {
    return std::holds_alternative<std::shared_ptr<const Graph>>(entry.second) ||
           std::holds_alternative<std::vector<std::shared_ptr<const Graph>>>(entry.second);
  });
}

ValueId input_or_none(const Node& node, size_t slot) {
  return slot < node.own_input_count() ? node.inputs[slot] : ValueId::none;
}

Tensor constant_of(const Graph& graph, ValueId id) { return id == ValueId::none ? Tensor() : graph.value(id).constant; }

std::optional<float> scalar_of(const Graph& graph, ValueId id) {
  const Tensor tensor = constant_of(graph, id);
  if (tensor.dtype() != DType::f32 || tensor.size() != 1) return std::nullopt;
  return *tensor.data<float>();
}

std::optional<std::vector<int64_t>> integers_of(const Graph& graph, ValueId id) {
  const Tensor tensor = constant_of(graph, id);
  if (tensor.dtype() == DType::i64) {
    const auto elements = tensor.elements<int64_t>();
    return std::vector<int64_t>(elements.begin(), elements.end());
  }
  if (tensor.dtype() == DType::i32) {
    const auto elements = tensor.elements<int32_t>();
    return std::vector<int64_t>(elements.begin(), elements.end());
  }
  return std::nullopt;
}

std::optional<int64_t> integer_of(const Graph& graph, ValueId id) {
  const auto numbers = integers_of(graph, id);
  return numbers && numbers->size() == 1 ? std::optional((*numbers)[0]) : std::nullopt;
}

Node made_node(const OpLookup& ops, std::string_view op, int version, std::vector<ValueId> inputs, ValueId result) {
  return {.op = &ops.require("", op, version),
          .version = version,
          .name = "",
          .inputs = std::move(inputs),
          .outputs = {result}};
}

std::vector<int64_t> order_of(const Graph& graph, const Node& transpose) {
  const TensorType& type = graph.value(transpose.inputs[0]).type;
  std::vector<int64_t> perm = transpose.attributes.get_ints("perm");
  if (perm.empty() && type.has_rank) {
    for (int axis = type.rank(); axis-- > 0;) perm.push_back(axis);
  }
  return perm;
}

bool same_dim(const Dim& a, const Dim& b) {
  if (a.known() || b.known()) return a.extent == b.extent;
  return !a.symbol.empty() && a.symbol == b.symbol;
}

bool same_shape(const TensorType& a, const TensorType& b) {
  return a.has_rank && b.has_rank && std::equal(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(), same_dim);
}

bool broadcasts_into(const TensorType& other, const TensorType& type) {
  if (!other.has_rank || !type.has_rank || other.rank() > type.rank()) return false;
  const size_t shift = type.dims.size() - other.dims.size();
  for (size_t i = 0; i < other.dims.size(); ++i) {
    if (other.dims[i].extent != 1 && !same_dim(other.dims[i], type.dims[shift + i])) return false;
  }
  return true;
}

bool is_scalar(const TensorType& type) {
  return type.has_rank &&
         std::all_of(type.dims.begin(), type.dims.end(), [](const Dim& dim) { return dim.extent == 1; });
}

std::vector<int> positions_in(const std::vector<NodeId>& order) {
  int count = 0;
  for (const NodeId id : order) count = std::max(count, static_cast<int>(id) + 1);
  std::vector<int> position(static_cast<size_t>(count), 0);
  for (size_t i = 0; i < order.size(); ++i) position[index_of(order[i])] = static_cast<int>(i);
  return position;
}

Rewriter::Rewriter(Graph& graph) : graph_(graph), output_uses_(graph.value_count(), 0) {
  for (const ValueId id : graph.outputs) ++output_uses_[index_of(id)];
}

void Rewriter::list_all() const {
  first_use_.assign(graph_.value_count(), -1);
  listed_.reserve(3 * graph_.order().size());
  for (const NodeId id : graph_.order()) {
    const std::vector<ValueId>& inputs = graph_.node(id).inputs;
    for (size_t slot = 0; slot < inputs.size(); ++slot) list_use(inputs[slot], {id, static_cast<int>(slot)});
  }
}

void Rewriter::list_use(ValueId id, Graph::Use use) const {
  if (id == ValueId::none || first_use_.empty()) return;
  listed_.push_back({use, first_use_[index_of(id)]});
  first_use_[index_of(id)] = static_cast<int>(listed_.size()) - 1;
}

bool Rewriter::is_current(ValueId id, const Graph::Use& use) const {
  const std::vector<ValueId>& inputs = graph_.node(use.node).inputs;
  return is_live(use.node) && static_cast<size_t>(use.slot) < inputs.size() &&
         inputs[static_cast<size_t>(use.slot)] == id;
}

template <class Visit>
void Rewriter::each_use(ValueId id, Visit visit) const {
  if (first_use_.empty()) list_all();
  for (int* link = &first_use_[index_of(id)]; *link >= 0;) {
    ListedUse& listed = listed_[static_cast<size_t>(*link)];
    ++uses_read_here;
    if (!is_current(id, listed.use)) {
      *link = listed.next;
      continue;
    }
    if (!visit(listed.use)) return;
    link = &listed.next;
  }
}

std::vector<Graph::Use> Rewriter::uses(ValueId id) const {
  std::vector<Graph::Use> live;
  each_use(id, [&](const Graph::Use& use) {
    live.push_back(use);
    return true;
  });
  const auto key = [](const Graph::Use& use) { return std::pair(use.node, use.slot); };
  std::sort(live.begin(), live.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  live.erase(std::unique(live.begin(), live.end(), [&](const auto& a, const auto& b) { return key(a) == key(b); }),
             live.end());
  return live;
}

bool Rewriter::is_used(ValueId id) const {
  bool is_read = is_output(id);
  if (!is_read) each_use(id, [&](const Graph::Use&) { return !(is_read = true); });
  return is_read;
}

bool Rewriter::has_one_use(ValueId id) const {
  Graph::Use first{NodeId::none, 0};
  bool is_one = true;
  each_use(id, [&](const Graph::Use& use) {
    if (first.node == NodeId::none) first = use;
    is_one = use.node == first.node && use.slot == first.slot;
    return is_one;
  });
  return is_one && first.node != NodeId::none;
}

bool Rewriter::all_users(ValueId id, const std::function<bool(NodeId)>& is_one) const {
  bool are_all = true;
  each_use(id, [&](const Graph::Use& use) { return are_all = is_one(use.node); });
  return are_all;
}

int64_t Rewriter::uses_read() { return uses_read_here; }

NodeId Rewriter::only_user(ValueId id) const {
  if (is_output(id)) return NodeId::none;
  NodeId user = NodeId::none;
  bool is_one = true;
  each_use(id, [&](const Graph::Use& use) {
    is_one = user == NodeId::none || use.node == user;
    user = use.node;
    return is_one;
  });
  return is_one ? user : NodeId::none;
}

NodeId Rewriter::producer_if(ValueId id, std::string_view op) const {
  if (id == ValueId::none) return NodeId::none;
  const NodeId producer = graph_.value(id).producer;
  if (producer == NodeId::none || !is_live(producer)) return NodeId::none;
  const Node& node = graph_.node(producer);
  // With an epilogue the node is more than its name says.
  return is_op(node, op) && !node.epilogue && node.outputs[0] == id ? producer : NodeId::none;
}

void Rewriter::set_input(NodeId node, size_t slot, ValueId to) {
  graph_.node(node).inputs[slot] = to;
  list_use(to, {node, static_cast<int>(slot)});
  is_changed_ = true;
}

bool Rewriter::replace(ValueId from, ValueId to) {
  if (is_output(from)) {
    // The other way round: the producer of `to` makes `from` from now on.
    const NodeId producer = graph_.value(to).producer;
    if (producer == NodeId::none || is_output(to) || graph_.value(to).type.layout != graph_.value(from).type.layout) {
      return false;
    }
    std::vector<ValueId>& outputs = graph_.node(producer).outputs;
    const NodeId old = graph_.value(from).producer;
    if (old != NodeId::none) {
      std::vector<ValueId>& old_outputs = graph_.node(old).outputs;
      std::replace(old_outputs.begin(), old_outputs.end(), from, ValueId::none);
    }
    std::replace(outputs.begin(), outputs.end(), to, from);
    graph_.value(from).producer = producer;
    graph_.value(to).producer = NodeId::none;
    std::swap(from, to);
  }
  for (const Graph::Use use : uses(from)) set_input(use.node, static_cast<size_t>(use.slot), to);
  is_changed_ = true;
  return true;
}

void Rewriter::erase(NodeId id) {
  is_erased_.resize(std::max(is_erased_.size(), index_of(id) + 1), false);
  is_erased_[index_of(id)] = true;
  for (ValueId& output : graph_.node(id).outputs) {
    if (output == ValueId::none) continue;
    graph_.value(output).producer = NodeId::none;
    output = ValueId::none;
  }
  is_changed_ = true;
}

std::string Rewriter::fresh(const std::string& like) { return like + "~" + std::to_string(graph_.value_count()); }

ValueId Rewriter::add_value(const std::string& like, TensorType type) {
  const ValueId id = graph_.add_value(fresh(like), std::move(type));
  if (!first_use_.empty()) first_use_.push_back(-1);
  output_uses_.push_back(0);
  is_changed_ = true;
  return id;
}

ValueId Rewriter::add_constant(const std::string& like, Tensor tensor) {
  const ValueId id = graph_.add_constant(fresh(like), std::move(tensor));
  if (!first_use_.empty()) first_use_.push_back(-1);
  output_uses_.push_back(0);
  is_changed_ = true;
  return id;
}

ValueId Rewriter::add_integers(const std::string& like, const std::vector<int64_t>& numbers) {
  return add_constant(like, Tensor::from<int64_t>({static_cast<int64_t>(numbers.size())}, numbers));
}

NodeId Rewriter::add(Node node, NodeId place) {
  // Its own output's name is unique among values; the suffix keeps it apart from names of imported nodes.
  const bool has_output = !node.outputs.empty() && node.outputs[0] != ValueId::none;
  if (node.name.empty() && has_output) {
    node.name = graph_.value(node.outputs[0]).name + "~" + std::string(node.op->name);
  }
  const NodeId id = graph_.add_node(std::move(node));
  // One that takes over another's output has none yet: its number is its own.
  if (Node& added = graph_.node(id); added.name.empty()) {
    added.name = std::string(added.op->name) + "~node" + std::to_string(index_of(id));
  }
  if (index_of(place) < place_of_.size() && place_of_[index_of(place)] != NodeId::none)
    place = place_of_[index_of(place)];
  place_of_.resize(index_of(id) + 1, NodeId::none);
  place_of_[index_of(id)] = place;
  placed_at_.resize(std::max(placed_at_.size(), index_of(place) + 1));
  placed_at_[index_of(place)].push_back(id);
  const std::vector<ValueId>& inputs = graph_.node(id).inputs;
  for (size_t slot = 0; slot < inputs.size(); ++slot) list_use(inputs[slot], {id, static_cast<int>(slot)});
  is_changed_ = true;
  return id;
}

void Rewriter::move_output(ValueId output, NodeId to) {
  const NodeId from = graph_.value(output).producer;
  if (from != NodeId::none) {
    for (ValueId& each : graph_.node(from).outputs) {
      if (each == output) each = ValueId::none;
    }
  }
  ValueId& slot = graph_.node(to).outputs[0];
  if (slot != ValueId::none) graph_.value(slot).producer = NodeId::none;
  slot = output;
  graph_.value(output).producer = to;
  is_changed_ = true;
}

bool Rewriter::finish() {
  if (!is_changed_) return false;
  std::vector<NodeId> order;
  for (const NodeId id : graph_.order()) {
    if (index_of(id) < place_of_.size() && place_of_[index_of(id)] != NodeId::none) continue;
    if (index_of(id) < placed_at_.size()) {
      for (const NodeId placed : placed_at_[index_of(id)]) {
        if (is_live(placed)) order.push_back(placed);
      }
    }
    if (is_live(id)) order.push_back(id);
  }
  graph_.set_order(std::move(order));
  graph_.sort();
  return true;
}

}  // namespace lathe
