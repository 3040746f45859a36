// lathe bench-kernel TASK: how fast one task's kernels run alone, with the caches as inside a model.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "lathe/error.h"
#include "ops/task_text.h"
#include "src/base/topology.h"
#include "src/base/write_file.h"
#include "src/runtime/default_plans.h"
#include "tools/duration.h"
#include "tools/machine_peak.h"
#include "tools/median.h"
#include "tools/node_task.h"
#include "tools/progress.h"
#include "tools/verbs.h"
#include "tuner/candidate.h"

namespace lathe::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct KernelOptions {
  std::string task, tasks_file, json;
  std::vector<std::string> plans;  // knobs of each; none: the chosen plan
  std::string duration = "200ms";
  bool is_server = false;
  int threads = 0;
  SessionOptions session;  // the tuning cache
};

struct Timing {
  std::string task, plan, bound;
  double median_ms = 0, min_ms = 0, gflops = 0, gbytes_s = 0, floor_ms = 0;
  double speedup = 1;  // over the first of the plans that take turns

  double of_peak() const { return 100 * floor_ms / median_ms; }
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

Candidate choose(const std::string& knobs, const TuningTask& task, CachedPlans& plans) {
  if (knobs.empty()) return plans.choose(task);
  Candidate candidate = task.space.fallback;
  for (const auto& [knob, value] : parse_candidate(knobs)) {
    const auto found = candidate.find(knob);
    if (found == candidate.end())
      throw Error(ErrorCode::invalid_argument, "plan '" + knobs + "': the task has no knob '" + knob +
                                                   "'; its own plan is '" + to_string(task.space.fallback) + "'");
    found->second = value;
  }
  if (task.space.allowed && !task.space.allowed(candidate))
    throw Error(ErrorCode::invalid_argument, "the task does not allow the plan " + to_string(candidate));
  return candidate;
}

// Of as many plans as are to be compared.
std::vector<Candidate> choose_all(const KernelOptions& options, const TuningTask& task, CachedPlans& plans) {
  std::vector<Candidate> chosen;
  for (const std::string& knobs : options.plans) chosen.push_back(choose(knobs, task, plans));
  return chosen;
}

struct Job {
  std::string text;
  std::optional<TuningTask> task;  // of a node: made when its turn comes, as it holds its operands
  std::vector<Candidate> plans;
};

Job job_of(const std::string& text, const KernelOptions& options, CachedPlans& plans) {
  if (is_node_task(text)) return {text, std::nullopt, {}};
  Job job{text, parse_task(text, options.threads), {}};
  job.plans = choose_all(options, *job.task, plans);
  return job;
}

// What is wrong with a task is said before the machine is measured (of many, with a node when its turn comes); of many,
// those for other instruction sets are left out.
std::vector<Job> jobs_of(const KernelOptions& options, CachedPlans& plans) {
  std::vector<Job> jobs;
  const std::vector<std::string> tasks = tasks_of(options);
  if (tasks.empty()) throw Error(ErrorCode::invalid_argument, "no task: give one, or --tasks FILE, or --stdin");
  for (const std::string& text : tasks) {
    if (tasks.size() == 1 && is_node_task(text))
      (void)choose_all(options, parse_node_task(text, options.threads, plans), plans);
    try {
      jobs.push_back(job_of(text, options, plans));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || tasks.size() == 1) throw;
    }
  }
  return jobs;
}

using Milliseconds = std::chrono::duration<double, std::milli>;

Runner build(const TuningTask& task, const Candidate& plan) {
  Runner runner = task.build(plan);
  if (!runner) throw Error(ErrorCode::unsupported, "no kernel can be made for " + task.key);
  return runner;
}

// Of single runs, for that long and a few at least.
std::vector<double> times_of(const Runner& runner, Milliseconds duration, size_t fewest) {
  std::vector<double> times;
  const auto start = Clock::now();
  while (times.size() < fewest || Clock::now() - start < duration) {
    if (runner.prepare) runner.prepare();
    const auto begin = Clock::now();
    runner.run();
    times.push_back(Milliseconds(Clock::now() - begin).count());
  }
  return times;
}

