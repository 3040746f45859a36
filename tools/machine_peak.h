#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "src/base/arithmetic.h"

namespace lathe::tools {

// What this machine reaches, measured in about 0.2 s: the yardstick of `lathe bench --profile`.
struct MachinePeak {
  double gflops = 0;         // float32 multiply-add, all threads together
  double read_gbytes_s = 0;  // reading memory far larger than the caches, all threads together
};
MachinePeak measure_peak(int threads);

// The same for every kind of arithmetic and every level of the caches, measured in some seconds: the yardstick of
// `lathe bench-kernel`. All threads together.
struct KernelPeaks {
  struct Level {
    std::string name;                      // "L1"
    size_t bytes = 0;                      // that fit for one thread
    double read = 0, write = 0, copy = 0;  // GB/s of what was just written, to what left the inner caches, and of both
  };
  std::array<double, kArithmeticCount> gflops = {};
  double gdivisions = 0;      // float32 divisions, in 1e9 a second
  double division_flop = 0;   // operations of float32 that could be done in the turns that one takes among them
  std::vector<Level> levels;  // parts of each cache to its end, the smaller first; memory last
  double call_seconds = 0;    // what a node that does next to nothing takes, of which rates know nothing
  double scattered_read = 0;  // GB/s from memory by rows of 2 KB far from each other: pages are looked up for each
  int threads = 1;

  const Level& memory() const { return levels.back(); }
};
KernelPeaks measure_kernel_peaks(int threads);

// The least time that work can take: the longest of its arithmetic (with what divisions take from it), its divisions,
// its weights' way from memory and then, where turns read them again, from where they are kept, and the way of its
// other operands through the cache that they fit into. Of a node, its call more.
struct Floor {
  double seconds = 0;
  std::string bound;  // what takes most of it: "f32", "div", "L2", "memory", "call"
};
struct Work {
  double flop = 0;
  Arithmetic arithmetic = Arithmetic::f32;
  double bytes = 0, weight_bytes = 0, written_bytes = 0;            // as in TuningTask
  double reread_bytes = 0, reread_near_bytes = 0, reread_flop = 0;  // as well
  double divisions = 0;                                             // of float32
  bool has_scattered_weights = false;                               // rows of a table
  bool is_node = false;                                             // runs as a step of a model
};
Floor floor_of(const Work& work, const KernelPeaks& peaks);

}  // namespace lathe::tools
