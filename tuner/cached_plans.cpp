#include "tuner/cached_plans.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lathe/error.h"
#include "tuner/candidate.h"

namespace lathe {
namespace {

// A row from a damaged file or from a space that has changed without its version: nothing. The fallback may lie outside
// the space that is searched, and win all the same.
std::optional<Candidate> valid_candidate(const SearchSpace& space, const std::string& text) {
  try {
    Candidate candidate = parse_candidate(text);
    if (candidate == space.fallback || is_valid(space, candidate)) return candidate;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

bool is_same_task(const TuningTask& a, const TuningTask& b) {
  return a.key == b.key && a.family == b.family && a.threads == b.threads;
}

}  // namespace

CachedPlans::CachedPlans(std::shared_ptr<const TuningCache> cache, std::string cpu, Recording recording)
    : cache_(std::move(cache)), cpu_(std::move(cpu)), recording_(recording) {}

TuningKey CachedPlans::key_of(const TuningTask& task) const { return {cpu_, task.threads, task.family, task.key}; }

Candidate CachedPlans::choose(const TuningTask& task) {
  std::optional<TunedPlan> row;
  std::optional<Candidate> tuned;
  if (cache_ != nullptr) row = cache_->find(key_of(task));
  if (row) tuned = valid_candidate(task.space, row->candidate);
  const std::lock_guard lock(mutex_);
  if (recording_ == Recording::on) record(task);
  ++(tuned ? counts_.hits : counts_.misses);
  if (row && !tuned) ++counts_.invalid;
  return tuned ? *std::move(tuned) : task.space.fallback;
}

void CachedPlans::record(const TuningTask& task) {
  const bool is_known = std::any_of(recorded_.begin(), recorded_.end(),
                                    [&](const TuningTask& other) { return is_same_task(task, other); });
  if (!is_known) recorded_.push_back(task);
}

CachedPlans::Counts CachedPlans::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::vector<TuningTask> CachedPlans::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

}  // namespace lathe
