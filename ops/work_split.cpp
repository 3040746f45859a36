#include "ops/work_split.h"

#include <algorithm>

namespace lathe {

int worthwhile_threads(double flop, int threads) {
  constexpr double kFlopPerThread = 400e3;  // about 4 us
  return std::clamp(static_cast<int>(flop / kFlopPerThread), 1, threads);
}

int worthwhile_readers(double bytes, int threads) {
  constexpr double kBytesPerThread = 200e3;  // about 4 us from L3
  return std::clamp(static_cast<int>(bytes / kBytesPerThread), 1, threads);
}

int worthwhile_movers(double bytes, int threads) {
  // 0.3 us; a fork and join among spinning threads takes 0.15 to 0.2 (Zen 5).
  constexpr double kBytesPerThread = 32e3;
  return std::clamp(static_cast<int>(bytes / kBytesPerThread), 1, threads);
}

int worthwhile_shares(double flop, int threads) {
  constexpr double kFlopPerShare = 4e6;  // about 40 us
  constexpr double kMostOfThread = 4;
  if (threads <= 1) return 1;
  return threads * static_cast<int>(std::clamp(flop / threads / kFlopPerShare, 1.0, kMostOfThread));
}

bool pays_own_copies(int threads) {
  constexpr int kMostThreads = 4;
  return threads > 1 && threads <= kMostThreads;
}

}  // namespace lathe
