#include "src/runtime/staged_graph.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "src/runtime/deliver.h"
#include "src/runtime/stage_graph.h"

namespace lathe {
namespace {

bool is_of(const Tensor& tensor, const TensorType& type) {
  if (tensor.dtype() != type.dtype) return false;
  if (!type.has_rank) return true;
  const Dims& dims = tensor.dims();
  return std::equal(dims.begin(), dims.end(), type.dims.begin(), type.dims.end(),
                    [](int64_t extent, const Dim& dim) { return !dim.known() || extent == dim.extent; });
}

// Stages as graphs, equal open ones once.
struct StageGraphs {
  std::vector<std::unique_ptr<Graph>> graphs;  // null: as `same` says
  std::vector<size_t> same;                    // the first stage that is equal
  size_t open_nodes = 0;                       // of all open graphs

  StageGraphs(const Graph& graph, const Stages& stages) {
    std::unordered_map<std::string, size_t> seen;
    for (const Stage& stage : stages.stages) {
      const size_t number = graphs.size();
      graphs.push_back(graph_of(stage, graph, stages.types));
      same.push_back(number);
      if (!stage.is_open) continue;
      if (const std::string key = key_of(*graphs.back()); !key.empty())
        same.back() = seen.try_emplace(key, number).first->second;
      if (same.back() == number)
        open_nodes += stage.work;
      else
        graphs.back() = nullptr;
    }
  }
};

}  // namespace

std::shared_ptr<const StagedGraph> StagedGraph::make(const Graph& graph, std::shared_ptr<RunnerContext> context,
                                                     std::span<const DType> dtypes, std::span<const Dims> first,
                                                     std::span<const Dims> second) {
  const auto stages = stages_of(graph, *context, dtypes, first, second);
  if (!stages) return nullptr;
  const Graph& bound = *stages->graph;
  StageGraphs graphs(bound, *stages);
  // What a new length costs is what the open nodes cost.
  if (2 * graphs.open_nodes > stages->nodes) return nullptr;
  std::shared_ptr<StagedGraph> staged(new StagedGraph);
  std::vector<size_t> slots(bound.value_count(), kConstant);
  for (const ValueId id : bound.inputs) {
    staged->input_types_.push_back(stages->types[index_of(id)]);
    slots[index_of(id)] = staged->slots_++;
  }
  std::vector<std::shared_ptr<GraphRunner>> runners;
  for (size_t s = 0; s < stages->stages.size(); ++s) {
    if (graphs.same[s] == s)
      runners.push_back(std::make_shared<GraphRunner>(
          std::move(graphs.graphs[s]), context, 0, stages->stages[s].is_open ? Growing::replayed : Growing::ignored));
    else
      runners.push_back(runners[graphs.same[s]]);
    staged->add_stage(stages->stages[s], runners.back(), stages->types, slots);
  }
  staged->find_results(bound, slots);
  staged->find_dead();
  return staged;
}

void StagedGraph::add_stage(const Stage& stage, std::shared_ptr<GraphRunner> runner,
                            const std::vector<TensorType>& types, std::vector<size_t>& slots) {
  RunnableStage runnable{.runner = std::move(runner), .is_open = stage.is_open};
  for (const ValueId id : stage.inputs) runnable.inputs.push_back(slots[index_of(id)]);
  for (const ValueId id : stage.outputs) {
    runnable.outputs.push_back(slots[index_of(id)] = slots_++);
    runnable.output_types.push_back(types[index_of(id)]);
  }
  stages_.push_back(std::move(runnable));
}

void StagedGraph::find_results(const Graph& graph, const std::vector<size_t>& slots) {
  for (const ValueId id : graph.outputs) results_.push_back({slots[index_of(id)], graph.value(id).constant});
}

void StagedGraph::find_dead() {
  std::vector<bool> is_read(slots_, false);
  for (const Result& result : results_)
    if (result.slot != kConstant) is_read[result.slot] = true;
  for (size_t s = stages_.size(); s-- > 0;)
    for (const auto* list : {&stages_[s].inputs, &stages_[s].outputs})
      for (const size_t slot : *list) {
        if (!is_read[slot]) stages_[s].dead.push_back(slot);
        is_read[slot] = true;
      }
}

StagedGraph::Counts StagedGraph::counts() const {
  Counts counts{.stages = stages_.size()};
  std::set<const GraphRunner*> open;
  for (const RunnableStage& stage : stages_) {
    counts.open_stages += stage.is_open ? 1 : 0;
    if (stage.is_open) open.insert(stage.runner.get());
  }
  counts.open_runners = open.size();
  return counts;
}

bool StagedGraph::fits(std::span<const Tensor> inputs) const {
  return std::equal(inputs.begin(), inputs.end(), input_types_.begin(), input_types_.end(), is_of);
}

bool StagedGraph::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const {
  std::vector<Tensor> values(inputs.begin(), inputs.end());
  values.resize(slots_);
  for (const RunnableStage& stage : stages_)
    if (!run_stage(stage, values, outputs, profile)) return false;
  for (size_t i = 0; i < outputs.size(); ++i)
    deliver(results_[i].slot == kConstant ? results_[i].constant : values[results_[i].slot], outputs[i]);
  return true;
}

bool StagedGraph::run_stage(const RunnableStage& stage, std::vector<Tensor>& values, std::span<const Tensor> outputs,
                            Profile* profile) const {
  std::vector<Tensor> given, made(stage.outputs.size());
  for (const size_t slot : stage.inputs) given.push_back(values[slot]);
  const auto part = stage.runner->part_for(given);
  // Right into the caller's buffers, where they are what the result needs; deliver() finds out about others.
  const auto& types = part->head().output_types();
  for (size_t i = 0; i < made.size() && part->behind() == nullptr; ++i)
    for (size_t k = 0; k < outputs.size(); ++k)
      if (results_[k].slot == stage.outputs[i] && outputs[k].defined() && is_of(outputs[k], types[i]))
        made[i] = outputs[k];
  part->run(given, made, profile);
  for (size_t i = 0; i < made.size(); ++i) {
    if (!is_of(made[i], stage.output_types[i])) return false;
    values[stage.outputs[i]] = std::move(made[i]);
  }
  for (const size_t slot : stage.dead) values[slot] = Tensor();
  return true;
}

}  // namespace lathe
