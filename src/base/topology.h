#pragma once
#include <vector>

namespace lathe {

// Logical CPUs in the order in which a thread team should use them: one per physical core first, near ones together,
// restricted to the affinity mask of this process. By hwloc.
std::vector<int> preferred_cpus();
// Threads worth starting: physical cores within the affinity mask, capped by the cgroup's CPU quota (v1 or v2). >= 1.
int usable_threads();

}  // namespace lathe
