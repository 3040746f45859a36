// lathe bench-kernel TASK: how fast one task's kernels run alone, with the caches as inside a model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lathe/error.h"
#include "ops/task_text.h"
#include "src/base/topology.h"
#include "src/runtime/default_plans.h"
#include "tools/duration.h"
#include "tools/machine_peak.h"
#include "tools/progress.h"
#include "tools/verbs.h"
#include "tuner/candidate.h"

namespace lathe::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct KernelOptions {
  std::string task, tasks_file, plan, json;
  std::string duration = "200ms";
  int threads = 0;
  SessionOptions session;  // the tuning cache
};

struct Timing {
  std::string task, plan;
  double median_ms = 0, min_ms = 0, gflops = 0, gbytes_s = 0, of_peak = 0;
};

std::vector<std::string> tasks_of(const KernelOptions& options) {
  std::vector<std::string> tasks;
  if (!options.task.empty()) tasks.push_back(options.task);
  if (options.tasks_file.empty()) return tasks;
  std::ifstream file(options.tasks_file);
  if (!file) throw Error(ErrorCode::io, "cannot read '" + options.tasks_file + "'");
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') tasks.push_back(line);
  return tasks;
}

Candidate choose(const KernelOptions& options, const TuningTask& task, CachedPlans& plans) {
  if (options.plan.empty()) return plans.choose(task);
  Candidate candidate = task.space.fallback;
  for (const auto& [knob, value] : parse_candidate(options.plan)) candidate.insert_or_assign(knob, value);
  if (task.space.allowed && !task.space.allowed(candidate))
    throw Error(ErrorCode::invalid_argument, "the task does not allow the plan " + to_string(candidate));
  return candidate;
}

struct Job {
  std::string text;
  TuningTask task;
  Candidate plan;
};

// What is wrong with a task is said before the first is timed; of many, those for other instruction sets are left out.
std::vector<Job> jobs_of(const KernelOptions& options, CachedPlans& plans) {
  std::vector<Job> jobs;
  const std::vector<std::string> tasks = tasks_of(options);
  if (tasks.empty()) throw Error(ErrorCode::invalid_argument, "no task: give one, or --tasks FILE");
  for (const std::string& text : tasks) {
    try {
      Job job{text, parse_task(text, options.threads), {}};
      job.plan = choose(options, job.task, plans);
      jobs.push_back(std::move(job));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || tasks.size() == 1) throw;
    }
  }
  return jobs;
}

Timing time_job(const Job& job, double seconds, const MachinePeak& peak) {
  const Runner runner = job.task.build(job.plan);
  if (!runner) throw Error(ErrorCode::unsupported, "no kernel can be made for " + job.text);
  std::vector<double> times;
  const auto start = Clock::now();
  constexpr size_t kFewest = 7;
  runner.run();
  while (times.size() < kFewest || std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    if (runner.prepare) runner.prepare();
    const auto begin = Clock::now();
    runner.run();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  Timing timing{job.text, to_string(job.plan), times[times.size() / 2], times.front()};
  timing.gflops = job.task.flop / timing.median_ms / 1e6;
  timing.gbytes_s = job.task.bytes / timing.median_ms / 1e6;
  timing.of_peak = 100 * std::max(timing.gflops / peak.gflops, timing.gbytes_s / peak.read_gbytes_s);
  return timing;
}

nlohmann::json to_json(const Timing& timing) {
  return {{"task", timing.task},      {"plan", timing.plan},     {"median_ms", timing.median_ms},
          {"min_ms", timing.min_ms},  {"gflops", timing.gflops}, {"gbytes_s", timing.gbytes_s},
          {"of_peak", timing.of_peak}};
}

void bench_kernel(KernelOptions& options) {
  if (options.threads == 0) options.threads = usable_threads();
  const double seconds = parse_seconds(options.duration, "--duration");
  const auto plans = default_plans(options.session);
  const std::vector<Job> jobs = jobs_of(options, *plans);
  const MachinePeak peak = measure_peak(options.threads);
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("{:>9} {:>9} {:>8} {:>7} {:>6}  task\n", "ms", "min", "GFLOP/s", "GB/s", "peak %");
  Progress progress;
  for (const Job& job : jobs) {
    progress.show(fmt::format("[{}/{}]", rows.size() + 1, jobs.size()));
    const Timing timing = time_job(job, seconds, peak);
    progress.clear();
    fmt::print("{:>9.4f} {:>9.4f} {:>8.1f} {:>7.1f} {:>6.0f}  {}\n", timing.median_ms, timing.min_ms, timing.gflops,
               timing.gbytes_s, timing.of_peak, timing.task);
    rows.push_back(to_json(timing));
  }
  fmt::print("peak here, {} threads: {:.0f} GFLOP/s, {:.1f} GB/s from memory\n", options.threads, peak.gflops,
             peak.read_gbytes_s);
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << nlohmann::json{{"threads", options.threads},
                         {"peak_gflops", peak.gflops},
                         {"peak_gbytes_s", peak.read_gbytes_s},
                         {"tasks", rows}}
              .dump(1)
       << "\n";
  file.close();
  if (!file) throw Error(ErrorCode::io, "cannot write '" + options.json + "'");
}

}  // namespace

void add_bench_kernel(CLI::App& app) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* verb = app.add_subcommand("bench-kernel", "time one task's kernels alone, caches as inside a model");
  verb->add_option("TASK", options->task, "as `inspect --show tasks` prints it");
  verb->add_option("--tasks", options->tasks_file, "a file with a task in each line: one table");
  verb->add_option("--plan", options->plan, "values of knobs in place of the chosen plan's: \"rows=7 cols=4\"");
  verb->add_option("--duration", options->duration, "time for each task: 200ms");
  verb->add_option("--threads", options->threads, "0: as many as may be used")->check(CLI::NonNegativeNumber);
  verb->add_option("--json", options->json, "write the figures to this file");
  verb->add_option("--cache", options->session.cache_path, "the tuning cache's file");
  verb->add_flag("!--no-cache", options->session.use_cache, "do without the tuning cache");
  verb->callback([options] { bench_kernel(*options); });
}

}  // namespace lathe::tools
