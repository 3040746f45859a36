// lathe test DIR: runs one folder of ONNX's backend suite (model.onnx, test_data_set_N/input_K.pb, output_K.pb).
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "graph/model.h"
#include "src/runtime/session_state.h"
#include "tools/compare.h"
#include "tools/model_options.h"
#include "tools/tensor_files.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

namespace fs = std::filesystem;

struct TestOptions {
  std::string directory;
  std::string save;
  Tolerance tolerance{1e-3, 1e-7};
  SessionOptions session;
  bool is_json = false;
};

constexpr int kFailed = 1, kUnsupported = 77;  // as the conformance runner reads them

std::vector<Tensor> read_protos(const fs::path& folder, const std::string& stem, const std::vector<TensorType>& types) {
  std::vector<Tensor> values;
  for (size_t i = 0;; ++i) {
    const fs::path file = folder / (stem + "_" + std::to_string(i) + ".pb");
    if (!fs::exists(file)) return values;
    values.push_back(read_value_proto(file.string(), i < types.size() ? types[i] : TensorType()));
  }
}

// The first difference of one data set, or "".
std::string run_data_set(const Session& session, const fs::path& folder, const TestOptions& options) {
  const Session::State& state = *session.state();
  std::vector<Tensor> results(state.outputs.size());
  state.run(read_protos(folder, "input", state.input_types), results, nullptr);
  if (!options.save.empty()) {
    const fs::path out = fs::path(options.save) / folder.filename();
    fs::create_directories(out);
    for (size_t i = 0; i < results.size(); ++i)
      write_value_proto((out / ("output_" + std::to_string(i) + ".pb")).string(), session.outputs()[i].name, results[i],
                        state.output_types[i]);
    return "";
  }
  const std::vector<Tensor> expected = read_protos(folder, "output", state.output_types);
  if (expected.size() != results.size()) return fmt::format("{} outputs, expected {}", results.size(), expected.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string difference = describe_difference(results[i], expected[i], options.tolerance);
    if (!difference.empty())
      return fmt::format("{}: output '{}': {}", folder.filename().string(), session.outputs()[i].name, difference);
  }
  return "";
}

std::string run_folder(const TestOptions& options) {
  const Session session = Session::load((fs::path(options.directory) / "model.onnx").string(), options.session);
  int sets = 0;
  for (;; ++sets) {
    const fs::path folder = fs::path(options.directory) / ("test_data_set_" + std::to_string(sets));
    if (!fs::exists(folder)) break;
    if (std::string difference = run_data_set(session, folder, options); !difference.empty()) return difference;
  }
  if (sets == 0) throw Error(ErrorCode::io, "'" + options.directory + "' has no test_data_set_0");
  return "";
}

void report(const TestOptions& options, const std::string& status, const std::string& message) {
  if (options.is_json)
    fmt::print("{}\n", nlohmann::json{{"status", status}, {"message", message}}.dump(
                           -1, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{} {}{}{}\n", status, options.directory, message.empty() ? "" : ": ", message);
}

void test(const TestOptions& options) {
  try {
    const std::string difference = run_folder(options);
    report(options, difference.empty() ? "pass" : "fail", difference);
    if (!difference.empty()) throw CLI::RuntimeError(kFailed);
  } catch (const Error& error) {
    const bool is_unsupported = error.code() == ErrorCode::unsupported;
    report(options, is_unsupported ? "unsupported" : "error", error.what());
    throw CLI::RuntimeError(is_unsupported ? kUnsupported : static_cast<int>(kCannotLoad));
  }
}

}  // namespace

void add_test(CLI::App& app) {
  auto options = std::make_shared<TestOptions>();
  CLI::App* verb = app.add_subcommand("test", "run one folder of the ONNX backend suite");
  verb->add_option("DIR", options->directory, "folder with model.onnx and test_data_set_N")->required();
  verb->add_option("--save", options->save, "write outputs below this folder instead of comparing them");
  verb->add_option("--atol", options->tolerance.atol, "absolute tolerance");
  verb->add_option("--rtol", options->tolerance.rtol, "relative tolerance");
  verb->add_option("-t,--threads", options->session.threads, "threads of a run")->check(CLI::Range(0, 1024));
  verb->add_option("--custom-op", options->session.custom_op_libraries, "shared library with operators (repeatable)");
  verb->add_option("--optimization-level", options->session.optimization_level, "0 none ... 99 all");
  verb->add_flag("--json", options->is_json, "print one JSON object");
  verb->callback([options] { test(*options); });
}

}  // namespace lathe::tools
