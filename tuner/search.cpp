#include "tuner/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <set>

#include "tuner/candidate.h"

namespace lathe {
namespace {

using std::chrono::nanoseconds;

// The rest of the budget belongs to the final rounds.
constexpr double kScreeningShare = 0.7;
constexpr double kRandomShare = 0.4;  // of the screening, when the space is too large for all
// A candidate is screened by the fastest of a few runs; one that is this far off needs no second run.
constexpr int kScreeningRuns = 4;
constexpr double kHopeless = 1.5;
// Shorter runs are timed several at once: reading a clock takes some 25 ns, and waking a thread varies by more.
constexpr double kSampleNs = 20'000;
// Of a median, when a finalist counts as faster: 1 in 100 would seem so by chance.
constexpr double kDeviations = 2.33;

struct Entrant {
  Candidate candidate;
  Runner run;
  int repeats = 1;  // runs per timing
  double screened_ns = 0;
  std::vector<double> final_ns;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - static_cast<double>(below));
}

double median(const std::vector<double>& values) { return quantile(values, 0.5); }

class Search {
 public:
  Search(const TuningTask& task, const SearchOptions& options, const TunerClock& clock,
         const std::function<void(const SearchProgress&)>& on_progress)
      : task_(task),
        options_(options),
        clock_(clock),
        on_progress_(on_progress),
        random_(options.seed),
        start_(clock()) {}

  SearchResult run() {
    try_candidate(task_.space.fallback);
    if (const auto all = enumerate()) {
      is_complete_ = try_all(*all);
    } else {
      sample(kScreeningShare * kRandomShare);
      climb();
    }
    play_final();
    return result();
  }

 private:
  bool spent(double share) const {
    return static_cast<double>((clock_() - start_).count()) >= share * static_cast<double>(options_.budget.count());
  }

  // Nanoseconds of one run, over `repeats` runs in a row.
  double time(const Runner& runner, int repeats) const {
    if (!runner.prepare) {
      const nanoseconds begin = clock_();
      for (int i = 0; i < repeats; ++i) runner.run();
      return static_cast<double>((clock_() - begin).count()) / repeats;
    }
    nanoseconds sum{0};
    for (int i = 0; i < repeats; ++i) {
      runner.prepare();
      const nanoseconds begin = clock_();
      runner.run();
      sum += clock_() - begin;
    }
    return static_cast<double>(sum.count()) / repeats;
  }

  // Measures a candidate unless it was seen. True: it is the fastest so far.
  bool try_candidate(const Candidate& candidate) {
    if (!seen_.insert(candidate).second) return false;
    Runner runner = task_.build(candidate);
    if (!runner) {
      ++rejected_;
      return false;
    }
    ++measured_;
    const double best_before = best_ns();
    runner.run();  // faults pages in and fills caches
    double fastest = time(runner, 1);
    const int repeats = std::clamp(static_cast<int>(kSampleNs / std::max(1.0, fastest)), 1, 1000);
    for (int i = 1; i < kScreeningRuns && fastest < kHopeless * best_before; ++i)
      fastest = std::min(fastest, time(runner, repeats));
    admit({candidate, std::move(runner), repeats, fastest, {}});
    report();
    return fastest < best_before;
  }

  // Keeps the fallback and the fastest few; operands and code of all others are freed.
  void admit(Entrant entrant) {
    if (entrant.candidate == task_.space.fallback) {
      fallback_ = std::move(entrant);
      return;
    }
    const auto place = std::upper_bound(finalists_.begin(), finalists_.end(), entrant.screened_ns,
                                        [](double ns, const Entrant& other) { return ns < other.screened_ns; });
    finalists_.insert(place, std::move(entrant));
    if (finalists_.size() > static_cast<size_t>(std::max(1, options_.finalists))) finalists_.pop_back();
  }

  const Entrant* best() const {
    const Entrant* best = fallback_ ? &*fallback_ : nullptr;
    if (!finalists_.empty() && (best == nullptr || finalists_.front().screened_ns < best->screened_ns))
      best = &finalists_.front();
    return best;
  }
  double best_ns() const { return best() != nullptr ? best()->screened_ns : std::numeric_limits<double>::infinity(); }

  // All allowed candidates, or nothing when they are too many. Those that differ least from the fallback come first, so
  // that a short budget is spent where the analytic model thinks the best ones are.
  std::optional<std::vector<Candidate>> enumerate() const {
    // Combinations are cheap to check and dear to measure: look at more than would be run.
    constexpr double kCombinationsLookedAt = 100'000;
    double combinations = 1;
    for (const Knob& knob : task_.space.knobs) combinations *= static_cast<double>(knob.choices.size());
    if (combinations > kCombinationsLookedAt) return std::nullopt;
    std::vector<Candidate> all = {{}};
    for (const Knob& knob : task_.space.knobs) {
      std::vector<Candidate> longer;
      for (const Candidate& prefix : all)
        for (int choice : knob.choices) longer.emplace_back(prefix).emplace(knob.name, choice);
      all = std::move(longer);
    }
    std::erase_if(all, [&](const Candidate& c) { return task_.space.allowed && !task_.space.allowed(c); });
    if (all.size() > options_.exhaustive_up_to) return std::nullopt;
    std::stable_sort(all.begin(), all.end(),
                     [&](const Candidate& a, const Candidate& b) { return changes(a) < changes(b); });
    return all;
  }

  // Knobs whose value is not the fallback's.
  int changes(const Candidate& candidate) const {
    int count = 0;
    for (const auto& [name, value] : candidate) {
      const auto kept = task_.space.fallback.find(name);
      count += kept == task_.space.fallback.end() || kept->second != value;
    }
    return count;
  }

