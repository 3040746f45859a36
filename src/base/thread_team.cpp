#include "src/base/thread_team.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lathe/error.h"
#include "src/base/check.h"
#include "src/base/round_trips.h"
#include "src/base/topology.h"

namespace lathe {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than the gaps between the jobs of a run, shorter than a scheduler's slice.
constexpr auto kSpinInRun = std::chrono::microseconds(1000);
constexpr auto kSpin = std::chrono::microseconds(40);
constexpr int kPausesPerClockRead = 32;  // a clock read costs about as much as a pause

// Zen 5: 90 ns on one die, 400 between two.
constexpr auto kFarRoundTrip = std::chrono::nanoseconds(200);
constexpr uint32_t kJobsPerDistance = 128;  // which takes 1 to 3 us

// Spins while `word` is `old`, but for no longer than `longest_spin()`, which may change meanwhile; then sleeps until
// it is not.
template <class LongestSpin>
void wait_while(const std::atomic<uint32_t>& word, uint32_t old, const LongestSpin& longest_spin) {
  const auto begin = Clock::now();
  while (Clock::now() - begin < longest_spin()) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      _mm_pause();
    }
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

// What is left of a thread's own run of shares, in one word, so that it is read and changed at once: the job's number,
// the next share, the share behind the last.
class SharesLeft {
 public:
  void refill(uint32_t job, Range shares) {
    word_.store(uint64_t{job} << 32 | static_cast<uint64_t>(shares.begin) << 16 | static_cast<uint64_t>(shares.end),
                std::memory_order_release);
  }
  int take_first(uint32_t job) { return take(job, true); }
  int take_last(uint32_t job) { return take(job, false); }

 private:
  // A share of this job; -1: there is none. A thread that comes late finds the number of another job.
  int take(uint32_t job, bool first) {
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t begin = word >> 16 & 0xffff, end = word & 0xffff;
      if (word >> 32 != job || begin >= end) return -1;
      const uint64_t rest = first ? word + 0x10000 : word - 1;
      if (word_.compare_exchange_weak(word, rest, std::memory_order_acq_rel, std::memory_order_acquire))
        return static_cast<int>(first ? begin : end - 1);
    }
  }

  alignas(64) std::atomic<uint64_t> word_{0};
};

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);  // a wish: failing costs speed only
}

}  // namespace

struct ThreadTeam::State {
  // A worker sleeps on a word of its own, so that small jobs wake nobody else.
  struct alignas(64) Worker {
    std::atomic<uint32_t> ticket{0};  // the number of the last job that it was called to
    std::thread thread;
    int cpu = -1;         // where it is pinned; -1: anywhere
    bool is_far = false;  // from thread 0
  };

  explicit State(int threads) : workers(static_cast<size_t>(threads - 1)), shares(static_cast<size_t>(threads)) {}
  ~State() { stop(); }

  void start();
  void stop();
  void work(size_t index);
  void take_shares(int thread, uint32_t of_job);
  void make_way_for_caller();
  void run_job(int threads, int count, Job what, void* with);
  void find_distance();
  Clock::duration longest_spin() const {
    if (!may_spin) return Clock::duration::zero();
    return runs.load(std::memory_order_relaxed) > 0 ? kSpinInRun : kSpin;
  }

  std::mutex turn;  // held for one job
  std::vector<Worker> workers;
  bool may_spin = true;
  int caller_cpu = -1;  // the one CPU without a worker, when workers are pinned

  std::vector<SharesLeft> shares;  // of each thread
  // The job. Written by the caller before it hands out shares, read by who took one: it lasts until that share is done.
  Job job = nullptr;
  void* context = nullptr;
  uint32_t number = 0;
  uint32_t last_distance = 0 - kJobsPerDistance;  // the job behind which it was found: the first is next
  std::atomic<bool> stopping{false};
  alignas(64) std::atomic<int> runs{0};  // that are under way: Awake
  std::atomic<bool> is_far{false};       // any worker
  RoundTrips trips;
  alignas(64) std::atomic<uint32_t> unfinished{0};
};

