#include "src/base/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "lathe/error.h"
#include "src/base/round_trips.h"
#include "src/base/topology.h"

namespace lathe {
namespace {

TEST(ThreadTeam, RunsOneShareForEachThread) {
  for (int size : {1, 2, 3, 8}) {
    ThreadTeam team(size);
    EXPECT_EQ(team.size(), size);
    for (int round = 0; round < 200; ++round) {
      const int threads = 1 + round % size;
      std::vector<std::atomic<int>> calls(static_cast<size_t>(size));
      team.run(threads, [&](int thread) { ++calls[static_cast<size_t>(thread)]; });
      for (int t = 0; t < size; ++t) ASSERT_EQ(calls[static_cast<size_t>(t)], t < threads ? 1 : 0) << "round " << round;
    }
  }
}

TEST(ThreadTeam, ResultsAreVisibleWhenRunReturns) {
  ThreadTeam team(4);
  for (int round = 0; round < 500; ++round) {
    int plain[4] = {};  // not atomic: run() must order the writes
    team.run(4, [&](int thread) { plain[thread] = round; });
    for (int value : plain) ASSERT_EQ(value, round);
  }
}

TEST(ThreadTeam, RunsEveryShareExactlyOnceHoweverManyThereAre) {
  for (int size : {1, 2, 5}) {
    ThreadTeam team(size);
    for (int round = 0; round < 300; ++round) {
      const int threads = 1 + round % size, shares = round % 37;
      std::vector<std::atomic<int>> calls(40);
      std::atomic<int> most = 0;
      team.run(threads, shares, [&](int share, int thread) {
        ++calls[static_cast<size_t>(share)];
        for (int seen = most; thread > seen && !most.compare_exchange_weak(seen, thread);) {
        }
      });
      for (int s = 0; s < 40; ++s) ASSERT_EQ(calls[static_cast<size_t>(s)], s < shares ? 1 : 0) << "round " << round;
      ASSERT_LT(most, threads);
    }
  }
}

TEST(ThreadTeam, EachThreadHasItsNumber) {
  ThreadTeam team(3);
  std::thread::id ids[3];
  std::atomic<int> arrived = 0;
  // Nobody is done before all have come, so that nobody can take another's share.
  team.run(3, 3, [&](int, int thread) {
    ids[thread] = std::this_thread::get_id();
    for (++arrived; arrived < 3;) std::this_thread::yield();
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  EXPECT_NE(ids[1], ids[2]);
}

TEST(ThreadTeam, OthersDoTheWorkOfAThreadThatIsHeldUp) {
  ThreadTeam team(2);
  std::atomic<int> done = 0;
  int by_thread[2] = {};
  // Thread 1's first share lasts until all others are done: thread 0 must have taken the rest of thread 1's.
  team.run(2, 16, [&](int, int thread) {
    ++by_thread[thread];
    if (thread == 0) {
      ++done;
      std::this_thread::yield();
      return;
    }
    for (int seen = done; seen + by_thread[1] < 16; seen = done) std::this_thread::yield();
    ++done;
  });
  EXPECT_EQ(by_thread[0] + by_thread[1], 16);
  EXPECT_LE(by_thread[1], 1);
}

TEST(ThreadTeam, ConcurrentCallersTakeTurns) {
  ThreadTeam team(3);
  std::atomic<int> inside = 0, most = 0, total = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round)
        team.run(3, [&](int) {
          const int now = ++inside;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
          ++total;
          --inside;
        });
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 100 * 3);
  EXPECT_LE(most, 3);
}

TEST(ThreadTeam, WakesAfterItsWorkersFellAsleep) {
  ThreadTeam team(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far beyond the spin
    std::atomic<int> calls = 0;
    team.run(2, [&](int) { ++calls; });
    EXPECT_EQ(calls, 2);
  }
}

// Runs may overlap, and may wait for longer than anybody spins.
TEST(ThreadTeam, RunsJobsWhileAwakeAndAfterwards) {
  ThreadTeam team(2);
  int calls[2] = {};
  const auto run = [&] { team.run(2, [&](int thread) { ++calls[thread]; }); };
  {
    const ThreadTeam::Awake first(team);
    run();
    {
      const ThreadTeam::Awake second(team);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      run();
    }
    run();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  run();
  EXPECT_EQ(calls[0], 4);
  EXPECT_EQ(calls[1], 4);
}

TEST(ThreadTeam, SharesAreAsManyWhileDistancesAreFound) {
  for (const int size : {1, 2, 3}) {
    ThreadTeam team(size);
    std::vector<int> calls(static_cast<size_t>(size));
    for (int job = 0; job < 1000; ++job) team.run(size, [&](int share) { ++calls[static_cast<size_t>(share)]; });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(size), 1000));
    if (size == 1) {
      EXPECT_FALSE(team.is_far());
    }
  }
}

TEST(RoundTrips, HaveNoTimeIfNobodyAnswers) {
  RoundTrips trips;
  EXPECT_EQ(trips.measure(), std::nullopt);
}

TEST(RoundTrips, TakeTime) {
  if (usable_threads() < 2) GTEST_SKIP() << "both threads have to run at a time";
  RoundTrips trips;
  std::optional<std::chrono::nanoseconds> time;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!time && std::chrono::steady_clock::now() < end) {  // on a busy machine one of them is held up again and again
    trips.reset();
    std::atomic<bool> is_there = false;
    std::thread other([&] {
      is_there = true;
      trips.answer();
    });
    while (!is_there) std::this_thread::yield();
    time = trips.measure();
    other.join();
  }
  ASSERT_TRUE(time);
  EXPECT_GT(*time, std::chrono::nanoseconds(1));
}

TEST(ThreadTeam, RefusesToHaveNoThreads) {
  EXPECT_THROW(ThreadTeam(0), Error);
  EXPECT_THROW(ThreadTeam(-3), Error);
}

TEST(ThreadTeam, RefusesAJobLargerThanItself) {
  ThreadTeam team(2);
  EXPECT_THROW(team.run(3, [](int) {}), Error);
}

TEST(SplitEvenly, CoversAllOnceWithSizesThatDifferByAtMostOne) {
  for (long count : {0L, 1L, 7L, 64L, 1000L})
    for (int threads : {1, 2, 3, 7, 16}) {
      long next = 0;
      for (int t = 0; t < threads; ++t) {
        const Range range = split_evenly(count, t, threads);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.end - range.begin, count / threads);
        EXPECT_LE(range.end - range.begin, count / threads + 1);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
}

}  // namespace
}  // namespace lathe
