#pragma once
#include <string>
#include <vector>

namespace lathe::tools {

// Whether one of the --dim options is a range: SYMBOL=FIRST..LAST or SYMBOL=FIRST..LAST..STEP.
bool has_range(const std::vector<std::string>& dims);

// The --dim options of each run: ranges advance together, all else stays. LAST is in a range, and FIRST may be the
// larger. Throws Error(invalid_argument) when a range is none, or when ranges differ in how many values they have.
std::vector<std::vector<std::string>> dims_of_runs(const std::vector<std::string>& dims);

}  // namespace lathe::tools
