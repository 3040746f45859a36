#include "src/runtime/open_stages.h"

#include <algorithm>
#include <unordered_set>

#include "graph/infer.h"
#include "graph/passes/passes.h"
#include "src/runtime/spelled_extents.h"

namespace lathe {
namespace {

Graph sample_of(const Graph& graph, std::span<const DType> dtypes, std::span<const Dims> shapes, const Limits& limits) {
  Graph sample = graph;
  for (size_t i = 0; i < shapes.size(); ++i) sample.value(sample.inputs[i]).type = TensorType::of(dtypes[i], shapes[i]);
  infer_types(sample, limits);
  return sample;
}

// What both samples say of a value; symbols are the graph's.
TensorType common_type(const TensorType& a, const TensorType& b, const TensorType& open) {
  if (a.dtype != b.dtype || a.rank() != b.rank()) return TensorType::unranked(a.dtype);
  TensorType type = a;
  for (size_t axis = 0; axis < type.dims.size(); ++axis) {
    if (a.dims[axis].extent == b.dims[axis].extent) continue;
    const bool has_symbol = open.has_rank && open.rank() == type.rank() && !open.dims[axis].known();
    type.dims[axis] = has_symbol ? open.dims[axis] : Dim();
  }
  return type;
}

void run_pass(Graph& graph, const RunnerContext& context, const Pass& pass) {
  run_passes(graph, {pass}, context.pass_context(), context.optimization_level, context.disabled_passes);
}

// The graph for the inputs that both samples have in common: fixed extents are known, and what follows from them.
std::shared_ptr<Graph> bound_graph(const Graph& graph, const RunnerContext& context, std::span<const DType> dtypes,
                                   std::span<const Dims> first, std::span<const Dims> second) {
  auto bound = std::make_shared<Graph>(graph);
  for (size_t i = 0; i < first.size(); ++i) {
    TensorType& type = bound->value(bound->inputs[i]).type;
    type = common_type(TensorType::of(dtypes[i], first[i]), TensorType::of(dtypes[i], second[i]), type);
    for (size_t axis = 0; axis < type.dims.size(); ++axis)
      if (Dim& dim = type.dims[axis]; !dim.known() && dim.symbol.empty())
        dim.symbol = "?input" + std::to_string(i) + "." + std::to_string(axis);
  }
  infer_types(*bound, context.limits);
  // Each time, more extents are known.
  constexpr int kMostTimes = 4;
  for (int i = 0; i < kMostTimes && fold_numbers(*bound, ExtentSums(*bound)); ++i) infer_types(*bound, context.limits);
  run_pass(*bound, context, {"fold-constants", passes::fold_constants, 1});
  return bound;
}

class StageFinder {
 public:
  StageFinder(const Graph& graph, const Graph& first, const Graph& second) : graph_(graph), sums_(graph) {
    const size_t values = graph.value_count();
    found_.types.resize(values);
    is_arithmetic_.assign(values, false);
    follows_open_.assign(values, false);
    is_known_.assign(values, false);
    stage_of_.assign(values, kNone);
    sources_.resize(values);
    for (size_t v = 0; v < values; ++v) {
      const auto id = static_cast<ValueId>(v);
      found_.types[v] = common_type(first.value(id).type, second.value(id).type, graph.value(id).type);
    }
    find_arithmetic(first, second);
  }

  // False: it has no stages, or too few fixed nodes.
  bool find() {
    size_t fixed = 0;
    for (const NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      if (is_arithmetic(node)) {
        if (!trace(node)) return false;
        continue;
      }
      ++found_.nodes;
      if (note_known(node)) {
        known_nodes_.push_back(id);
        continue;
      }
      place(id);
      fixed += stages_[stage_of_node_.back().second].is_open ? 0 : 1;
    }
    place_known_nodes();
    // Another length costs what its open nodes cost, and equal ones of several layers count once.
    constexpr size_t kLeastShare = 4, kMostStages = 2048;
    return fixed > 0 && fixed * kLeastShare >= found_.nodes && stages_.size() <= kMostStages;
  }

