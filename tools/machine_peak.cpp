#include "tools/machine_peak.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "jit/kernels/peak/fma_peak.h"
#include "jit/kernels/peak/memory_peak.h"
#include "lathe/tensor.h"
#include "ops/bench_operands.h"
#include "src/base/cpu.h"
#include "src/base/thread_team.h"
#include "tools/median.h"

namespace lathe::tools {
namespace {

template <class Body>
double seconds(Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of all threads, in 1e9 a second, where a round of the kernel does so many.
double measure_rate(ThreadTeam& team, const Kernel<void(int64_t)>& kernel, double in_round) {
  constexpr int64_t kIterations = 100'000;
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat)
    best = std::min(best, seconds([&] { team.run(team.size(), [&](int) { kernel(kIterations); }); }));
  return in_round * static_cast<double>(kIterations) * team.size() / best / 1e9;
}

double measure_gflops(ThreadTeam& team, Arithmetic arithmetic = Arithmetic::f32) {
  const Isa isa = usable_isa();
  return measure_rate(team, emit_fma_peak(isa, arithmetic), fma_peak_flop(isa, arithmetic));
}

Tensor written_tensor(size_t bytes) {
  Tensor tensor(DType::u8, {static_cast<int64_t>(bytes)});
  std::fill_n(static_cast<char*>(tensor.mutable_raw()), bytes, char{1});
  return tensor;
}

// GB/s of all threads together, each with `bytes` of its own: half of them written by a copy. Caches are as a step in a
// model finds them: what is read was just written, so that it goes back when L1 drops it, and what is written has left
// the inner caches since its last use.
double measure_traffic(ThreadTeam& team, ModelCaches& caches, size_t bytes, MemoryTraffic traffic) {
  constexpr auto kTimeForAll = std::chrono::milliseconds(10);
  constexpr size_t kFewest = 5;
  const Isa isa = usable_isa();
  const auto kernel = emit_memory_peak(isa, traffic);
  const size_t moved = bytes / (traffic == MemoryTraffic::copy ? 2 : 1);
  const int64_t chunks = std::max<int64_t>(1, static_cast<int64_t>(moved) / memory_peak_chunk(isa));
  const auto part = static_cast<size_t>(chunks * memory_peak_chunk(isa)), all = part * static_cast<size_t>(team.size());
  std::array from{written_tensor(traffic == MemoryTraffic::write ? 0 : all)};
  Tensor to = written_tensor(traffic == MemoryTraffic::read ? 0 : all);
  std::vector<double> idle, moving;
  const auto end = std::chrono::steady_clock::now() + kTimeForAll;
  while (moving.size() < kFewest || std::chrono::steady_clock::now() < end) {
    caches.prepare(team, from, {}, nullptr);
    idle.push_back(seconds([&] { team.run(team.size(), [](int) {}); }));
    moving.push_back(seconds([&] {
      team.run(team.size(), [&](int thread) {
        const size_t own = part * static_cast<size_t>(thread);
        kernel(static_cast<const char*>(from[0].raw()) + own, static_cast<char*>(to.mutable_raw()) + own, chunks);
      });
    }));
  }
  return static_cast<double>(all * (bytes / moved)) / std::max(median(moving) - median(idle), 1e-9) / 1e9;
}

// Of memory far larger than the caches, which nobody has just written.
double measure_far_read(ThreadTeam& team, const std::vector<Tensor>& memory) {
  const auto kernel = emit_memory_peak(usable_isa(), MemoryTraffic::read);
  const auto chunks = static_cast<int64_t>(memory.front().bytes()) / memory_peak_chunk(usable_isa());
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat)
    best = std::min(best, seconds([&] {
                      team.run(team.size(),
                               [&](int thread) { kernel(memory[static_cast<size_t>(thread)].raw(), nullptr, chunks); });
                    }));
  return static_cast<double>(chunks * memory_peak_chunk(usable_isa())) * team.size() / best / 1e9;
}

// GB/s of all threads that read rows here and there, some rows ahead of which prefetches go.
double measure_scattered(ThreadTeam& team, const std::vector<Tensor>& memory) {
  constexpr int64_t kRowBytes = 2048, kRows = 8192, kOdd = 7919, kAhead = 6, kLine = 64;
  const Isa isa = usable_isa();
  const auto kernel = emit_memory_peak(isa, MemoryTraffic::read);
  const auto rows_there = static_cast<int64_t>(memory.front().bytes()) / kRowBytes;
  int64_t at = 0;  // no pass finds the rows of the one before
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat, at += kRows * kOdd)
    best = std::min(best, seconds([&] {
                      team.run(team.size(), [&](int thread) {
                        const auto* bytes = static_cast<const char*>(memory[static_cast<size_t>(thread)].raw());
                        const auto row = [&](int64_t i) { return bytes + (at + i * kOdd) % rows_there * kRowBytes; };
                        for (int64_t i = 0; i < kRows; ++i) {
                          const char* later = row(i + kAhead);
                          for (int64_t k = 0; k < kRowBytes; k += kLine) __builtin_prefetch(later + k, 0, 2);
                          kernel(row(i), nullptr, kRowBytes / memory_peak_chunk(isa));
                        }
                      });
                    }));
  return static_cast<double>(kRows * kRowBytes) * team.size() / best / 1e9;
}

// Bytes of each thread that no cache holds.
size_t far_bytes(int threads) {
  return std::max<size_t>(cpu_facts().l3_bytes * 4, size_t{128} << 20) / static_cast<size_t>(threads);
}

