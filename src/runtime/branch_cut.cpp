#include "src/runtime/branch_cut.h"

#include <algorithm>

#include "src/runtime/graph_runner.h"

namespace lathe {
namespace {

// Results of a branch lie outside of planned memory, and nothing is fused across its borders.
constexpr size_t kLeastNodes = 16;

size_t branch_nodes(const Node& node) {
  size_t nodes = 0;
  for (const char* name : {"then_branch", "else_branch"})
    if (const auto body = node.attributes.get_graph(name)) nodes = std::max(nodes, body->order().size());
  return nodes;
}

// False: known as soon as shapes are, when the branch that is not taken goes away.
bool follows_data(const Graph& graph, ValueId condition) {
  std::vector<bool> seen(graph.value_count(), false);
  std::vector<ValueId> open{condition};
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (id == ValueId::none || graph.value(id).is_constant() || seen[index_of(id)]) continue;
    seen[index_of(id)] = true;
    const NodeId producer = graph.value(id).producer;
    if (producer == NodeId::none) return true;
    const Node& node = graph.node(producer);
    if (node.op->domain.empty() && (node.op->name == "Shape" || node.op->name == "Size")) continue;
    open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  return false;
}

bool is_branch(const Graph& graph, const Node& node) {
  return node.op->domain.empty() && node.op->name == "If" && !node.inputs.empty() &&
         branch_nodes(node) >= kLeastNodes && follows_data(graph, node.inputs[0]);
}

GraphPieces pieces_at(const Graph& graph, NodeId branch) {
  GraphPieces pieces;
  std::vector<bool> is_behind(graph.value_count(), false);
  const auto sees_it = [&](ValueId id) { return id != ValueId::none && is_behind[index_of(id)]; };
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool behind = std::any_of(node.inputs.begin(), node.inputs.end(), sees_it);
    (id == branch ? pieces.cut : behind ? pieces.rest : pieces.head).push_back(id);
    if (id != branch && !behind) continue;
    for (const ValueId output : node.outputs)
      if (output != ValueId::none) is_behind[index_of(output)] = true;
  }
  return pieces;
}

}  // namespace

BranchCut::~BranchCut() = default;

std::unique_ptr<const BranchCut> BranchCut::make(const Graph& graph, const std::shared_ptr<RunnerContext>& context,
                                                 const std::shared_ptr<BodyRunners>& bodies, size_t cuts) {
  if (!may_have_rest(graph, cuts)) return nullptr;
  const auto found = std::find_if(graph.order().begin(), graph.order().end(),
                                  [&](NodeId id) { return is_branch(graph, graph.node(id)); });
  if (found == graph.order().end()) return nullptr;
  std::unique_ptr<BranchCut> made(new BranchCut);
  const CutGraph::Runners runners{.context = context, .bodies = bodies, .cuts = cuts, .growing_rest = Growing::cut};
  made->behind_ = std::make_unique<CutGraph>(graph, pieces_at(graph, *found), runners);
  auto head = made->behind_->take_head();
  if (!head->outputs.empty())
    made->head_ = std::make_unique<GraphRunner>(std::move(head), context, cuts + 1, Growing::cut, bodies);
  return made;
}

void BranchCut::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  std::vector<Tensor> made;
  if (head_ != nullptr) {
    made.resize(head_->graph().outputs.size());
    head_->run(inputs, made, profile);
  }
  behind_->run(inputs, std::move(made), outputs, profile);
}

}  // namespace lathe
