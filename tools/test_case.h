#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lathe/session.h"
#include "tools/compare.h"

namespace lathe::tools {

// One case of a test suite: a folder with a model and with folders test_data_set_N of inputs and expected outputs.
struct TestCase {
  std::string directory;
  std::optional<Tolerance> tolerance;  // before what the folder's tolerance.json says: {"rtol": 1e-2, "atol": 1e-5}
  std::string save;                    // not empty: outputs are written below this folder and not compared
};

struct CaseOptions {
  SessionOptions session{.threads = 1};
  Tolerance tolerance{1e-3, 1e-7};  // of cases that do not say otherwise; as ONNX's own runner
};

// What came of a case. `skipped`: the results differ, but the model draws random numbers, which no two engines draw
// alike; `unsupported`: it has an operator or type that Lathe lacks; `error`: it could not be loaded or run, or the
// case is malformed.
enum class CaseStatus { pass, skipped, fail, unsupported, error, crash, timeout };
inline constexpr int kCaseStatusCount = 7;
std::string_view name_of(CaseStatus status);
CaseStatus status_named(std::string_view name);  // of an unknown name: error

struct CaseResult {
  CaseStatus status = CaseStatus::error;
  std::string detail;  // one line: what is wrong, where; "" for a pass
  double seconds = 0;
};

// The cases in a folder, by name: itself when it has a model.onnx or a test_data_set_N, else those in the folders
// below. A folder that cannot be read counts as a case, which then fails.
std::vector<std::string> find_cases(const std::string& folder);

// Never throws: what goes wrong is the result. Does not measure the time.
CaseResult run_case(const TestCase& test, const CaseOptions& options);

}  // namespace lathe::tools