Timing timing_of(const TuningTask& task, const Candidate& plan, const std::vector<double>& times) {
  Timing timing;
  timing.plan = to_string(plan);
  timing.median_ms = median(times);
  timing.min_ms = *std::min_element(times.begin(), times.end());
  timing.gflops = task.flop / timing.median_ms / 1e6;
  timing.gbytes_s = task.bytes / timing.median_ms / 1e6;
  return timing;
}

Timing time_task(const TuningTask& task, const Candidate& plan, Milliseconds duration) {
  constexpr size_t kFewest = 7;
  const Runner runner = build(task, plan);
  runner.run();
  return timing_of(task, plan, times_of(runner, duration, kFewest));
}

// Plans take short turns, as others on the machine disturb for seconds: what a plan gains is the median of what it
// gains over its neighbours in time. All get other operands several times: where these lie matters, too.
std::vector<Timing> compare_plans(const TuningTask& task, std::span<const Candidate> plans, Milliseconds duration) {
  constexpr int kBuilds = 4;
  constexpr Milliseconds kTurn(2);
  std::vector<std::vector<double>> times(plans.size()), speedups(plans.size());
  for (int i = 0; i < kBuilds; ++i) {
    std::vector<Runner> runners;
    for (const Candidate& plan : plans) runners.push_back(build(task, plan));
    const auto start = Clock::now();
    do {
      double first = 0;
      for (size_t plan = 0; plan < plans.size(); ++plan) {
        runners[plan].run();
        const std::vector<double> turn = times_of(runners[plan], kTurn, 1);
        const double own = median(turn);
        if (plan == 0) first = own;
        speedups[plan].push_back(first / own);
        times[plan].insert(times[plan].end(), turn.begin(), turn.end());
      }
    } while (Clock::now() - start < duration * static_cast<double>(plans.size()) / kBuilds);
  }
  std::vector<Timing> timings;
  for (size_t i = 0; i < plans.size(); ++i) {
    timings.push_back(timing_of(task, plans[i], times[i]));
    timings.back().speedup = median(speedups[i]);
  }
  return timings;
}

// "conv", "gemm", or the operator of a node: the last of a chain.
std::string family_of(std::string_view task) {
  if (!is_node_task(task)) return std::string(task.substr(0, task.find(' ')));
  if (const size_t next = task.rfind(" ; "); next != std::string_view::npos) return "chain";
  std::string_view name = task.substr(0, task.find('@'));
  name.remove_prefix(name.find_last_of(" .") + 1);
  return std::string(name);
}

// One for each plan.
std::vector<Timing> time_job(const Job& job, const KernelOptions& options, const KernelPeaks& peaks,
                             CachedPlans& plans) {
  const TuningTask task = job.task ? *job.task : parse_node_task(job.text, options.threads, plans);
  const std::vector<Candidate> chosen = job.task ? job.plans : choose_all(options, task, plans);
  const std::chrono::duration<double> duration(parse_seconds(options.duration, "--duration"));
  std::vector<Timing> timings = chosen.size() > 1 ? compare_plans(task, chosen, duration)
                                                  : std::vector{time_task(task, chosen.front(), duration)};
  const PointwiseWork pointwise = is_node_task(job.text) ? pointwise_work(job.text) : PointwiseWork{.is_all = false};
  const Work work{.flop = pointwise.flop + (pointwise.is_all ? 0 : task.flop),
                  .arithmetic = task.arithmetic,
                  .bytes = task.bytes,
                  .weight_bytes = task.weight_bytes,
                  .written_bytes = task.written_bytes,
                  .reread_bytes = task.reread_bytes,
                  .reread_near_bytes = task.reread_near_bytes,
                  .reread_flop = task.reread_flop,
                  .divisions = pointwise.divisions,
                  .has_scattered_weights = family_of(job.text) == "Gather",
                  .is_node = is_node_task(job.text)};
  const Floor floor = floor_of(work, peaks);
  for (Timing& timing : timings) {
    timing.task = job.text;
    timing.floor_ms = floor.seconds * 1e3;
    timing.bound = floor.bound;
  }
  return timings;
}

