#include "src/runtime/growth.h"

#include <algorithm>

#include "src/runtime/staged_graph.h"

namespace lathe {
namespace {

constexpr size_t kKeptStaged = 4;    // of prompts, tokens and a few sizes of batches
constexpr size_t kKeptRefused = 16;  // sets of axes
// One whole specialization is faster than stages, and takes about as long to make as some runs by stages: shapes that
// come again and again get one.
constexpr int kRepetitions = 8;

}  // namespace

InputShapes InputShapes::of(std::span<const Tensor> inputs) {
  InputShapes result;
  for (const Tensor& input : inputs) {
    result.dtypes.push_back(input.dtype());
    result.shapes.push_back(input.dims());
  }
  return result;
}

bool InputShapes::are_of(std::span<const Tensor> inputs) const {
  if (dtypes.size() != inputs.size()) return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (dtypes[i] != inputs[i].dtype() || shapes[i] != inputs[i].dims()) return false;
  return true;
}

size_t InputShapes::hash(std::span<const Tensor> inputs) {
  uint64_t hash = inputs.size();
  const auto add = [&](uint64_t number) {
    // Multiplication carries upwards only.
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
    hash = (hash ^ number) * kOdd;
    hash ^= hash >> 32;
  };
  for (const Tensor& input : inputs) {
    add(static_cast<uint64_t>(input.dtype()));
    for (const int64_t extent : input.dims()) add(static_cast<uint64_t>(extent));
  }
  return hash;
}

std::shared_ptr<const StagedGraph> Growth::staged_for(const Graph& graph, const std::shared_ptr<RunnerContext>& context,
                                                      const InputShapes* last, std::span<const Tensor> inputs) {
  for (size_t s = 0; s < staged_.size(); ++s) {
    if (!staged_[s].graph->fits(inputs)) continue;
    if (repeats(inputs)) return nullptr;
    std::rotate(staged_.begin(), staged_.begin() + static_cast<std::ptrdiff_t>(s),
                staged_.begin() + static_cast<std::ptrdiff_t>(s) + 1);
    return staged_.front().graph;
  }
  return last == nullptr ? nullptr : make(graph, context, *last, inputs);
}

bool Growth::repeats(std::span<const Tensor> inputs) {
  if (last_staged_.are_of(inputs)) return ++repetitions_ >= kRepetitions;
  last_staged_ = InputShapes::of(inputs);
  repetitions_ = 0;
  return false;
}

std::shared_ptr<const StagedGraph> Growth::make(const Graph& graph, const std::shared_ptr<RunnerContext>& context,
                                                const InputShapes& last, std::span<const Tensor> inputs) {
  Axes axes = changed(last, inputs);
  const bool is_habit = !axes.empty() && axes == last_change_;
  last_change_ = axes;
  if (!is_habit || std::find(refused_.begin(), refused_.end(), axes) != refused_.end()) return nullptr;
  const InputShapes now = InputShapes::of(inputs);
  auto made = StagedGraph::make(graph, context, now.dtypes, last.shapes, now.shapes);
  if (made == nullptr) {
    refuse(std::move(axes));
    return nullptr;
  }
  if (staged_.size() == kKeptStaged) staged_.pop_back();
  staged_.insert(staged_.begin(), {std::move(axes), made});
  return made;
}

void Growth::refuse(Axes axes) {
  if (refused_.size() == kKeptRefused) refused_.erase(refused_.begin());
  refused_.push_back(std::move(axes));
}

void Growth::drop(const StagedGraph& staged) {
  const auto found =
      std::find_if(staged_.begin(), staged_.end(), [&](const Staged& one) { return one.graph.get() == &staged; });
  if (found == staged_.end()) return;
  refuse(std::move(found->open));
  staged_.erase(found);
}

// Empty where more than extents differ, too.
Growth::Axes Growth::changed(const InputShapes& last, std::span<const Tensor> inputs) {
  Axes axes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DType dtype = inputs[i].dtype();
    const Dims &before = last.shapes[i], &now = inputs[i].dims();
    if (dtype != last.dtypes[i] || dtype == DType::string || dtype == DType::object || before.size() != now.size())
      return {};
    for (size_t axis = 0; axis < now.size(); ++axis)
      if (before[axis] != now[axis]) axes.emplace_back(i, axis);
  }
  return axes;
}

}  // namespace lathe
