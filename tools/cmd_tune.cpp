// lathe tune MODEL: measures plans for the model's tasks and keeps the winners in the tuning cache.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cache/tuning_cache.h"
#include "src/base/cpu.h"
#include "src/runtime/session_state.h"
#include "tools/duration.h"
#include "tools/model_inputs.h"
#include "tools/model_options.h"
#include "tools/progress.h"
#include "tools/verbs.h"
#include "tuner/candidate.h"
#include "tuner/search.h"

namespace lathe::tools {
namespace {

struct TuneOptions {
  ModelOptions model;
  InputOptions inputs;
  std::string budget = "60s";
  bool is_forced = false;
};

std::string shortened(std::string text) {
  if (text.size() > 60) text = text.substr(0, 58) + "..";
  return text;
}

// The tasks that lowering this model asks plans for, costliest first, without those that the cache already has.
std::vector<TuningTask> tasks_to_tune(const CachedPlans& plans, const TuningCache& cache, bool is_forced) {
  std::vector<TuningTask> tasks = plans.recorded();
  if (!is_forced)
    std::erase_if(tasks, [&](const TuningTask& task) { return cache.find(plans.key_of(task)).has_value(); });
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const TuningTask& a, const TuningTask& b) { return a.flop > b.flop; });
  return tasks;
}

// "  instead of rows=14": what the rule has otherwise.
std::string difference(const Candidate& rule, const Candidate& winner) {
  Candidate other;
  for (const auto& [knob, value] : rule)
    if (const auto found = winner.find(knob); found == winner.end() || found->second != value) other[knob] = value;
  return other.empty() ? "" : "  instead of " + to_string(other);
}

SearchResult tune_task(const TuningTask& task, double seconds, const std::string& label) {
  Progress line;
  SearchOptions options;
  options.budget = std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  return search(task, options, steady_tuner_clock(), [&](const SearchProgress& progress) {
    line.show(fmt::format("{} {} measured, best {:.1f} us", label, progress.measured, progress.best_ns / 1e3));
  });
}

void check(const TuningCache& cache, const std::string& path) {
  if (!cache.problem().empty()) throw Error(ErrorCode::io, "tuning cache '" + path + "': " + cache.problem());
}

void tune(const TuneOptions& options) {
  const double budget = parse_seconds(options.budget, "--budget");
  if (!options.model.session.use_cache) {
    throw Error(ErrorCode::invalid_argument,
                "option --no-cache: tune keeps what it finds in a cache; give --cache FILE");
  }
  const std::string path = tuning_cache_path(options.model.session.cache_path);
  if (path.empty()) throw Error(ErrorCode::io, "no place for the tuning cache: give --cache FILE or set LATHE_CACHE");
  TuningCache cache(path, TuningCache::Access::read_write);
  check(cache, path);  // before a session warns that it goes without
  const Session session = Session::load(options.model.model, options.model.session);
  const Session::State& state = *session.state();
  const std::vector<Tensor> inputs = make_inputs(session, options.inputs);
  state.check_inputs(inputs);
  (void)state.runner->part_for(inputs);

  const CachedPlans& plans = *state.context->plans;
  const std::vector<TuningTask> tasks = tasks_to_tune(plans, cache, options.is_forced);
  fmt::print("{} tasks, {} to tune, cache {}\n", plans.recorded().size(), tasks.size(), path);

  const auto begin = std::chrono::steady_clock::now();
  size_t faster = 0, measured = 0;
  double log_gains = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (spent >= budget) {
      fmt::print("budget spent: {} tasks left as they were\n", tasks.size() - i);
      break;
    }
    const SearchResult result = tune_task(tasks[i], (budget - spent) / static_cast<double>(tasks.size() - i),
                                          fmt::format("[{}/{}] {}", i + 1, tasks.size(), shortened(tasks[i].key)));
    if (result.measured == 0) continue;
    const auto now =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
    cache.store(plans.key_of(tasks[i]),
                {to_string(result.winner), result.nanoseconds, result.spread, now.count(), LATHE_VERSION});
    check(cache, path);  // nobody wants to search on for what cannot be kept
    log_gains += std::log(result.gain);
    ++measured;
    if (result.winner != tasks[i].space.fallback) ++faster;
    fmt::print("{:>8.1f} us  x{:.2f}  {} {}  {}{}\n", result.nanoseconds / 1e3, result.gain, tasks[i].family,
               tasks[i].key, to_string(result.winner), difference(tasks[i].space.fallback, result.winner));
  }
  if (measured == 0) return;
  fmt::print("{} of {} tasks got a faster plan; the rule's plans take {:.3f} times as long in geometric mean\n", faster,
             measured, std::exp(log_gains / static_cast<double>(measured)));
}

}  // namespace

void add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* verb = app.add_subcommand("tune", "search faster plans for a model and keep them in the tuning cache");
  options->model.add_to(*verb);
  options->inputs.add_to(*verb);
  verb->add_option("--budget", options->budget, "time to spend: 60s, 10m");
  verb->add_flag("--force", options->is_forced, "tune again what the cache already has");
  verb->callback([options] { tune(*options); });
}

}  // namespace lathe::tools
