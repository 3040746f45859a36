#pragma once
#include <memory>
#include <type_traits>

namespace lathe {

// A fork-join team. A job is cut into shares; each thread has a run of neighbouring shares of its own and takes them
// from the front, then others' from the back, so that a thread whose CPU is taken away holds up one share and not the
// job (Blumofe, Leiserson: Scheduling Multithreaded Computations by Work Stealing, 1999). Workers spin briefly after a
// job, then sleep; between the jobs of one run (Awake) they spin for longer. One job at a time: concurrent callers take
// turns. The caller is thread 0.
class ThreadTeam {
 public:
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;

  // While one lives, its jobs follow each other closely: who waits for the next one, or for the others' shares, does
  // not sleep before a millisecond has passed. Waking a thread takes 30 us and more, a step that one thread has to
  // itself or that is split unevenly seldom more than some hundred.
  class [[nodiscard]] Awake {
   public:
    explicit Awake(ThreadTeam& team);
    ~Awake();
    Awake(const Awake&) = delete;
    Awake& operator=(const Awake&) = delete;

   private:
    ThreadTeam& team_;
  };

  // Whether a line that one of the threads has written reaches another one slowly, as from the L3 cache of one die to
  // that of the next. Found anew now and then between jobs, as virtual CPUs are moved: of two ways to the same results
  // one exchanges more, and the faster one may change.
  bool is_far() const;

  static constexpr int kMostShares = 0xffff;

  // Calls job(context, share, thread) once for each share = 0 .. shares-1 and returns when all are done. `thread`, of
  // 0 .. threads-1, is who runs it: memory of its own needs no more than one place for each thread.
  // Requires: threads <= size(), shares <= kMostShares. Allocates nothing; the job must not throw and must not start
  // another job on this team.
  using Job = void (*)(void* context, int share, int thread);
  void run(int threads, int shares, Job job, void* context);
  template <class Body>
  void run(int threads, int shares, Body&& body) {
    run(
        threads, shares,
        [](void* context, int share, int thread) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(share, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
  // A share for each thread: body(share).
  template <class Body>
  void run(int threads, Body&& body) {
    run(threads, threads, [&body](int share, int) { body(share); });
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Share `share` of `shares` of [0, count): contiguous, sizes differ by at most one.
struct Range {
  long begin = 0, end = 0;
};
inline Range split_evenly(long count, int share, int shares) {
  return {count * share / shares, count * (share + 1) / shares};
}

}  // namespace lathe
