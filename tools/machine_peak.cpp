#include "tools/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "jit/kernels/fma_peak.h"
#include "src/base/cpu.h"
#include "src/base/thread_team.h"

namespace lathe::tools {
namespace {

template <class Body>
double seconds(Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double measure_gflops(ThreadTeam& team) {
  constexpr int64_t kIterations = 100'000;
  const Isa isa = usable_isa();
  const auto kernel = emit_fma_peak(isa);
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat)
    best = std::min(best, seconds([&] { team.run(team.size(), [&](int) { kernel(kIterations); }); }));
  return fma_peak_flop(isa) * static_cast<double>(kIterations) * team.size() / best / 1e9;
}

double measure_read(ThreadTeam& team) {
  const size_t words = std::max<size_t>(cpu_facts().l3_bytes * 4, size_t{128} << 20) / sizeof(uint64_t);
  std::vector<uint64_t> memory(words, 1);
  std::vector<uint64_t> sums(static_cast<size_t>(team.size()) * 8);
  double best = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat)
    best = std::min(best, seconds([&] {
                      team.run(team.size(), [&](int thread) {
                        const Range range = split_evenly(static_cast<long>(words), thread, team.size());
                        uint64_t sum[8] = {};
                        for (long i = range.begin; i + 8 <= range.end; i += 8)
                          for (int lane = 0; lane < 8; ++lane) sum[lane] += memory[static_cast<size_t>(i + lane)];
                        for (uint64_t s : sum) sums[static_cast<size_t>(thread) * 8] += s;
                      });
                    }));
  return static_cast<double>(words * sizeof(uint64_t)) / best / 1e9;
}

}  // namespace

MachinePeak measure_peak(int threads) {
  ThreadTeam team(threads);
  return {measure_gflops(team), measure_read(team)};
}

}  // namespace lathe::tools
