#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace lathe {

// How long a written line takes from one thread to another one and back.
class RoundTrips {
 public:
  // Before the two threads begin.
  void reset() {
    there_.store(0, std::memory_order_relaxed);
    back_.store(0, std::memory_order_relaxed);
  }
  // By one thread, the other one being about to answer(). nullopt: it was held up, or so was this one.
  std::optional<std::chrono::nanoseconds> measure() {
    const std::optional<Clock::duration> first = send(1);  // waits until the other thread is there
    const std::optional<Clock::duration> some = first ? send(kTrips) : std::nullopt;
    const std::optional<Clock::duration> more = some ? send(kTrips) : std::nullopt;
    there_.store(kEnd, std::memory_order_release);
    if (!more) return std::nullopt;
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::min(*some, *more)) / kTrips;
  }
  // By the other one, until measure() has ended.
  void answer() {
    for (uint32_t seen; (seen = there_.load(std::memory_order_acquire)) != kEnd;)
      back_.store(seen, std::memory_order_release);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kTrips = 3;
  static constexpr int kPollsPerClockRead = 64;
  static constexpr auto kLongestWait = std::chrono::microseconds(20);
  static constexpr uint32_t kEnd = ~uint32_t{0};

  // So many round trips, one behind the other.
  std::optional<Clock::duration> send(int trips) {
    const auto begin = Clock::now();
    for (int i = 0; i < trips; ++i) {
      const uint32_t sent = there_.load(std::memory_order_relaxed) + 1;
      there_.store(sent, std::memory_order_release);
      for (int polls = 1; back_.load(std::memory_order_acquire) != sent; ++polls)
        if (polls % kPollsPerClockRead == 0 && Clock::now() - begin > kLongestWait) return std::nullopt;
    }
    return Clock::now() - begin;
  }

  alignas(64) std::atomic<uint32_t> there_{0};
  alignas(64) std::atomic<uint32_t> back_{0};
};

}  // namespace lathe
