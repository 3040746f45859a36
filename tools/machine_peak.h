#pragma once

namespace lathe::tools {

// What this machine reaches, measured in about 0.2 s: the yardstick of `lathe bench --profile`.
struct MachinePeak {
  double gflops = 0;         // float32 multiply-add, all threads together
  double read_gbytes_s = 0;  // reading memory far larger than the caches, all threads together
};
MachinePeak measure_peak(int threads);

}  // namespace lathe::tools