  bool try_all(const std::vector<Candidate>& all) {
    for (const Candidate& candidate : all) {
      if (spent(kScreeningShare)) return false;
      try_candidate(candidate);
    }
    return true;
  }

  std::optional<Candidate> random_candidate() {
    constexpr int kDraws = 1000;  // rejection sampling; a space that allows less than this is left alone
    for (int draw = 0; draw < kDraws; ++draw) {
      Candidate candidate;
      for (const Knob& knob : task_.space.knobs) {
        std::uniform_int_distribution<size_t> pick(0, knob.choices.size() - 1);
        candidate.emplace(knob.name, knob.choices[pick(random_)]);
      }
      if (!seen_.contains(candidate) && is_valid(task_.space, candidate)) return candidate;
    }
    return std::nullopt;
  }

  void sample(double share) {
    while (!spent(share)) {
      const std::optional<Candidate> candidate = random_candidate();
      if (!candidate) return;
      try_candidate(*candidate);
    }
  }

  // Candidates that differ from `from` in one knob: all choices, since neighbours in the list need not be close in
  // speed.
  std::vector<Candidate> neighbours(const Candidate& from) {
    std::vector<Candidate> near;
    for (const Knob& knob : task_.space.knobs)
      for (int choice : knob.choices) {
        Candidate candidate = from;
        candidate.insert_or_assign(knob.name, choice);
        if (!seen_.contains(candidate) && is_valid(task_.space, candidate)) near.push_back(std::move(candidate));
      }
    std::shuffle(near.begin(), near.end(), random_);
    return near;
  }

  // Walks from the best to a better neighbour until none is better, then samples on with what is left.
  void climb() {
    bool is_moving = best() != nullptr;
    while (is_moving && !spent(kScreeningShare)) {
      is_moving = false;
      for (const Candidate& candidate : neighbours(best()->candidate)) {
        if (spent(kScreeningShare)) return;
        if (!try_candidate(candidate)) continue;
        is_moving = true;
        break;
      }
    }
    sample(kScreeningShare);
  }

  // In turns, so that a machine that slows down for a while slows all down alike.
  void play_final() {
    std::vector<Entrant*> players;
    if (fallback_) players.push_back(&*fallback_);
    for (Entrant& finalist : finalists_) players.push_back(&finalist);
    constexpr int kLeastRounds = 5;  // even when the budget is gone: a median of fewer says nothing
    for (int round = 0; round < options_.final_rounds && (round < kLeastRounds || !spent(1)); ++round)
      for (size_t i = 0; i < players.size(); ++i) {
        Entrant& player = *players[(i + static_cast<size_t>(round)) % players.size()];
        player.final_ns.push_back(time(player.run, player.repeats));
      }
  }

  // Of each round: drift between rounds cancels.
  std::vector<double> ratios_to_fallback(const Entrant& finalist) const {
    std::vector<double> ratios;
    for (size_t round = 0; round < finalist.final_ns.size(); ++round)
      ratios.push_back(std::max(1.0, finalist.final_ns[round]) / std::max(1.0, fallback_->final_ns[round]));
    return ratios;
  }

  // What the median of the ratios is at most, were there any number of rounds.
  static double bound_of_median(const std::vector<double>& ratios) {
    return quantile(ratios, std::min(1.0, 0.5 + kDeviations / 2 / std::sqrt(static_cast<double>(ratios.size()))));
  }

  const Entrant* winner() const {
    const Entrant* winner = fallback_ ? &*fallback_ : nullptr;
    double least = fallback_ ? 1 - options_.margin : std::numeric_limits<double>::infinity();
    for (const Entrant& finalist : finalists_) {
      const double measure = fallback_ ? bound_of_median(ratios_to_fallback(finalist)) : median(finalist.final_ns);
      if (measure >= least) continue;
      least = measure;
      winner = &finalist;
    }
    return winner;
  }

  SearchResult result() const {
    SearchResult result;
    result.winner = task_.space.fallback;
    result.measured = measured_;
    result.rejected = rejected_;
    result.is_complete = is_complete_;
    if (const Entrant* best = winner()) {
      result.winner = best->candidate;
      result.nanoseconds = median(best->final_ns);
      const double range = quantile(best->final_ns, 0.75) - quantile(best->final_ns, 0.25);
      result.spread = result.nanoseconds > 0 ? range / result.nanoseconds : 0;
      const double ratio = fallback_ && best != &*fallback_ ? median(ratios_to_fallback(*best)) : 1;
      result.gain = 1 / ratio;
    }
    return result;
  }

  void report() const {
    if (!on_progress_) return;
    on_progress_({.measured = measured_,
                  .rejected = rejected_,
                  .best_ns = best_ns(),
                  .fallback_ns = fallback_ ? fallback_->screened_ns : 0,
                  .elapsed = clock_() - start_,
                  .best = &best()->candidate});
  }

  const TuningTask& task_;
  const SearchOptions& options_;
  const TunerClock& clock_;
  const std::function<void(const SearchProgress&)>& on_progress_;
  std::mt19937_64 random_;
  const nanoseconds start_;

  std::set<Candidate> seen_;
  std::optional<Entrant> fallback_;
  std::vector<Entrant> finalists_;  // fastest first
  size_t measured_ = 0, rejected_ = 0;
  bool is_complete_ = false;
};

}  // namespace

TunerClock steady_tuner_clock() {
  return [] { return std::chrono::steady_clock::now().time_since_epoch(); };
}

SearchResult search(const TuningTask& task, const SearchOptions& options, const TunerClock& clock,
                    const std::function<void(const SearchProgress&)>& on_progress) {
  return Search(task, options, clock, on_progress).run();
}

}  // namespace lathe
