// lathe run MODEL: one run, its results to a folder or against expected ones.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "graph/model.h"
#include "graph/onnx/onnx_export.h"
#include "src/base/box.h"
#include "src/base/write_file.h"
#include "src/runtime/session_state.h"
#include "tools/compare.h"
#include "tools/model_inputs.h"
#include "tools/model_options.h"
#include "tools/tensor_files.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

struct RunOptions {
  ModelOptions model;
  InputOptions inputs;
  std::string output;
  std::string save_protos;
  std::string compare;
  std::string save_optimized;
  Tolerance tolerance;
  bool is_json = false;
};

void save(const RunOptions& options, const Session& session, const std::vector<Tensor>& results) {
  for (const std::string& folder : {options.output, options.save_protos})
    if (!folder.empty()) make_folder(folder);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!options.output.empty()) write_npy(options.output + "/" + std::to_string(i) + ".npy", results[i]);
    if (!options.save_protos.empty())
      write_value_proto(options.save_protos + "/output_" + std::to_string(i) + ".pb", session.outputs()[i].name,
                        results[i], session.state()->output_types[i]);
  }
}

// The number of outputs that differ from the expected ones; a line for each.
int compare(const RunOptions& options, const Session& session, const std::vector<Tensor>& results) {
  int wrong = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string base = options.compare + "/";
    const std::string npy = base + std::to_string(i) + ".npy", proto = base + "output_" + std::to_string(i) + ".pb";
    const Tensor want =
        std::filesystem::exists(npy) ? read_npy(npy) : read_value_proto(proto, session.state()->output_types[i]);
    const std::string difference = describe_difference(results[i], want, options.tolerance);
    if (difference.empty()) continue;
    ++wrong;
    fmt::print(stderr, "lathe: output '{}': {}\n", session.outputs()[i].name, difference);
  }
  return wrong;
}

void print_summary(const Session& session, const std::vector<Tensor>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_boxed(results[i])) {
      const AnyValue value = unbox(results[i]);
      const std::string length = value.is_sequence() ? fmt::format(" of {} items", value.items().size()) : "";
      fmt::print("{}: {}{}\n", session.outputs()[i].name, value.kind(), length);
      continue;
    }
    fmt::print("{}: {}[{}]", session.outputs()[i].name, name_of(results[i].dtype()), to_string(results[i].dims()));
    if (results[i].dtype() == DType::f32 && results[i].size() > 0) {
      double low = INFINITY, high = -INFINITY, sum = 0;
      for (float x : results[i].elements<float>()) {
        low = std::min<double>(low, x);
        high = std::max<double>(high, x);
        sum += x;
      }
      fmt::print("  min {:.6g}  max {:.6g}  mean {:.6g}", low, high, sum / static_cast<double>(results[i].size()));
    }
    fmt::print("\n");
  }
}

void report_json(const std::string& status, const std::string& message) {
  fmt::print("{}\n", nlohmann::json{{"status", status}, {"message", message}}.dump(
                         -1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void save_optimized(const RunOptions& options, const Session& session) {
  const Session::State& state = *session.state();
  ExportOptions how{state.model.opsets, state.model.ir_version, {}};
  for (const ValueInfo& output : session.outputs()) how.outputs.push_back(output.name);
  export_model_file(options.save_optimized, state.runner->graph(), state.context->ops, how);
}

// `is_loaded` tells the caller's error report which half failed.
void run(const RunOptions& options, bool& is_loaded) {
  const Session session = Session::load(options.model.model, options.model.session);
  is_loaded = true;
  if (!options.save_optimized.empty()) save_optimized(options, session);
  const std::vector<Tensor> inputs = make_inputs(session, options.inputs);
  std::vector<Tensor> results(session.outputs().size());
  session.state()->run(inputs, results, nullptr);
  save(options, session, results);
  if (!options.compare.empty() && compare(options, session, results) > 0) throw CLI::RuntimeError(kMismatch);
  if (!options.is_json) print_summary(session, results);
}

// For programs: the last line of stdout is one JSON object.
void run_json(const RunOptions& options) {
  bool is_loaded = false;
  try {
    run(options, is_loaded);
    report_json("ok", "");
  } catch (const Error& error) {
    const bool is_memory = error.code() == ErrorCode::limit;
    report_json(is_memory ? "oom" : is_loaded ? "run_error" : "rejected", error.what());
    throw CLI::RuntimeError(is_loaded ? kCannotRun : kCannotLoad);
  } catch (const std::bad_alloc&) {
    report_json("oom", "out of memory");
    throw CLI::RuntimeError(kCannotLoad);
  }
}

}  // namespace

void add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "run a model once");
  options->model.add_to(*verb);
  options->inputs.add_to(*verb);
  verb->add_option("-o,--output,--output-dir", options->output, "folder for the results: 0.npy, 1.npy, ...");
  verb->add_option("--save", options->save_protos, "folder for the results: output_0.pb, ...");
  verb->add_option("--compare", options->compare, "folder with expected results (N.npy or output_N.pb)");
  verb->add_option("--save-optimized", options->save_optimized,
                   "write the graph that the passes made, as an ONNX file");
  verb->add_option("--atol", options->tolerance.atol, "absolute tolerance of --compare");
  verb->add_option("--rtol", options->tolerance.rtol, "relative tolerance of --compare");
  verb->add_flag("--json", options->is_json, "end with one JSON line: status and message");
  verb->callback([options] {
    bool is_loaded = false;
    options->is_json ? run_json(*options) : run(*options, is_loaded);
  });
}

}  // namespace lathe::tools
