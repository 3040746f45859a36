#pragma once
#include <memory>
#include <type_traits>

namespace lathe {

// A fork-join team with static splits. Workers spin briefly after a job, then sleep.
// One job at a time: concurrent callers take turns. The caller is thread 0.
class ThreadTeam {
 public:
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const;

  // Calls job(context, thread) for thread = 0 .. threads-1 and returns when all are done. Requires: threads <= size().
  // Allocates nothing; the job must not throw and must not start another job on this team.
  using Job = void (*)(void* context, int thread);
  void run(int threads, Job job, void* context);
  template <class Body>
  void run(int threads, Body&& body) {
    run(
        threads, [](void* context, int thread) { (*static_cast<std::remove_reference_t<Body>*>(context))(thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The part of [0, count) that thread `thread` of `threads` takes: contiguous, sizes differ by at most one.
struct Range {
  long begin = 0, end = 0;
};
inline Range split_evenly(long count, int thread, int threads) {
  return {count * thread / threads, count * (thread + 1) / threads};
}

}  // namespace lathe
