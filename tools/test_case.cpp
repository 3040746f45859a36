#include "tools/test_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/model.h"
#include "graph/op_schema.h"
#include "src/base/write_file.h"
#include "src/runtime/session_state.h"

namespace lathe::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, kCaseStatusCount> kNames{"pass",  "skipped", "fail",   "unsupported",
                                                                "error", "crash",   "timeout"};
constexpr std::string_view kDataSet = "test_data_set_";

bool is_data_set(const fs::path& path) { return path.filename().string().starts_with(kDataSet); }

// test_data_set_2 before test_data_set_10.
bool comes_before(const fs::path& a, const fs::path& b) {
  const std::string left = a.filename().string(), right = b.filename().string();
  return left.size() != right.size() ? left.size() < right.size() : left < right;
}

std::vector<fs::path> data_sets_in(const fs::path& directory) {
  std::vector<fs::path> sets;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.is_directory() && is_data_set(entry.path())) sets.push_back(entry.path());
  std::sort(sets.begin(), sets.end(), comes_before);
  if (sets.empty()) throw Error(ErrorCode::io, "'" + directory.string() + "' has no test_data_set_0");
  return sets;
}

void collect_cases(const fs::path& folder, std::vector<std::string>& cases) {
  std::error_code error;
  std::vector<fs::path> below;
  bool is_case = false;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    is_case = is_case || entry->path().filename() == "model.onnx" || is_data_set(entry->path());
    std::error_code ignored;  // of an entry that has just gone
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) below.push_back(entry->path());
  }
  if (error || is_case) {
    cases.push_back(folder.string());
    return;
  }
  std::sort(below.begin(), below.end());
  for (const fs::path& path : below) collect_cases(path, cases);
}

std::vector<Tensor> read_protos(const fs::path& folder, const std::string& stem, const std::vector<TensorType>& types) {
  std::vector<Tensor> values;
  for (size_t i = 0;; ++i) {
    const fs::path file = folder / (stem + "_" + std::to_string(i) + ".pb");
    if (!fs::exists(file)) return values;
    values.push_back(read_value_proto(file.string(), i < types.size() ? types[i] : TensorType()));
  }
}

// bfloat16 has 8 bits: ONNX's runner allows one step of it.
Tolerance tolerance_for(DType dtype, Tolerance tolerance) {
  if (dtype == DType::bf16) tolerance.rtol = std::max(tolerance.rtol, 0x1p-6);
  return tolerance;
}

// What the case's tolerance.json says; where it is silent, the general one.
Tolerance own_tolerance(const fs::path& directory, const Tolerance& general) {
  const fs::path path = directory / "tolerance.json";
  if (!fs::exists(path)) return general;
  try {
    std::ifstream file(path);
    const nlohmann::json object = nlohmann::json::parse(file);
    return {object.value("rtol", general.rtol), object.value("atol", general.atol)};
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::io, fmt::format("'{}' is not {{\"rtol\": NUMBER, \"atol\": NUMBER}}", path.string()));
  }
}

// The name of a node of the graph, or of a body, that draws random numbers; "": none does.
std::string random_node(const Graph& graph) {
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.op->deterministic) return node.name;
    for (const auto& [name, attribute] : node.attributes) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute);
      if (body == nullptr) continue;
      if (std::string found = random_node(**body); !found.empty()) return found;
    }
  }
  return "";
}

void save_results(const Session& session, const fs::path& out, const std::vector<Tensor>& results) {
  make_folder(out.string());
  for (size_t i = 0; i < results.size(); ++i)
    write_value_proto((out / ("output_" + std::to_string(i) + ".pb")).string(), session.outputs()[i].name, results[i],
                      session.state()->output_types[i]);
}

// The first difference of one data set, or "". When results are saved, they are compared only if `is_random`.
std::string run_data_set(const Session& session, const fs::path& folder, const std::string& save,
                         const Tolerance& tolerance, bool is_random) {
  const Session::State& state = *session.state();
  std::vector<Tensor> results(state.outputs.size());
  state.run(read_protos(folder, "input", state.input_types), results, nullptr);
  if (!save.empty()) {
    save_results(session, fs::path(save) / folder.filename(), results);
    if (!is_random) return "";
  }
  const std::vector<Tensor> expected = read_protos(folder, "output", state.output_types);
  if (expected.size() != results.size())
    throw Error(ErrorCode::io, fmt::format("'{}' has expected values of {} outputs, the model has {}", folder.string(),
                                           expected.size(), results.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string difference =
        describe_difference(results[i], expected[i], tolerance_for(expected[i].dtype(), tolerance));
    if (!difference.empty())
      return fmt::format("{}: output '{}': {}", folder.filename().string(), session.outputs()[i].name, difference);
  }
  return "";
}

}  // namespace

std::string_view name_of(CaseStatus status) { return kNames[static_cast<size_t>(status)]; }

CaseStatus status_named(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  return found == kNames.end() ? CaseStatus::error : static_cast<CaseStatus>(found - kNames.begin());
}

std::vector<std::string> find_cases(const std::string& folder) {
  std::vector<std::string> cases;
  collect_cases(folder, cases);
  if (cases.empty()) cases.push_back(folder);
  return cases;
}

CaseResult run_case(const TestCase& test, const CaseOptions& options) {
  try {
    const fs::path directory = test.directory;
    const std::vector<fs::path> sets = data_sets_in(directory);
    const Session session = Session::load((directory / "model.onnx").string(), options.session);
    const Tolerance tolerance = test.tolerance ? *test.tolerance : own_tolerance(directory, options.tolerance);
    const std::string random = random_node(session.state()->runner->graph());
    for (const fs::path& folder : sets) {
      const std::string difference = run_data_set(session, folder, test.save, tolerance, !random.empty());
      if (difference.empty()) continue;
      if (random.empty()) return {CaseStatus::fail, difference};
      return {CaseStatus::skipped, "node '" + random + "' draws random numbers; " + difference};
    }
    return {CaseStatus::pass, ""};
  } catch (const Error& error) {
    return {error.code() == ErrorCode::unsupported ? CaseStatus::unsupported : CaseStatus::error, error.what()};
  } catch (const std::bad_alloc&) {
    return {CaseStatus::error, "out of memory"};
  } catch (const fs::filesystem_error& error) {
    return {CaseStatus::error, error.what()};
  } catch (const std::exception& error) {
    return {CaseStatus::error, std::string("internal error: ") + error.what()};
  }
}

}  // namespace lathe::tools
