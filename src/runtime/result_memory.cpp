#include "src/runtime/result_memory.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "lathe/error.h"

namespace lathe {
namespace {

constexpr size_t kSmall = size_t{64} << 10;  // below, malloc has memory at hand

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
    if (blocks.size() < most_blocks) blocks.push_back({bytes, std::move(block)});
  }

  struct Sized {
    size_t bytes;
    Block block;
  };
  const size_t most_blocks;
  std::mutex mutex;
  std::vector<Sized> blocks;
};

ResultMemory::ResultMemory(size_t blocks) : idle_(std::make_shared<Idle>(blocks)) {}

Tensor ResultMemory::make(const TensorType& type) const {
  // Kernels may read one whole vector that begins at the last element.
  const size_t bytes = (type.storage_bytes() + 127) / 64 * 64;
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
