#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lathe/tensor.h"

namespace lathe {

// A place in memory that steps read and write. The memory plan gives it an address; sessions differ in addresses.
enum class BufferId : int32_t { none = -1 };

// What a step sees when it runs. Addresses are by buffer; never null for a non-empty buffer.
struct StepArgs {
  void* const* addresses;  // indexed by BufferId
  int share = 0;
  int shares = 1;           // as many as the step asked for
  int thread = 0;           // who does it: for scratch of its own, not for what to do
  int runs = 1;             // of neighbouring shares: each thread begins with one
  size_t thread_bytes = 0;  // from one thread's own memory to the next one's
  int round = 0;            // of the step's rounds
  bool are_far = false;     // lines take long from thread to thread: the same in all steps of a run

  // The first share of a run.
  bool begins_run() const { return share % (shares / runs) == 0; }
  // The last share of a run, and of the run of thread 0, which will begin the next step.
  bool ends_run() const { return (share + 1) % (shares / runs) == 0; }
  bool ends_first_run() const { return share + 1 == shares / runs; }

  template <class T>
  T* at(BufferId id) const {
    return static_cast<T*>(addresses[static_cast<size_t>(id)]);
  }
  // In a buffer of which every thread has its own (LowerContext::thread_scratch).
  template <class T>
  T* own(BufferId id, int of_thread) const {
    return reinterpret_cast<T*>(at<std::byte>(id) + static_cast<size_t>(of_thread) * thread_bytes);
  }
  template <class T>
  T* own(BufferId id) const {
    return own<T>(id, thread);
  }
};

// A kernel (or a plain function) bound to its buffers. `run` is called once for each share of its work, by any of
// `threads` threads, allocates nothing and throws nothing.
struct Step {
  std::string node;    // graph node
  std::string op;      // "Conv+Relu"
  std::string kernel;  // the plan's text; "reference" for a fallback
  std::vector<BufferId> reads;
  std::vector<BufferId> writes;  // scratch is both read and written: list it here
  // The write may take the place of the read, if the read's last use is here: element i of the write depends on nothing
  // but element i of that read. (write, read) pairs of equal size.
  std::vector<std::pair<BufferId, BufferId>> in_place;
  int threads = 1;
  int shares = 0;  // 0: one for each thread. More let threads that are held up less do more: worthwhile_shares()
  // All shares are run so often: none of a round begins before every one of the round before has ended.
  int rounds = 1;
  double flop = 0;
  double bytes = 0;
  // Of weights that turns read again, one behind the other, as the time steps of a recurrent layer do: the bytes of all
  // turns but the first, and those that each of the threads has to keep near in the meantime.
  double reread_bytes = 0, reread_near_bytes = 0;
  std::function<void(const StepArgs&)> run;
  // Of one of several ways to the same results, told apart by what is in memory by then. False: by another one. Null:
  // the only one.
  std::function<bool(const StepArgs&)> runs;
  // Streamed weights, so that the step before can prefetch their beginning. Null: none.
  const void* weights = nullptr;
  // Set by the runtime before the first run: the weights that the next streaming step begins with.
  std::shared_ptr<const void*> next_weights;

  int share_count() const { return shares > 0 ? shares : threads; }
  bool is_wanted(void* const* addresses) const { return runs == nullptr || runs({addresses}); }
};

}  // namespace lathe
