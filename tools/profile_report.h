#pragma once
#include <string>
#include <vector>

#include "lathe/profile.h"
#include "tools/machine_peak.h"

namespace lathe::tools {

// The median time of each step over several runs, in the order of the run, with FLOP/s, bytes/s and percent of the peak
// that binds (arithmetic or memory).
std::string profile_table(const std::vector<Profile>& runs, const MachinePeak& peak);
// Chrome's trace format (chrome://tracing, Perfetto) of one run.
std::string chrome_trace(const Profile& run);

}  // namespace lathe::tools