  // Numbers that are known by the time that the other inputs of their readers are, once they are made from the shapes
  // of the graph's inputs: it is cut as though they were.
  const std::vector<Graph::Use>& late() const { return late_; }
  const ExtentSums& sums() const { return sums_; }

  Stages take() {
    for (const auto& [node, stage] : stage_of_node_) stages_[stage].nodes.push_back(node);
    for (size_t s = 0; s < stages_.size(); ++s)
      if (!stages_[s].nodes.empty()) complete(s);
    std::erase_if(stages_, [](const Stage& stage) { return stage.nodes.empty(); });
    found_.stages = std::move(stages_);
    return std::move(found_);
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  // Small integers, and the floats that some are computed from. Other floats that are known are data, as the sines of
  // positions are: computed once, and not by every stage that reads them.
  void find_arithmetic(const Graph& first, const Graph& second) {
    for (size_t i = graph_.order().size(); i-- > 0;) {
      const Node& node = graph_.node(graph_.order()[i]);
      bool is_known = true, is_wanted = false;
      for (const ValueId id : node.outputs) {
        if (id == ValueId::none) continue;
        const DType dtype = first.value(id).type.dtype;
        is_known = is_known && first.value(id).is_constant() && second.value(id).is_constant();
        is_wanted = is_wanted || is_arithmetic_[index_of(id)] || is_integer(dtype) || dtype == DType::boolean;
      }
      if (!is_known || !is_wanted) continue;
      for (const auto* list : {&node.inputs, &node.outputs})
        for (const ValueId id : *list)
          if (!is_given(id) && first.value(id).is_constant() && second.value(id).is_constant())
            is_arithmetic_[index_of(id)] = true;
    }
    // Of all that a node makes, or of nothing. A result of the graph is made, not only known.
    for (const ValueId id : graph_.outputs) is_arithmetic_[index_of(id)] = false;
    for (const NodeId id : graph_.order()) {
      const std::vector<ValueId>& outputs = graph_.node(id).outputs;
      if (is_arithmetic(graph_.node(id))) continue;
      for (const ValueId output : outputs)
        if (output != ValueId::none) is_arithmetic_[index_of(output)] = false;
    }
  }

  // All that it makes is known as soon as the inputs' shapes are.
  bool is_arithmetic(const Node& node) const {
    return std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return id == ValueId::none || is_arithmetic_[index_of(id)]; });
  }

  bool is_open(ValueId id) const { return !found_.types[index_of(id)].is_static(); }

  bool is_given(ValueId id) const { return id == ValueId::none || graph_.value(id).is_constant(); }

  // Notes which values' shapes the results follow from. False: too many.
  bool trace(const Node& node) {
    constexpr size_t kMostSources = 64;
    std::vector<ValueId> sources;
    bool follows_open = false;
    for (const ValueId input : node.inputs) {
      if (is_given(input)) continue;
      if (is_arithmetic_[index_of(input)]) {
        const auto& behind = sources_[index_of(input)];
        sources.insert(sources.end(), behind.begin(), behind.end());
        follows_open = follows_open || follows_open_[index_of(input)];
      } else {
        sources.push_back(input);
        follows_open = follows_open || is_open(input);
      }
    }
    std::sort(sources.begin(), sources.end());
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    if (sources.size() > kMostSources) return false;
    for (const ValueId output : node.outputs) {
      if (output == ValueId::none) continue;
      sources_[index_of(output)] = sources;
      follows_open_[index_of(output)] = follows_open;
    }
    return true;
  }

