#include "src/runtime/result_memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "lathe/error.h"

namespace lathe {
namespace {

constexpr size_t kSmall = size_t{64} << 10;  // below, malloc has memory at hand

// Sizes that differ by little are one, so that a result may grow from run to run.
size_t rounded(size_t bytes) {
  if (bytes < kSmall) return bytes;
  const size_t unit = std::bit_floor(bytes) / 8;
  return (bytes + unit - 1) / unit * unit;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<void, Free>;

}  // namespace

struct ResultMemory::Idle {
  explicit Idle(size_t most) : most_blocks(most) { blocks.reserve(most); }

  Block take(size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found = std::find_if(blocks.begin(), blocks.end(), [&](const Sized& one) { return one.bytes == bytes; });
    if (found == blocks.end()) return nullptr;
    Block block = std::move(found->block);
    blocks.erase(found);
    return block;
  }
  void give(size_t bytes, Block block) {
    const std::lock_guard lock(mutex);
    if (most_blocks == 0) return;
    // The oldest go: their size is no longer asked for.
    if (blocks.size() >= most_blocks) blocks.erase(blocks.begin());
    blocks.push_back({bytes, std::move(block)});
  }
  void keep_at_least(size_t count) {
    const std::lock_guard lock(mutex);
    most_blocks = std::max(most_blocks, count);
    blocks.reserve(most_blocks);
  }

  struct Sized {
    size_t bytes;
    Block block;
  };
  size_t most_blocks;
  std::mutex mutex;
  std::vector<Sized> blocks;
};

ResultMemory::ResultMemory(size_t blocks) : idle_(std::make_shared<Idle>(blocks)) {}

ResultMemory::ResultMemory(const ResultMemory& other, size_t blocks) : idle_(other.idle_) {
  // Of the graphs that run in turn, and of results that serve as inputs of the next run.
  constexpr size_t kGraphs = 2, kMore = 8;
  idle_->keep_at_least(blocks * kGraphs + kMore);
}

Tensor ResultMemory::make(const TensorType& type) const {
  // Kernels may read one whole vector that begins at the last element.
  const size_t bytes = rounded((type.storage_bytes() + 127) / 64 * 64);
  Block block = bytes < kSmall ? nullptr : idle_->take(bytes);
  if (block == nullptr) block.reset(std::aligned_alloc(64, bytes));
  if (block == nullptr)
    throw Error(ErrorCode::limit, "out of memory: an output of " + std::to_string(bytes) + " bytes");
  void* memory = block.get();
  const auto give_back = [bytes, idle = std::weak_ptr<Idle>(idle_)](void* released) {
    Block own(released);
    if (bytes < kSmall) return;
    if (const auto alive = idle.lock()) alive->give(bytes, std::move(own));
  };
  const std::shared_ptr<void> owner(block.release(), give_back);
  return Tensor::view(type.dtype, type.extents(), memory, owner);
}

}  // namespace lathe
