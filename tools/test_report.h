#pragma once
#include <array>
#include <string>
#include <vector>

#include "tools/test_case.h"

namespace lathe::tools {

// What came of a run of many cases, in the forms in which people, programs and CI servers read it.
struct TestReport {
  std::vector<TestCase> cases;
  std::vector<CaseResult> results;  // one for each case
  double seconds = 0;

  std::array<size_t, kCaseStatusCount> counts() const;
};

// "fail node/test_add: what differs where", without a line break.
std::string line_of(const TestCase& test, const CaseResult& result);
// "5 of 9 cases passed, 3 fail, 1 crash (0.2 s)"
std::string summary_of(const TestReport& report);
// One object: status (the gravest of the run), detail of the first such case, counts, and the cases.
std::string json_of(const TestReport& report);
// Throws Error(io).
void write_junit(const std::string& path, const TestReport& report);
// The status that stands for the run: wrong results before all else, then what could not run, then what is unsupported,
// then what was skipped.
CaseStatus gravest(const TestReport& report);

}  // namespace lathe::tools