  bool is_open(const Node& node) const {
    const auto is_one = [&](ValueId id) {
      if (is_given(id)) return false;
      return is_arithmetic_[index_of(id)] ? follows_open_[index_of(id)] : is_open(id);
    };
    return std::any_of(node.inputs.begin(), node.inputs.end(), is_one) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), is_one);
  }

  // Made of constants alone.
  bool note_known(const Node& node) {
    if (!node.op->deterministic || node.outputs.size() != 1 || node.outputs[0] == ValueId::none) return false;
    const bool is_known = std::all_of(node.inputs.begin(), node.inputs.end(),
                                      [&](ValueId id) { return is_given(id) || is_known_[index_of(id)]; });
    is_known_[index_of(node.outputs[0])] = is_known;
    return is_known;
  }

  // Open stages have even numbers, fixed ones odd numbers.
  void place(NodeId id) {
    const Node& node = graph_.node(id);
    const bool open = is_open(node);
    size_t stage = open ? 0 : 1;
    const auto behind = [&](size_t at_least, ValueId value) {
      const size_t before = stage_of_[index_of(value)];
      return before == kNone ? at_least : std::max(at_least, before % 2 == at_least % 2 ? before : before + 1);
    };
    for (const ValueId input : node.inputs)
      if (!is_given(input) && !is_arithmetic_[index_of(input)]) stage = behind(stage, input);
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const ValueId input = node.inputs[slot];
      if (is_given(input) || !is_arithmetic_[index_of(input)]) continue;
      size_t behind_sources = stage;
      for (const ValueId source : sources_[index_of(input)]) behind_sources = behind(behind_sources, source);
      if (behind_sources > stage && can_spell(graph_, sums_, input))
        late_.push_back({id, static_cast<int>(slot)});
      else
        stage = behind_sources;
    }
    put(id, stage);
  }

  // What is made of constants alone, and was too large to be folded, belongs to the first stage that reads it: that may
  // need little of it.
  void place_known_nodes() {
    std::vector<size_t> reader(graph_.value_count(), kNone);  // by value: the first stage
    const auto read = [&](NodeId id, size_t stage) {
      const auto note = [&](ValueId value) { reader[index_of(value)] = std::min(reader[index_of(value)], stage); };
      for (const ValueId input : graph_.node(id).inputs) {
        if (is_given(input)) continue;
        note(input);
        for (const ValueId source : sources_[index_of(input)]) note(source);
      }
    };
    for (const auto& [id, stage] : stage_of_node_) read(id, stage);
    for (size_t i = known_nodes_.size(); i-- > 0;) {
      const NodeId id = known_nodes_[i];
      const ValueId made = graph_.node(id).outputs[0];
      const size_t stage = reader[index_of(made)] == kNone ? 1 : reader[index_of(made)];
      put(id, stage);
      read(id, stage);
    }
  }

  void put(NodeId id, size_t stage) {
    while (stages_.size() <= stage) stages_.push_back({.is_open = stages_.size() % 2 == 0});
    for (const ValueId output : graph_.node(id).outputs)
      if (output != ValueId::none) stage_of_[index_of(output)] = stage;
    stage_of_node_.emplace_back(id, stage);
  }

  // Adds the shape arithmetic that the nodes of a stage want, and finds what passes its borders: inputs in the order of
  // use, so that equal stages have equal ones.
  void complete(size_t number) {
    if (position_.empty()) number_nodes();
    Stage& stage = stages_[number];
    stage.work = stage.nodes.size();
    add_arithmetic(stage.nodes);
    std::unordered_set<ValueId> inputs;
    for (const NodeId id : stage.nodes)
      for (const ValueId input : graph_.node(id).inputs) {
        if (is_given(input) || is_arithmetic_[index_of(input)] || stage_of_[index_of(input)] == number) continue;
        if (inputs.insert(input).second) stage.inputs.push_back(input);
      }
    for (const NodeId id : stage.nodes)
      for (const ValueId output : graph_.node(id).outputs)
        if (output != ValueId::none && read_elsewhere_[index_of(output)] && !is_arithmetic_[index_of(output)])
          stage.outputs.push_back(output);
  }

  void add_arithmetic(std::vector<NodeId>& nodes) const {
    std::unordered_set<NodeId> taken;
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const ValueId input : graph_.node(nodes[i]).inputs) {
        if (is_given(input) || !is_arithmetic_[index_of(input)]) continue;
        const NodeId producer = graph_.value(input).producer;
        if (taken.insert(producer).second) nodes.push_back(producer);
      }
    std::sort(nodes.begin(), nodes.end(),
              [&](NodeId a, NodeId b) { return position_[index_of(a)] < position_[index_of(b)]; });
  }

  void number_nodes() {
    NodeId last = NodeId::none;
    for (const NodeId id : graph_.order()) last = std::max(last, id);
    position_.assign(index_of(last) + 1, 0);
    for (size_t i = 0; i < graph_.order().size(); ++i) position_[index_of(graph_.order()[i])] = i;
    read_elsewhere_.assign(graph_.value_count(), false);
    for (const ValueId id : graph_.outputs) read_elsewhere_[index_of(id)] = true;
    for (const auto& [id, stage] : stage_of_node_)
      for (const ValueId input : graph_.node(id).inputs) {
        if (is_given(input)) continue;
        const auto note = [&, reader = stage](ValueId value) {
          if (stage_of_[index_of(value)] != reader) read_elsewhere_[index_of(value)] = true;
        };
        if (!is_arithmetic_[index_of(input)]) note(input);
        for (const ValueId source : sources_[index_of(input)]) note(source);
      }
  }

  const Graph& graph_;
  const ExtentSums sums_;
  Stages found_;
  std::vector<Graph::Use> late_;
  std::vector<Stage> stages_;
  std::vector<std::pair<NodeId, size_t>> stage_of_node_;
  std::vector<NodeId> known_nodes_;  // made of constants alone
  // By value.
  std::vector<bool> is_arithmetic_;            // known as soon as the shapes of the graph's inputs are
  std::vector<bool> follows_open_;             // of these: from an open shape
  std::vector<bool> is_known_;                 // made of constants alone
  std::vector<size_t> stage_of_;               // that makes it; kNone: inputs, constants, arithmetic
  std::vector<std::vector<ValueId>> sources_;  // of arithmetic: whose shapes it follows from
  std::vector<bool> read_elsewhere_;
  std::vector<size_t> position_;  // of nodes, in order
};

