#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "ops/lower.h"
#include "tests/guarded_bytes.h"

namespace lathe::testing {

// Full of NaN, and aligned as buffers are.
class GuardedMemory : public GuardedBytes {
 public:
  explicit GuardedMemory(size_t bytes) : GuardedBytes((bytes + 63) / 64 * 64, 0xff) {}
};

// All shares of a step's rounds, the last one first: they may be taken in any order, by any thread.
inline void run_step(const Step& step, void* const* addresses, size_t thread_bytes = 0) {
  const int shares = step.share_count();
  for (int round = 0; round < step.rounds; ++round) {
    for (int share = shares; share-- > 0;)
      step.run({addresses, share, shares, share % step.threads, step.threads, thread_bytes, round});
  }
}

// A guarded place for each buffer, and for each thread's of those that every thread has.
class StepMemory {
 public:
  explicit StepMemory(const LoweredGraph& lowered) : lowered_(lowered) {
    for (const Buffer& buffer : lowered.buffers)
      if (buffer.per_thread) thread_bytes_ = std::max(thread_bytes_, (buffer.bytes + 63) / 64 * 64);
    size_t threads = 1;
    for (const Step& step : lowered.steps) threads = std::max(threads, static_cast<size_t>(step.threads));
    for (const Buffer& buffer : lowered.buffers) {
      const size_t before = buffer.per_thread ? (threads - 1) * thread_bytes_ : 0;
      memory_.push_back(buffer.fixed ? nullptr : std::make_unique<GuardedMemory>(before + buffer.bytes));
      addresses_.push_back(buffer.fixed ? const_cast<void*>(buffer.fixed) : memory_.back()->data());
    }
  }

  void* at(BufferId id) const { return addresses_[static_cast<size_t>(id)]; }
  void* at(ValueId id) const { return at(lowered_.of_value[index_of(id)]); }

  void run() const {
    for (const Step& step : lowered_.steps) run_step(step, addresses_.data(), thread_bytes_);
  }

 private:
  const LoweredGraph& lowered_;
  size_t thread_bytes_ = 0;
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
  std::vector<void*> addresses_;
};

}  // namespace lathe::testing
