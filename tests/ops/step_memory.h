#pragma once
#include <cstddef>
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
void run_step(const Step& step, void* const* addresses, size_t thread_bytes = 0);

// A guarded place for each buffer, and for each thread's of those that every thread has.
class StepMemory {
 public:
  explicit StepMemory(const LoweredGraph& lowered);

  void* at(BufferId id) const { return addresses_[static_cast<size_t>(id)]; }
  void* at(ValueId id) const { return at(lowered_.of_value[index_of(id)]); }

  void run() const;

 private:
  const LoweredGraph& lowered_;
  size_t thread_bytes_ = 0;
  std::vector<std::unique_ptr<GuardedMemory>> memory_;
  std::vector<void*> addresses_;
};

}  // namespace lathe::testing
