// lathe bench MODEL: how long a run takes, and where the time goes.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "src/base/box.h"
#include "src/base/topology.h"
#include "src/base/write_file.h"
#include "src/runtime/session_state.h"
#include "tools/bench_shapes.h"
#include "tools/duration.h"
#include "tools/machine_peak.h"
#include "tools/model_inputs.h"
#include "tools/model_options.h"
#include "tools/plan_report.h"
#include "tools/profile_report.h"
#include "tools/progress.h"
#include "tools/tensor_files.h"
#include "tools/varying_dims.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchOptions {
  ModelOptions model;
  InputOptions inputs;
  int warmup = 3;
  int iterations = 0;  // 0: by duration
  std::string duration = "2s";
  std::vector<double> percentiles{50, 90, 99};
  std::string json;
  std::string output_directory;
  std::string trace;
  bool is_profiled = false;
  bool is_shuffled = false;
};

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double percentile(const std::vector<double>& sorted, double percent) {
  const auto rank = static_cast<size_t>(std::lround(percent / 100 * static_cast<double>(sorted.size() - 1)));
  return sorted[std::min(rank, sorted.size() - 1)];
}

// Strings and values that are no tensors are made anew, all else is written where it was.
void run_again(const Session& session, const std::vector<Tensor>& inputs, std::vector<Tensor>& results) {
  for (Tensor& result : results)
    if (result.dtype() == DType::string || is_boxed(result)) result = Tensor();
  session.state()->run(inputs, results, nullptr);
}

std::vector<double> time_runs(const Session& session, const std::vector<Tensor>& inputs, std::vector<Tensor>& results,
                              const BenchOptions& options) {
  const double budget_ms = parse_seconds(options.duration, "--duration") * 1e3;
  Progress progress;
  for (int i = 0; i < options.warmup; ++i) {
    progress.show(fmt::format("warming up: run {} of {}", i + 1, options.warmup));
    run_again(session, inputs, results);
  }
  std::vector<double> times;
  const auto start = Clock::now();
  while (options.iterations > 0 ? static_cast<int>(times.size()) < options.iterations
                                : times.empty() || milliseconds_since(start) < budget_ms) {
    const auto begin = Clock::now();
    run_again(session, inputs, results);
    times.push_back(milliseconds_since(begin));
    progress.show(fmt::format("run {}, {:.1f} s", times.size(), milliseconds_since(start) / 1e3));
  }
  return times;
}

// getrusage() would count the program that started this one.
double peak_rss_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

void write_text(const std::string& path, const std::string& text) {
  write_file(path, [&](std::ostream& file) { return (file << text << "\n").good(); });
}

void profile(const Session& session, const std::vector<Tensor>& inputs, const BenchOptions& options) {
  constexpr int kRuns = 11;
  std::vector<Profile> runs(kRuns);
  for (Profile& run : runs) (void)session.run_profiled(inputs, run);
  const int threads = options.model.session.threads > 0 ? options.model.session.threads : usable_threads();
  fmt::print("{}", profile_table(runs, measure_peak(threads)));
  if (!options.trace.empty()) write_text(options.trace, chrome_trace(runs.back()));
}

