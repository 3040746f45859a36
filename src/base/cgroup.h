#pragma once
// What the process may use of the machine under Linux control groups, versions 1 and 2.
#include <cstddef>
#include <optional>
#include <string>

namespace lathe {

struct CgroupLimits {
  std::optional<double> cpus;  // CPU time per wall time
  std::optional<size_t> memory_bytes;
};

// The tightest limits on the way from the process's group up to the root. `membership` is the text of
// /proc/self/cgroup, `mount` the folder that is usually /sys/fs/cgroup. Never throws: what cannot be read limits
// nothing.
CgroupLimits read_cgroup_limits(const std::string& membership, const std::string& mount);
// Of this process; read once.
const CgroupLimits& cgroup_limits();
// Bytes of memory that the process can ever have: the machine's, or its group's where these are fewer.
size_t memory_limit();

}  // namespace lathe
