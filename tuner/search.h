#pragma once
// Finds a task's fastest candidate by measuring, within a budget. Times are comparisons on one machine at one time:
// finalists and the fallback are measured in turns, and the fallback keeps its place unless it is surely beaten: the
// best of many candidates that are alike looks faster than they are.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "tuner/task.h"

namespace lathe {

// Injected, so that tests own the time. Returns the time since some fixed moment.
using TunerClock = std::function<std::chrono::nanoseconds()>;
TunerClock steady_tuner_clock();

struct SearchOptions {
  std::chrono::nanoseconds budget = std::chrono::seconds(1);
  double margin = 0.02;           // a winner surely beats the fallback by at least this part
  size_t exhaustive_up_to = 128;  // larger spaces are sampled, then climbed
  int finalists = 3;              // besides the fallback
  int final_rounds = 101;         // at most, in the time that is left; each finalist and the fallback once per round
  uint64_t seed = 1;
};

struct SearchProgress {
  size_t measured = 0, rejected = 0;
  double best_ns = 0, fallback_ns = 0;
  std::chrono::nanoseconds elapsed{0};
  const Candidate* best = nullptr;  // valid during the call
};

struct SearchResult {
  Candidate winner;        // the fallback unless something was faster by the margin
  double nanoseconds = 0;  // the winner's median in the final rounds
  double spread = 0;       // its interquartile range over its median
  double gain = 1;         // the fallback's time over the winner's: median over the final rounds; 1 without a fallback
  size_t measured = 0;     // candidates that ran
  size_t rejected = 0;     // candidates that could not be built
  bool is_complete = false;  // the whole space was measured
};

// Stops soon after the budget is spent; the fallback is measured in any case. When not even the fallback can be built,
// the best of the others wins; when nothing can, `measured` is 0 and the fallback is returned.
SearchResult search(const TuningTask& task, const SearchOptions& options, const TunerClock& clock,
                    const std::function<void(const SearchProgress&)>& on_progress = nullptr);

}  // namespace lathe
