#pragma once
#include <functional>
#include <vector>

#include "tools/test_case.h"

namespace lathe::tools {

struct WorkerOptions {
  int jobs = 1;
  double timeout_seconds = 0;  // of one case; 0: none
};

// Runs cases in `jobs` forked processes, each many after another, and tells of each as it ends. A process that dies or
// takes too long is that case's result, and another one takes its place. Returns false when a process ended badly after
// all its cases were done (a sanitizer's report, say).
// Requires: this process has one thread.
bool run_in_workers(const std::vector<TestCase>& cases, const CaseOptions& each, const WorkerOptions& options,
                    const std::function<void(size_t, const CaseResult&)>& done);

// What a worker does: reads one JSON object a line, {"dir", "rtol", "atol", "out"}, runs the case and answers with a
// line {"status", "detail"}, until there are no more. All but "dir" may be missing; with "out", outputs are written
// there and not compared. Paths are as this process sees them.
void serve_cases(int in, int out, const CaseOptions& each);

}  // namespace lathe::tools
