#include "tests/ops/step_memory.h"

#include <algorithm>

namespace lathe::testing {

void run_step(const Step& step, void* const* addresses, size_t thread_bytes) {
  if (!step.is_wanted(addresses)) return;
  const int shares = step.share_count();
  for (int round = 0; round < step.rounds; ++round) {
    for (int share = shares; share-- > 0;)
      step.run({addresses, share, shares, share % step.threads, step.threads, thread_bytes, round});
  }
}

StepMemory::StepMemory(const LoweredGraph& lowered) : lowered_(lowered) {
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

void StepMemory::run() const {
  for (const Step& step : lowered_.steps) run_step(step, addresses_.data(), thread_bytes_);
}

}  // namespace lathe::testing
