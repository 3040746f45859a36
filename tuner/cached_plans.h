#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/tuning_cache.h"
#include "tuner/task.h"

namespace lathe {

// Plans from the cache where it has a valid one for this task, the analytic model's choice elsewhere. Thread-safe.
class CachedPlans : public PlanSource {
 public:
  enum class Recording { off, on };

  // `cache` may be null: then every task gets its fallback. `cpu`: cpu_key() of this machine.
  CachedPlans(std::shared_ptr<const TuningCache> cache, std::string cpu, Recording recording = Recording::off);

  Candidate choose(const TuningTask& task) override;

  struct Counts {
    size_t hits = 0;
    size_t misses = 0;
    size_t invalid = 0;  // of the misses: a row was there, but the space does not allow its candidate
  };
  Counts counts() const;
  // The different tasks that have been asked for, in the order of their first time. Empty unless recording.
  std::vector<TuningTask> recorded() const;

  TuningKey key_of(const TuningTask& task) const;

 private:
  void record(const TuningTask& task);

  const std::shared_ptr<const TuningCache> cache_;
  const std::string cpu_;
  const Recording recording_;
  mutable std::mutex mutex_;
  Counts counts_;
  std::vector<TuningTask> recorded_;
};

}  // namespace lathe
