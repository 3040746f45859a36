#include "src/runtime/spelled_extents.h"

#include "graph/passes/rewrite.h"

namespace lathe {
namespace {

constexpr int kVersion = 13;

class Speller {
 public:
  Speller(Graph& graph, const OpLookup& ops) : rewriter_(graph), graph_(graph), ops_(ops) {}

  void spell(const Graph::Use& slot, const std::vector<ExtentSum>& sums) {
    const auto at = static_cast<size_t>(slot.slot);
    const ValueId old = graph_.node(slot.node).inputs[at];
    const bool is_list = graph_.value(old).type.rank() == 1;
    place_ = slot.node;
    const auto [spelled, is_new] = spelled_.try_emplace({is_list, sums}, ValueId::none);
    if (is_new) spelled->second = is_list ? list(sums) : node("Squeeze", {list(sums), integers({0})}, {});
    rewriter_.set_input(slot.node, at, spelled->second);
  }

  void finish() { rewriter_.finish(); }

 private:
  ValueId node(std::string_view op, std::vector<ValueId> inputs, const Dims& dims) {
    const ValueId result = rewriter_.add_value("extents", TensorType::of(DType::i64, dims));
    rewriter_.add(made_node(ops_, op, kVersion, std::move(inputs), result), place_);
    return result;
  }

  ValueId integers(const std::vector<int64_t>& numbers) { return rewriter_.add_integers("extents", numbers); }

  ValueId list(const std::vector<ExtentSum>& sums) {
    std::vector<ValueId> numbers;
    for (const ExtentSum& sum : sums) numbers.push_back(number(sum));
    if (numbers.size() == 1) return numbers[0];
    const ValueId result = node("Concat", numbers, {static_cast<int64_t>(numbers.size())});
    graph_.node(graph_.value(result).producer).attributes.set("axis", int64_t{0});
    return result;
  }

  // Each is a list of one element.
  ValueId number(const ExtentSum& sum) {
    ValueId total = ValueId::none;
    const auto add = [&](ValueId more) { total = total == ValueId::none ? more : node("Add", {total, more}, {1}); };
    for (const auto& [extent, factor] : sum.factors) {
      const ValueId one = value_of(extent);
      add(factor == 1 ? one : node("Mul", {one, integers({factor})}, {1}));
    }
    if (sum.number != 0 || sum.factors.empty()) add(integers({sum.number}));
    return total;
  }

  ValueId value_of(const ExtentSum::Extent& extent) {
    const auto [value, is_new] = extents_.try_emplace(extent, ValueId::none);
    if (!is_new) return value->second;
    const ValueId input = graph_.inputs[extent.input];
    const ValueId shape = node("Shape", {input}, {graph_.value(input).type.rank()});
    return value->second = node("Gather", {shape, integers({static_cast<int64_t>(extent.axis)})}, {1});
  }

  Rewriter rewriter_;
  Graph& graph_;
  const OpLookup& ops_;
  NodeId place_ = NodeId::none;
  std::map<std::pair<bool, std::vector<ExtentSum>>, ValueId> spelled_;
  std::map<ExtentSum::Extent, ValueId> extents_;
};

// A node's one result, where it is the same for all shapes; else undefined.
Tensor numbers_of(const Graph& graph, const ExtentSums& sums, const Node& node) {
  if (node.outputs.size() != 1 || node.outputs[0] == ValueId::none) return {};
  if (!can_spell(graph, sums, node.outputs[0])) return {};
  const auto elements = sums.elements(node.outputs[0]);
  std::vector<int64_t> numbers;
  for (const ExtentSum& sum : *elements) {
    if (!sum.factors.empty()) return {};
    numbers.push_back(sum.number);
  }
  const bool is_list = graph.value(node.outputs[0]).type.rank() == 1;
  return Tensor::from<int64_t>(is_list ? Dims{static_cast<int64_t>(numbers.size())} : Dims{}, numbers);
}

}  // namespace

bool fold_numbers(Graph& graph, const ExtentSums& sums) {
  std::vector<NodeId> kept;
  for (const NodeId id : graph.order()) {
    if (Tensor numbers = numbers_of(graph, sums, graph.node(id)); numbers.defined())
      graph.fold(id, {std::move(numbers)});
    else
      kept.push_back(id);
  }
  if (kept.size() == graph.order().size()) return false;
  graph.set_order(std::move(kept));
  return true;
}

bool can_spell(const Graph& graph, const ExtentSums& sums, ValueId id) {
  const TensorType& type = graph.value(id).type;
  return type.dtype == DType::i64 && type.has_rank && type.rank() <= 1 && sums.elements(id).has_value();
}

void spell_from_inputs(Graph& graph, const OpLookup& ops, const ExtentSums& sums, std::span<const Graph::Use> slots) {
  Speller speller(graph, ops);
  for (const Graph::Use& slot : slots)
    speller.spell(slot, *sums.elements(graph.node(slot.node).inputs[static_cast<size_t>(slot.slot)]));
  speller.finish();
}

}  // namespace lathe