std::vector<Tensor> far_memory(int threads) {
  std::vector<Tensor> memory;
  for (int thread = 0; thread < threads; ++thread) memory.push_back(written_tensor(far_bytes(threads)));
  return memory;
}

std::vector<KernelPeaks::Level> cache_levels(int threads) {
  const CpuFacts& cpu = cpu_facts();
  const auto shared = static_cast<size_t>(threads);
  std::vector<KernelPeaks::Level> levels;
  // Up to a half a cache has room for what else there is; what nearly fills it is partly farther out. A small part of
  // it still has a share in the cache before; what takes no longer than to read the clock is not told apart.
  const std::pair<const char*, size_t> caches[] = {
      {"L1", cpu.l1d_bytes}, {"L2", cpu.l2_bytes}, {"L3", cpu.l3_bytes / shared}};
  for (const auto& [name, bytes] : caches) {
    for (const size_t part : {bytes / 8, bytes / 4, bytes / 2, bytes})
      if (part >= (levels.empty() ? cpu.l1d_bytes / 2 : levels.back().bytes + 1)) levels.push_back({name, part});
  }
  levels.push_back({"memory", far_bytes(threads)});
  return levels;
}

}  // namespace

KernelPeaks measure_kernel_peaks(int threads) {
  ThreadTeam team(threads);
  KernelPeaks peaks;
  peaks.threads = threads;
  for (int i = 0; i < kArithmeticCount; ++i)
    peaks.gflops[static_cast<size_t>(i)] = measure_gflops(team, static_cast<Arithmetic>(i));
  peaks.gdivisions = measure_rate(team, emit_division_peak(usable_isa()), division_peak_count(usable_isa()));
  // Per division: what a round of both takes, less its products.
  const double among = measure_rate(team, emit_division_peak(usable_isa(), true), division_peak_count(usable_isa()));
  peaks.division_flop = std::max(0.0, peaks.gflops[0] / among - 2.0 * kProductsBesideDivision);
  peaks.levels = cache_levels(threads);
  ModelCaches caches;
  // The best of rounds that are some tenths of a second apart: others on the machine disturb for longer than one
  // measures.
  constexpr size_t kRounds = 3;
  for (size_t turn = 0; turn < kRounds * peaks.levels.size(); ++turn) {
    const size_t i = turn % peaks.levels.size();
    KernelPeaks::Level& level = peaks.levels[i];
    const auto measure = [&](double& best, size_t bytes, MemoryTraffic traffic) {
      best = std::max(best, measure_traffic(team, caches, bytes, traffic));
    };
    const bool is_whole = i + 1 < peaks.levels.size() && peaks.levels[i + 1].name != level.name;
    const size_t bytes = is_whole ? level.bytes / 8 * 7 : level.bytes;
    measure(level.read, bytes, MemoryTraffic::read);
    measure(level.write, bytes, MemoryTraffic::write);
    measure(level.copy, bytes, MemoryTraffic::copy);
  }
  const std::vector<Tensor> memory = far_memory(threads);
  peaks.levels.back().read = measure_far_read(team, memory);
  peaks.scattered_read = measure_scattered(team, memory);
  return peaks;
}

namespace {

double seconds_of(double read, double written, const KernelPeaks::Level& level) {
  const double both = std::min(read, written);
  return (2 * both / level.copy + (read - both) / level.read + (written - both) / level.write) / 1e9;
}

}  // namespace

Floor floor_of(const Work& work, const KernelPeaks& peaks) {
  static constexpr const char* kNames[kArithmeticCount] = {"f32", "bf16", "bytes", "pairs"};
  const auto kind = static_cast<size_t>(work.arithmetic);
  const auto level_for = [&](double bytes_of_thread) {
    return std::find_if(peaks.levels.begin(), peaks.levels.end() - 1, [&](const KernelPeaks::Level& candidate) {
      return bytes_of_thread <= static_cast<double>(candidate.bytes);
    });
  };
  const double gflops = peaks.gflops[kind];
  Floor floor{(work.flop + work.divisions * peaks.division_flop) / gflops / 1e9, kNames[kind]};
  const auto at_least = [&](double seconds, const std::string& bound) {
    if (seconds > floor.seconds) floor = {seconds, bound};
  };
  if (work.divisions > 0) at_least(work.divisions / peaks.gdivisions / 1e9, "div");
  const double near = work.bytes - work.weight_bytes, read = near - work.written_bytes;
  const auto level = level_for(near / peaks.threads);
  const bool is_far = &*level == &peaks.memory();
  const double from_memory = work.has_scattered_weights ? peaks.scattered_read : peaks.memory().read;
  at_least(work.weight_bytes / from_memory / 1e9, work.has_scattered_weights ? "rows" : "memory");
  at_least(seconds_of(read + (is_far ? work.weight_bytes : 0), work.written_bytes, *level), level->name);
  // Turns begin when what is no part of them has ended.
  const auto kept = level_for(work.reread_near_bytes);
  at_least((work.flop - work.reread_flop) / gflops / 1e9 + work.reread_bytes / kept->read / 1e9, kept->name);
  if (!work.is_node) return floor;
  return {floor.seconds + peaks.call_seconds, floor.seconds < peaks.call_seconds ? "call" : floor.bound};
}

MachinePeak measure_peak(int threads) {
  ThreadTeam team(threads);
  return {measure_gflops(team), measure_far_read(team, far_memory(threads))};
}

}  // namespace lathe::tools
