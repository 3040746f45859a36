#include "src/base/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "src/base/cgroup.h"

namespace lathe {
namespace {

// Room for 16,384 CPUs: the kernel refuses a set smaller than its own.
constexpr int kMaxCpus = 16384;

std::vector<int> affinity_cpus() {
  struct FreeSet {
    void operator()(cpu_set_t* set) const { CPU_FREE(set); }
  };
  const std::unique_ptr<cpu_set_t, FreeSet> set(CPU_ALLOC(kMaxCpus));
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  std::vector<int> cpus;
  if (set != nullptr && sched_getaffinity(0, bytes, set.get()) == 0)
    for (int cpu = 0; cpu < kMaxCpus; ++cpu)
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set.get())) cpus.push_back(cpu);
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

// The allowed logical CPUs of each physical core, cores in hwloc's logical order (near ones together).
std::vector<std::vector<int>> allowed_cores() {
  const std::vector<int> allowed = affinity_cpus();
  std::vector<std::vector<int>> cores;
  size_t found = 0;
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) == 0) {
    if (hwloc_topology_load(topology) == 0) {
      for (hwloc_obj_t core = nullptr;
           (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
        std::vector<int> cpus;
        for (int cpu : allowed)
          if (hwloc_bitmap_isset(core->cpuset, static_cast<unsigned>(cpu)) != 0) cpus.push_back(cpu);
        found += cpus.size();
        if (!cpus.empty()) cores.push_back(std::move(cpus));
      }
    }
    hwloc_topology_destroy(topology);
  }
  if (found == allowed.size()) return cores;
  // hwloc sees nothing of the machine (a sandbox without /sys) or not all: each CPU counts as a core.
  cores.clear();
  for (int cpu : allowed) cores.push_back({cpu});
  return cores;
}

}  // namespace

std::vector<int> preferred_cpus() {
  const std::vector<std::vector<int>> cores = allowed_cores();
  std::vector<int> order;
  for (size_t sibling = 0, added = 1; added > 0; ++sibling) {
    added = 0;
    for (const std::vector<int>& core : cores) {
      if (sibling >= core.size()) continue;
      order.push_back(core[sibling]);
      ++added;
    }
  }
  return order;
}

int usable_threads() {
  const int cores = static_cast<int>(allowed_cores().size());
  const double quota = cgroup_limits().cpus.value_or(cores);
  // Rounded down: a team that overdraws its quota is stopped as a whole for the rest of the period.
  const int granted = quota >= cores ? cores : static_cast<int>(std::floor(quota + 1e-6));
  return std::max(1, granted);
}

}  // namespace lathe
