#include "src/runtime/graph_runner.h"

#include <algorithm>
#include <iterator>

#include "graph/infer.h"
#include "lathe/error.h"
#include "src/base/cgroup.h"
#include "src/base/check.h"
#include "src/runtime/stage_graph.h"
#include "src/runtime/staged_graph.h"

namespace lathe {
namespace {

// Shapes that come again cost nothing: a handful of them at least, and as many lengths of sentences or sizes of
// pictures as there is memory for.
constexpr size_t kFewestKept = 16, kMostKept = 512;

// A small part of the memory: a BERT takes about 1 MB for each length.
size_t most_kept_bytes() {
  constexpr size_t kPart = 64, kFewest = size_t{64} << 20, kMost = size_t{256} << 20;
  return std::clamp(memory_limit() / kPart, kFewest, kMost);
}

}  // namespace

GraphRunner::GraphRunner(std::unique_ptr<Graph> graph, std::shared_ptr<RunnerContext> context, size_t cuts,
                         Growing growing, std::shared_ptr<BodyRunners> bodies)
    : graph_(std::move(graph)),
      context_(std::move(context)),
      cuts_(cuts),
      growing_(growing),
      bodies_(bodies != nullptr ? std::move(bodies) : std::make_shared<BodyRunners>(context_)) {
  infer_types(*graph_, context_->limits);
  load_report_ = run_passes(*graph_, load_passes(), context_->pass_context(), context_->optimization_level,
                            context_->disabled_passes);
  // Each specialization begins as a copy of it.
  graph_ = compacted(std::move(*graph_));
}

std::shared_ptr<const GraphPart> GraphRunner::part_for(std::span<const Tensor> inputs) {
  // Held while a part is made, so that threads that ask for the same shapes do not make it twice.
  std::lock_guard lock(mutex_);
  const size_t hash = InputShapes::hash(inputs);
  if (const auto entry = find_entry(inputs, hash); entry != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, entry);
    return entry->part;
  }
  recent_.push_front({InputShapes::of(inputs), hash, make_part(inputs)});
  by_hash_.emplace(hash, recent_.begin());
  kept_bytes_ += recent_.front().part->kept_bytes();
  while (keeps_too_much()) forget_oldest();
  return recent_.front().part;
}

bool GraphRunner::keeps_too_much() const {
  return recent_.size() > kFewestKept && (recent_.size() > kMostKept || kept_bytes_ > most_kept_bytes());
}

void GraphRunner::forget_oldest() {
  const auto oldest = std::prev(recent_.end());
  const auto [first, last] = by_hash_.equal_range(oldest->hash);
  const auto known = std::find_if(first, last, [&](const auto& one) { return one.second == oldest; });
  if (known != last) by_hash_.erase(known);
  kept_bytes_ -= oldest->part->kept_bytes();
  recent_.pop_back();
}

GraphRunner::Entries::iterator GraphRunner::find_entry(std::span<const Tensor> inputs, size_t hash) {
  const auto [first, last] = by_hash_.equal_range(hash);
  const auto found = std::find_if(first, last, [&](const auto& one) { return one.second->inputs.are_of(inputs); });
  return found == last ? recent_.end() : found->second;
}

std::shared_ptr<const GraphPart> GraphRunner::make_part(std::span<const Tensor> inputs) {
  if (failure_) std::rethrow_exception(failure_);
  LATHE_CHECK(!gave_constants_, "another shape than the one that was promised");
  // The first of several: what all of them have is nobody's own.
  if (!has_one_shape_ && recent_.empty()) context_->constants->share(*graph_);
  if (growing_ == Growing::replayed) {
    try {
      return std::make_shared<const GraphPart>(std::make_unique<Graph>(*graph_), inputs, context_, cuts_, bodies_,
                                               Constants::keep, &replay_);
    } catch (const Error&) {
      // Whatever these extents need, or whatever is wrong with them: all passes tell.
      replay_.forget();
    }
  }
  auto graph = std::make_unique<Graph>(*graph_);
  if (!has_one_shape_) return std::make_shared<const GraphPart>(std::move(graph), inputs, context_, cuts_, bodies_);
  gave_constants_ = true;
  for (size_t v = 0; v < graph_->value_count(); ++v) graph_->value(static_cast<ValueId>(v)).constant = Tensor();
  try {
    return std::make_shared<const GraphPart>(std::move(graph), inputs, context_, cuts_, bodies_, Constants::release);
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

std::shared_ptr<const StagedGraph> GraphRunner::staged_for(std::span<const Tensor> inputs) {
  if (growing_ != Growing::cut || has_one_shape_) return nullptr;
  std::lock_guard lock(mutex_);
  if (find_entry(inputs, InputShapes::hash(inputs)) != recent_.end()) return nullptr;
  return growth_.staged_for(*graph_, context_, recent_.empty() ? nullptr : &recent_.front().inputs, inputs);
}

const BranchCut* GraphRunner::branch_cut() {
  if (growing_ != Growing::cut || has_one_shape_) return nullptr;
  std::call_once(looked_for_branch_, [&] { branch_cut_ = BranchCut::make(*graph_, context_, bodies_, cuts_); });
  return branch_cut_.get();
}

void GraphRunner::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) {
  if (const BranchCut* at_branch = branch_cut()) return at_branch->run(inputs, outputs, profile);
  if (const auto staged = staged_for(inputs)) {
    if (staged->run(inputs, outputs, profile)) return;
    std::lock_guard lock(mutex_);
    growth_.drop(*staged);
  }
  part_for(inputs)->run(inputs, outputs, profile);
}

}  // namespace lathe