void ThreadTeam::State::start() {
  if (workers.empty()) return;
  const std::vector<int> cpus = preferred_cpus();
  const size_t team = workers.size() + 1;
  // With fewer CPUs than threads a spinning thread would keep the one that it waits for from running.
  may_spin = cpus.size() >= team;
  // Pinned only when the team fills the mask: else another process may have picked the same CPUs.
  const bool is_pinned = cpus.size() == team;
  if (is_pinned) caller_cpu = cpus[0];

  sigset_t all_signals, before;
  sigfillset(&all_signals);
  pthread_sigmask(SIG_SETMASK, &all_signals, &before);  // inherited: signals stay with the application's threads
  try {
    for (size_t i = 0; i < workers.size(); ++i) {
      workers[i].thread = std::thread([this, i] { work(i); });
      pthread_setname_np(workers[i].thread.native_handle(), ("lathe-" + std::to_string(i + 1)).c_str());
      if (!is_pinned) continue;
      workers[i].cpu = cpus[i + 1];
      pin(workers[i].thread.native_handle(), workers[i].cpu);
    }
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::limit, "cannot start " + std::to_string(team) + " threads: " + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadTeam::State::stop() {
  stopping = true;
  for (Worker& worker : workers) {
    worker.ticket.fetch_add(1);  // any change: it looks at `stopping` first
    worker.ticket.notify_one();
  }
  for (Worker& worker : workers)
    if (worker.thread.joinable()) worker.thread.join();
}

void ThreadTeam::State::work(size_t index) {
  std::atomic<uint32_t>& ticket = workers[index].ticket;
  for (uint32_t seen = 0;;) {
    wait_while(ticket, seen, [this] { return longest_spin(); });
    if (stopping) return;
    seen = ticket.load(std::memory_order_acquire);
    take_shares(static_cast<int>(index) + 1, seen);
  }
}

// Runs shares of the job with this number until none is left that nobody has begun.
void ThreadTeam::State::take_shares(int thread, uint32_t of_job) {
  uint32_t done = 0;
  const auto run = [&](int share) {
    job(context, share, thread);
    ++done;
  };
  for (int share; (share = shares[static_cast<size_t>(thread)].take_first(of_job)) >= 0;) run(share);
  for (size_t i = 1; i < shares.size(); ++i) {
    SharesLeft& others = shares[(static_cast<size_t>(thread) + i) % shares.size()];
    for (int share; (share = others.take_last(of_job)) >= 0;) run(share);
  }
  if (done > 0 && unfinished.fetch_sub(done) == done && thread != 0) unfinished.notify_one();
}

// The caller's thread is not ours to pin. When it runs on a worker's CPU, the two change places.
void ThreadTeam::State::make_way_for_caller() {
  const int cpu = sched_getcpu();
  if (caller_cpu < 0 || cpu == caller_cpu) return;
  for (Worker& worker : workers) {
    if (worker.cpu != cpu) continue;
    worker.cpu = caller_cpu;
    pin(worker.thread.native_handle(), worker.cpu);
    caller_cpu = cpu;
    return;
  }
}

void ThreadTeam::State::run_job(int threads, int count, Job what, void* with) {
  job = what;
  context = with;
  ++number;
  unfinished.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  for (int i = 0; i < threads; ++i) shares[static_cast<size_t>(i)].refill(number, split_evenly(count, i, threads));
  for (int i = 0; i < threads - 1; ++i) {
    std::atomic<uint32_t>& ticket = workers[static_cast<size_t>(i)].ticket;
    ticket.store(number);  // sequentially consistent: ordered before notify_one's look at the sleepers
    ticket.notify_one();
  }
  take_shares(0, number);
  for (uint32_t left; (left = unfinished.load(std::memory_order_acquire)) != 0;)
    wait_while(unfinished, left, [&] { return longest_spin(); });
}

// Of one worker, another one each time.
void ThreadTeam::State::find_distance() {
  struct Measured {
    RoundTrips& trips;
    int answers;  // the thread that does
    std::optional<std::chrono::nanoseconds> time;
  } measured{trips, 1 + static_cast<int>(number / kJobsPerDistance % workers.size()), std::nullopt};
  last_distance = number;
  trips.reset();
  const auto team = static_cast<int>(shares.size());
  run_job(
      team, team,
      [](void* what, int share, int thread) {
        auto& at = *static_cast<Measured*>(what);
        if (share != thread) return;  // of one that came too late
        if (thread == 0) at.time = at.trips.measure();
        if (thread == at.answers) at.trips.answer();
      },
      &measured);
  if (!measured.time) return;
  workers[static_cast<size_t>(measured.answers - 1)].is_far = *measured.time > kFarRoundTrip;
  is_far = std::any_of(workers.begin(), workers.end(), [](const Worker& worker) { return worker.is_far; });
}

ThreadTeam::ThreadTeam(int threads) {
  if (threads < 1)
    throw Error(ErrorCode::invalid_argument, "a thread team needs at least 1 thread, got " + std::to_string(threads));
  state_ = std::make_unique<State>(threads);
  state_->start();
}

ThreadTeam::~ThreadTeam() = default;

ThreadTeam::Awake::Awake(ThreadTeam& team) : team_(team) { ++team_.state_->runs; }

ThreadTeam::Awake::~Awake() { --team_.state_->runs; }

bool ThreadTeam::is_far() const { return state_->is_far.load(std::memory_order_relaxed); }

int ThreadTeam::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadTeam::run(int threads, int shares, Job job, void* context) {
  LATHE_CHECK(threads <= size(), "a job asks for more threads than its team has");
  LATHE_CHECK(shares <= kMostShares, "a job has more shares than a team can count");
  if (threads <= 1 || shares <= 1) {
    for (int share = 0; share < shares; ++share) job(context, share, 0);
    return;
  }
  const std::lock_guard lock(state_->turn);
  state_->make_way_for_caller();
  state_->run_job(threads, shares, job, context);
  // Behind a job the workers are awake.
  if (state_->may_spin && threads == size() && state_->number - state_->last_distance >= kJobsPerDistance)
    state_->find_distance();
}

}  // namespace lathe