// Of inputs that have another shape in each run.
void bench_shapes(const BenchOptions& options) {
  if (options.is_profiled || !options.output_directory.empty())
    throw Error(ErrorCode::invalid_argument,
                "options --profile and --output-dir are for one shape; --dim has a range of them");
  std::vector<std::vector<std::string>> dims = dims_of_runs(options.inputs.dims);
  if (options.is_shuffled) std::shuffle(dims.begin(), dims.end(), std::mt19937_64(options.inputs.seed));
  const auto begin = Clock::now();
  const Session session = Session::load(options.model.model, options.model.session);
  const double load_ms = milliseconds_since(begin);
  const int again = options.iterations > 0 ? options.iterations : 3;
  const std::vector<ShapeTime> times = time_shapes(session, options.inputs, dims, again);
  const ShapeMeans means = means_of(times);
  fmt::print("{} shapes: mean {:.3f} ms for a new one (of the second half), {:.3f} ms for one that was there; ",
             times.size(), means.new_ms, means.again_ms);
  fmt::print("load {:.1f} ms, peak memory {:.0f} MB\n", load_ms, peak_rss_mb());
  if (options.json.empty()) return;
  nlohmann::json report{{"model", options.model.model}, {"load_ms", load_ms},
                        {"rss_mb", peak_rss_mb()},      {"new_ms", means.new_ms},
                        {"again_ms", means.again_ms},   {"shapes", nlohmann::json::array()}};
  for (const ShapeTime& time : times)
    report["shapes"].push_back({{"dims", time.dims}, {"new_ms", time.new_ms}, {"again_ms", time.again_ms}});
  write_text(options.json, report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void bench(const BenchOptions& options) {
  if (has_range(options.inputs.dims)) return bench_shapes(options);
  (void)parse_seconds(options.duration, "--duration");  // refused before the work, not after
  const auto begin = Clock::now();
  const Session session = Session::load(options.model.model, options.model.session);
  const std::vector<Tensor> inputs = make_inputs(session, options.inputs);
  std::vector<Tensor> results(session.outputs().size());
  run_again(session, inputs, results);
  const double load_ms = milliseconds_since(begin);
  const std::vector<double> times = time_runs(session, inputs, results, options);

  if (!options.output_directory.empty()) {
    make_folder(options.output_directory);
    for (size_t i = 0; i < results.size(); ++i)
      write_npy(options.output_directory + "/" + std::to_string(i) + ".npy", results[i]);
  }
  std::vector<double> sorted = times;
  std::sort(sorted.begin(), sorted.end());
  nlohmann::json report{
      {"model", options.model.model},
      {"runs", times.size()},
      {"median_ms", percentile(sorted, 50)},
      {"min_ms", sorted.front()},
      {"mean_ms", std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size())},
      {"load_ms", load_ms},
      {"rss_mb", peak_rss_mb()},
      {"plans", plan_counts(session)}};
  fmt::print("{} runs: median {:.3f} ms, min {:.3f} ms", times.size(), percentile(sorted, 50), sorted.front());
  for (double percent : options.percentiles) {
    report["p" + fmt::format("{:g}", percent) + "_ms"] = percentile(sorted, percent);
    fmt::print(", p{:g} {:.3f} ms", percent, percentile(sorted, percent));
  }
  fmt::print("; load and first run {:.1f} ms, peak memory {:.0f} MB\n", load_ms, peak_rss_mb());
  fmt::print("{}\n", describe_plans(session, options.model.session));
  if (!options.json.empty()) {
    report["times_ms"] = times;
    write_text(options.json, report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  if (options.is_profiled || !options.trace.empty()) profile(session, inputs, options);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = app.add_subcommand("bench", "time a model");
  options->model.add_to(*verb);
  options->inputs.add_to(*verb);
  verb->add_option("--warmup", options->warmup, "runs before the clock starts")->check(CLI::NonNegativeNumber);
  verb->add_option("--iterations", options->iterations, "number of timed runs (of a range of shapes: rounds, 3)")
      ->check(CLI::PositiveNumber);
  verb->add_option("--duration", options->duration, "time to run for: 2s, 500ms");
  verb->add_option("--percentile", options->percentiles, "percentiles to report")->check(CLI::Range(0.0, 100.0));
  verb->add_option("--json", options->json, "write the figures to this file");
  verb->add_option("--output-dir", options->output_directory, "write the last run's results: 0.npy, 1.npy, ...");
  verb->add_flag("--shuffle", options->is_shuffled, "shapes of a range of --dim in a random order, by --seed");
  CLI::Option* profile_option =
      verb->add_option("--profile", options->trace, "print time by layer; with =FILE also write a Chrome trace")
          ->expected(0, 1);
  verb->callback([options, profile_option] {
    options->is_profiled = profile_option->count() > 0;
    bench(*options);
  });
}

}  // namespace lathe::tools