// The least time of a node of one element: the clock, the checks of a run, the call of a kernel whose code is not in
// the inner caches.
double measure_call(int threads, CachedPlans& plans) {
  constexpr Milliseconds kDuration(20);
  const TuningTask task = parse_node_task("node Relu@14(float32[1]) -> float32[1]", threads, plans);
  return time_task(task, Candidate{}, kDuration).min_ms / 1e3;
}

nlohmann::json to_json(const Timing& timing) {
  return {{"task", timing.task},      {"plan", timing.plan},         {"median_ms", timing.median_ms},
          {"min_ms", timing.min_ms},  {"gflops", timing.gflops},     {"gbytes_s", timing.gbytes_s},
          {"bound", timing.bound},    {"floor_ms", timing.floor_ms}, {"of_peak", timing.of_peak()},
          {"speedup", timing.speedup}};
}

nlohmann::json to_json(const KernelPeaks& peaks) {
  nlohmann::json levels = nlohmann::json::array();
  for (const KernelPeaks::Level& level : peaks.levels)
    levels.push_back({{"name", level.name},
                      {"bytes", level.bytes},
                      {"read", level.read},
                      {"write", level.write},
                      {"copy", level.copy}});
  return levels;
}

// Where time is lost: each family's part of its floor, and the task that loses most.
void print_families(const std::vector<Timing>& timings) {
  struct Family {
    double ms = 0, floor_ms = 0;
    int tasks = 0;
    const Timing* worst = nullptr;
  };
  std::map<std::string, Family> families;
  const auto lost = [](const Timing& timing) { return timing.median_ms - timing.floor_ms; };
  for (const Timing& timing : timings) {
    Family& family = families[family_of(timing.task)];
    family.ms += timing.median_ms;
    family.floor_ms += timing.floor_ms;
    family.tasks += 1;
    if (family.worst == nullptr || lost(timing) > lost(*family.worst)) family.worst = &timing;
  }
  std::vector<std::pair<std::string, Family>> sorted(families.begin(), families.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.ms - a.second.floor_ms > b.second.ms - b.second.floor_ms;
  });
  fmt::print("\n{:<24} {:>5} {:>9} {:>9} {:>6}  loses most\n", "family", "tasks", "ms", "floor", "peak %");
  for (const auto& [name, family] : sorted)
    fmt::print("{:<24} {:>5} {:>9.4f} {:>9.4f} {:>6.0f}  {:.4f} ms: {}\n", name, family.tasks, family.ms,
               family.floor_ms, 100 * family.floor_ms / family.ms, lost(*family.worst), family.worst->task);
}

// `plans`: how many take turns.
void print_header(size_t plans) {
  fmt::print("{:>9} {:>9} {:>8} {:>7} {:>6} {:<6}  {}task\n", "ms", "min", "GFLOP/s", "GB/s", "peak %", "of",
             plans > 1 ? "speedup  " : "");
}

void print_timing(const Timing& timing, const std::string& knobs, size_t plans) {
  fmt::print("{:>9.4f} {:>9.4f} {:>8.1f} {:>7.1f} {:>6.0f} {:<6}  {}{}{}\n", timing.median_ms, timing.min_ms,
             timing.gflops, timing.gbytes_s, timing.of_peak(), timing.bound,
             plans > 1 ? fmt::format("{:>7.3f}  ", timing.speedup) : "",
             knobs.empty() ? "" : fmt::format("[{}] ", knobs), timing.task);
}

void print_peaks(const KernelPeaks& peaks) {
  fmt::print("\npeak here, {} threads: {:.0f} GFLOP/s float32, {:.0f} bfloat16, {:.0f} 8-bit, {:.0f} 16-bit\n",
             peaks.threads, peaks.gflops[0], peaks.gflops[1], peaks.gflops[2], peaks.gflops[3]);
  fmt::print("a node's call takes {:.2f} us, ", peaks.call_seconds * 1e6);
  fmt::print(
      "{:.1f} GB/s come from rows far apart in memory, a division takes as long as {:.0f} operations beside it\n",
      peaks.scattered_read, peaks.division_flop);
  for (const KernelPeaks::Level& level : peaks.levels)
    fmt::print("{:<6} {:>6.1f} GB/s read, {:>6.1f} written, {:>6.1f} copied, up to {:.3f} MB\n", level.name, level.read,
               level.write, level.copy, static_cast<double>(level.bytes) / (1 << 20));
}

