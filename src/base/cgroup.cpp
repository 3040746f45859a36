#include "src/base/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace lathe {
namespace {

template <class T>
void tighten(std::optional<T>& limit, T value) {
  limit = limit ? std::min(*limit, value) : value;
}

// The number in a file of one number; nothing for "max", an absent file or junk.
std::optional<double> read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Version 1 writes "no limit" as the largest multiple of the page size.
constexpr double kNoMemoryLimit = 9e18;

void apply_v2(const std::string& folder, CgroupLimits& limits) {
  std::ifstream cpu(folder + "/cpu.max");
  double quota_us = 0, period_us = 0;  // "max 100000" fails to parse: no limit
  if (cpu >> quota_us >> period_us && quota_us > 0 && period_us > 0) tighten(limits.cpus, quota_us / period_us);
  if (auto bytes = read_number(folder + "/memory.max"); bytes && *bytes < kNoMemoryLimit)
    tighten(limits.memory_bytes, static_cast<size_t>(*bytes));
}

void apply_v1(const std::string& folder, CgroupLimits& limits) {
  const auto quota_us = read_number(folder + "/cpu.cfs_quota_us");
  const auto period_us = read_number(folder + "/cpu.cfs_period_us");
  if (quota_us && period_us && *quota_us > 0 && *period_us > 0) tighten(limits.cpus, *quota_us / *period_us);
  if (auto bytes = read_number(folder + "/memory.limit_in_bytes"); bytes && *bytes < kNoMemoryLimit)
    tighten(limits.memory_bytes, static_cast<size_t>(*bytes));
}

// Calls apply(mount + path), then with each parent, mount itself last. A path from outside of a container's own
// namespace does not exist under the mount; its parents are tried all the same.
template <class Apply>
void walk_up(const std::string& mount, std::string path, Apply apply) {
  while (!path.empty() && path != "/") {
    apply(mount + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  apply(mount);
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& membership, const std::string& mount) {
  CgroupLimits limits;
  std::istringstream lines(membership);
  // hierarchy-id:controller,controller:path
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* hierarchy : {"", "/unified"})
        walk_up(mount + hierarchy, path, [&](const std::string& folder) { apply_v2(folder, limits); });
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      if (name != "cpu" && name != "memory") continue;
      for (const std::string& hierarchy : {"/" + name, "/" + controllers})
        walk_up(mount + hierarchy, path, [&](const std::string& folder) { apply_v1(folder, limits); });
    }
  }
  return limits;
}

const CgroupLimits& cgroup_limits() {
  static const CgroupLimits limits = [] {
    std::ifstream file("/proc/self/cgroup");
    std::stringstream text;
    text << file.rdbuf();
    return read_cgroup_limits(text.str(), "/sys/fs/cgroup");
  }();
  return limits;
}

// Linux grants more and kills later, so the check must be ours.
size_t memory_limit() {
  static const size_t limit = [] {
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    const size_t bytes =
        pages > 0 && page_bytes > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page_bytes) : SIZE_MAX;
    return std::min(bytes, cgroup_limits().memory_bytes.value_or(bytes));
  }();
  return limit;
}

}  // namespace lathe
