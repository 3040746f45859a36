#include "src/runtime/graph_runner.h"

#include <algorithm>

#include "graph/infer.h"
#include "src/base/check.h"

namespace lathe {
namespace {

// Enough for a handful of batch sizes and sequence lengths; each entry holds an arena.
constexpr size_t kKeptSpecializations = 16;

bool has_types(const std::vector<DType>& dtypes, const std::vector<Dims>& shapes, std::span<const Tensor> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (dtypes[i] != inputs[i].dtype() || shapes[i] != inputs[i].dims()) return false;
  return true;
}

}  // namespace

GraphRunner::GraphRunner(std::unique_ptr<Graph> graph, std::shared_ptr<RunnerContext> context, size_t cuts)
    : graph_(std::move(graph)), context_(std::move(context)), cuts_(cuts) {
  infer_types(*graph_, context_->limits);
  load_report_ = run_passes(*graph_, load_passes(), context_->pass_context(), context_->optimization_level,
                            context_->disabled_passes);
}

std::shared_ptr<const GraphPart> GraphRunner::part_for(std::span<const Tensor> inputs) {
  // Held while a part is made, so that threads that ask for the same shapes do not make it twice.
  std::lock_guard lock(mutex_);
  for (auto entry = recent_.begin(); entry != recent_.end(); ++entry)
    if (has_types(entry->dtypes, entry->shapes, inputs)) {
      recent_.splice(recent_.begin(), recent_, entry);
      return entry->part;
    }
  Entry entry;
  for (const Tensor& input : inputs) {
    entry.dtypes.push_back(input.dtype());
    entry.shapes.push_back(input.dims());
  }
  entry.part = make_part(inputs);
  recent_.push_front(std::move(entry));
  if (recent_.size() > kKeptSpecializations) recent_.pop_back();
  return recent_.front().part;
}

std::shared_ptr<const GraphPart> GraphRunner::make_part(std::span<const Tensor> inputs) {
  if (failure_) std::rethrow_exception(failure_);
  LATHE_CHECK(!gave_constants_, "another shape than the one that was promised");
  auto graph = std::make_unique<Graph>(*graph_);
  if (!has_one_shape_) return std::make_shared<const GraphPart>(std::move(graph), inputs, context_, cuts_);
  gave_constants_ = true;
  for (size_t v = 0; v < graph_->value_count(); ++v) graph_->value(static_cast<ValueId>(v)).constant = Tensor();
  try {
    return std::make_shared<const GraphPart>(std::move(graph), inputs, context_, cuts_, Constants::release);
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

void GraphRunner::run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) {
  part_for(inputs)->run(inputs, outputs, profile);
}

}  // namespace lathe