void write_json(const KernelOptions& options, const KernelPeaks& peaks, const std::vector<Timing>& timings) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Timing& timing : timings) rows.push_back(to_json(timing));
  const nlohmann::json report{
      {"threads", options.threads},          {"peak_gflops", peaks.gflops[0]}, {"peak_gbytes_s", peaks.memory().read},
      {"call_us", peaks.call_seconds * 1e6}, {"levels", to_json(peaks)},       {"tasks", rows}};
  write_file(options.json, [&](std::ostream& file) { return (file << report.dump(1) << "\n").good(); });
}

KernelPeaks measure_peaks(const KernelOptions& options, CachedPlans& plans) {
  KernelPeaks peaks = measure_kernel_peaks(options.threads);
  peaks.call_seconds = measure_call(options.threads, plans);
  return peaks;
}

// A task a line in, its figures a line out: whoever asks can time another engine between two tasks.
void serve(const KernelOptions& options, const KernelPeaks& peaks, CachedPlans& plans) {
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json answer{{"task", line}};
    try {
      for (const Timing& timing : time_job(job_of(line, options, plans), options, peaks, plans))
        answer["timings"].push_back(to_json(timing));
    } catch (const Error& error) {
      answer[error.code() == ErrorCode::unsupported ? "unsupported" : "error"] = error.what();
    }
    fmt::print("{}\n", answer.dump());
    std::fflush(stdout);
  }
}

void bench_kernel(KernelOptions& options) {
  if (options.threads == 0) options.threads = usable_threads();
  (void)parse_seconds(options.duration, "--duration");
  if (options.plans.empty()) options.plans = {""};
  const auto plans = default_plans(options.session);
  if (options.is_server) return serve(options, measure_peaks(options, *plans), *plans);
  const std::vector<Job> jobs = jobs_of(options, *plans);
  const KernelPeaks peaks = measure_peaks(options, *plans);
  std::vector<Timing> timings;
  Progress progress;
  for (size_t i = 0; i < jobs.size(); ++i) {
    progress.show(fmt::format("[{}/{}]", i + 1, jobs.size()));
    std::vector<Timing> of_job;
    try {
      of_job = time_job(jobs[i], options, peaks, *plans);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || jobs.size() == 1) throw;
      continue;
    }
    progress.clear();
    if (timings.empty()) print_header(of_job.size());
    for (size_t plan = 0; plan < of_job.size(); ++plan) print_timing(of_job[plan], options.plans[plan], of_job.size());
    timings.insert(timings.end(), of_job.begin(), of_job.end());
  }
  if (jobs.size() > 1 && options.plans.size() == 1) print_families(timings);
  print_peaks(peaks);
  if (!options.json.empty()) write_json(options, peaks, timings);
}

}  // namespace

void add_bench_kernel(CLI::App& app) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* verb = app.add_subcommand("bench-kernel", "time one task's kernels alone, caches as inside a model");
  CLI::Option* task = verb->add_option("TASK", options->task, "as `inspect --show tasks` prints it");
  CLI::Option* tasks = verb->add_option("--tasks", options->tasks_file, "a file with a task in each line: one table");
  verb->add_option(
          "--plan", options->plans,
          "values of knobs in place of the chosen plan's: \"rows=7 cols=4\"; several plans (\"\" is the chosen "
          "one) take turns")
      ->allow_extra_args(false);
  verb->add_option("--duration", options->duration, "time for each task: 200ms");
  verb->add_option("--threads", options->threads, "0: as many as may be used")->check(CLI::NonNegativeNumber);
  CLI::Option* json = verb->add_option("--json", options->json, "write the figures to this file");
  verb->add_flag("--stdin", options->is_server, "serve tasks: a task a line in, one JSON object a line out")
      ->excludes(task, tasks, json);
  verb->add_option("--cache", options->session.cache_path, "the tuning cache's file");
  verb->add_flag("!--no-cache", options->session.use_cache, "do without the tuning cache");
  verb->callback([options] { bench_kernel(*options); });
}

}  // namespace lathe::tools