bool all_fit(const Graph& graph, const Graph& sample) {
  return std::all_of(graph.order().begin(), graph.order().end(), [&](NodeId id) {
    const std::vector<ValueId>& outputs = graph.node(id).outputs;
    return std::all_of(outputs.begin(), outputs.end(),
                       [&](ValueId v) { return v == ValueId::none || sample.value(v).type.fits_buffer(); });
  });
}

}  // namespace

std::optional<Stages> stages_of(const Graph& graph, const RunnerContext& context, std::span<const DType> dtypes,
                                std::span<const Dims> first, std::span<const Dims> second) {
  const std::shared_ptr<Graph> bound = bound_graph(graph, context, dtypes, first, second);
  for (bool is_spelled = false;; is_spelled = true) {
    const Graph a = sample_of(*bound, dtypes, first, context.limits);
    if (!all_fit(*bound, a)) return std::nullopt;
    const Graph b = sample_of(*bound, dtypes, second, context.limits);
    if (!all_fit(*bound, b)) return std::nullopt;
    StageFinder finder(*bound, a, b);
    if (!finder.find()) return std::nullopt;
    if (is_spelled || finder.late().empty()) {
      Stages stages = finder.take();
      stages.graph = bound;
      return stages;
    }
    spell_from_inputs(*bound, context.ops, finder.sums(), finder.late());
    // All layers cut the same columns out of a mask.
    run_pass(*bound, context, {"merge-common", passes::merge_common, 1});
  }
}

}  // namespace lathe
