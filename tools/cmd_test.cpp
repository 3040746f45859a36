// lathe test DIR...: runs folders in the layout of ONNX's backend suite (model.onnx, test_data_set_N/input_K.pb,
// output_K.pb), many at a time, each safe from the others.
#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <filesystem>
#include <optional>

#include "src/base/topology.h"
#include "src/base/write_file.h"
#include "tools/duration.h"
#include "tools/model_options.h"
#include "tools/progress.h"
#include "tools/test_report.h"
#include "tools/test_workers.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

namespace fs = std::filesystem;

struct TestOptions {
  std::vector<std::string> folders;
  std::string save, json, junit, timeout = "60s";
  CaseOptions each;
  std::vector<std::string> tolerances;  // PATTERN=RTOL,ATOL
  int jobs = 0;
  bool is_server = false;
};

constexpr int kFailed = 1, kUnsupported = 77;  // as test runners read them

struct PatternTolerance {
  std::string pattern;
  Tolerance tolerance;
};

PatternTolerance parse_tolerance(const std::string& text) {
  const size_t equals = text.rfind('='), comma = text.rfind(',');
  try {
    if (equals != std::string::npos && comma != std::string::npos && comma > equals) {
      size_t used_rtol = 0, used_atol = 0;
      const std::string rtol = text.substr(equals + 1, comma - equals - 1), atol = text.substr(comma + 1);
      PatternTolerance made{text.substr(0, equals), {std::stod(rtol, &used_rtol), std::stod(atol, &used_atol)}};
      if (used_rtol == rtol.size() && used_atol == atol.size()) return made;
    }
  } catch (const std::exception&) {  // std::stod found no number
  }
  throw Error(ErrorCode::invalid_argument, "option --tolerance: '" + text + "' is not PATTERN=RTOL,ATOL");
}

// Of the last pattern that fits the path or its last folder.
std::optional<Tolerance> tolerance_of(const std::string& directory, const std::vector<PatternTolerance>& patterns) {
  const std::string name = fs::path(directory).lexically_normal().filename().string();
  for (auto each = patterns.rbegin(); each != patterns.rend(); ++each)
    if (fnmatch(each->pattern.c_str(), name.c_str(), 0) == 0 ||
        fnmatch(each->pattern.c_str(), directory.c_str(), 0) == 0)
      return each->tolerance;
  return std::nullopt;
}

std::vector<TestCase> cases_of(const TestOptions& options) {
  std::vector<PatternTolerance> patterns;
  for (const std::string& text : options.tolerances) patterns.push_back(parse_tolerance(text));
  std::vector<TestCase> cases;
  for (const std::string& folder : options.folders)
    for (std::string& directory : find_cases(folder)) {
      const std::optional<Tolerance> tolerance = tolerance_of(directory, patterns);
      cases.push_back({std::move(directory), tolerance, options.save});
    }
  if (!options.save.empty() && cases.size() > 1)
    throw Error(ErrorCode::invalid_argument, "option --save needs one case, found " + std::to_string(cases.size()));
  return cases;
}

TestReport run_all(const TestOptions& options, bool prints, bool& ended_well) {
  TestReport report;
  report.cases = cases_of(options);
  report.results.resize(report.cases.size());
  Progress progress;
  size_t finished = 0, failed = 0;
  const auto done = [&](size_t i, const CaseResult& result) {
    report.results[i] = result;
    ++finished;
    if (result.status != CaseStatus::pass) {
      ++failed;
      progress.clear();
      if (prints) fmt::print("{}\n", line_of(report.cases[i], result));
    }
    progress.show(fmt::format("{} of {} cases, {} failed", finished, report.cases.size(), failed));
  };
  const WorkerOptions workers{options.jobs > 0 ? options.jobs : usable_threads(),
                              options.timeout == "0" ? 0 : parse_seconds(options.timeout, "--timeout")};
  const auto begin = std::chrono::steady_clock::now();
  ended_well = run_in_workers(report.cases, options.each, workers, done);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

int exit_code_of(CaseStatus status, bool ended_well) {
  if (status == CaseStatus::fail) return kFailed;
  if ((status == CaseStatus::pass || status == CaseStatus::skipped) && ended_well) return kGood;
  return status == CaseStatus::unsupported ? kUnsupported : kCannotLoad;
}

void write_json(const std::string& path, const TestReport& report) {
  write_file(path, [&](std::ostream& file) { return (file << json_of(report)).good(); });
}

void test(const TestOptions& options, bool json_to_stdout) {
  if (options.is_server) {
    serve_cases(STDIN_FILENO, STDOUT_FILENO, options.each);
    return;
  }
  if (options.folders.empty()) throw Error(ErrorCode::invalid_argument, "test needs a folder, or --stdin");
  bool ended_well = true;
  const TestReport report = run_all(options, !json_to_stdout, ended_well);
  if (json_to_stdout)
    fmt::print("{}", json_of(report));
  else
    fmt::print("{}\n", summary_of(report));
  if (!options.json.empty()) write_json(options.json, report);
  if (!options.junit.empty()) write_junit(options.junit, report);
  if (const int code = exit_code_of(gravest(report), ended_well); code != kGood) throw CLI::RuntimeError(code);
}

}  // namespace

void add_test(CLI::App& app) {
  auto options = std::make_shared<TestOptions>();
  CLI::App* verb = app.add_subcommand("test", "run folders of the ONNX backend suite, or alike");
  verb->add_option("DIR", options->folders, "folders with model.onnx and test_data_set_N, or of such folders");
  verb->add_option("-j,--jobs", options->jobs, "cases at a time; 0: as many as there are cores")
      ->check(CLI::Range(0, 1024));
  verb->add_option("-t,--threads", options->each.session.threads, "threads of a case")->check(CLI::Range(0, 1024));
  verb->add_option("--timeout", options->timeout, "time of a case: 60s, 500ms, 2m; 0: no limit");
  verb->add_option("--rtol", options->each.tolerance.rtol, "relative tolerance")->check(CLI::NonNegativeNumber);
  verb->add_option("--atol", options->each.tolerance.atol, "absolute tolerance")->check(CLI::NonNegativeNumber);
  verb->add_option("--tolerance", options->tolerances, "PATTERN=RTOL,ATOL for cases of this name (repeatable)")
      ->allow_extra_args(false);
  CLI::Option* json = verb->add_flag("--json{-}", options->json, "print a JSON object; with =FILE write it there");
  verb->add_option("--junit", options->junit, "write JUnit's XML to this file");
  verb->add_option("--save", options->save, "write the outputs of one case below this folder, compare nothing");
  verb->add_flag("--stdin", options->is_server, "serve cases: one JSON object a line in, one out");
  verb->add_option("--custom-op", options->each.session.custom_op_libraries,
                   "shared library with operators (repeatable)")
      ->allow_extra_args(false);
  verb->add_option("--optimization-level", options->each.session.optimization_level, "0 none ... 99 all");
  verb->callback([options, json] {
    const bool to_stdout = json->count() > 0 && options->json == "-";
    if (to_stdout) options->json.clear();
    test(*options, to_stdout);
  });
}

}  // namespace lathe::tools
