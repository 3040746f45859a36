#include "src/runtime/arena_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "lathe/error.h"

namespace lathe {

ArenaPool::Block::Block(size_t size) : bytes_(std::max<size_t>(size, 1)) {
  constexpr size_t kHugePageFrom = size_t{1} << 20;
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED)
    throw Error(ErrorCode::limit,
                "out of memory: a run needs " + std::to_string(bytes_) + " bytes for intermediate results");
  if (bytes_ >= kHugePageFrom) madvise(memory_, bytes_, MADV_HUGEPAGE);
}

ArenaPool::Block::~Block() { munmap(memory_, bytes_); }

std::unique_ptr<ArenaPool::Block> ArenaPool::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const auto& block) { return block->bytes() >= bytes; };
    if (const auto found = std::find_if(idle_.begin(), idle_.end(), fits); found != idle_.end()) {
      std::unique_ptr<Block> block = std::move(*found);
      idle_.erase(found);
      return block;
    }
    if (!idle_.empty()) {
      // The one that is too small gives way to a larger one, with room for shapes that go on growing.
      idle_.pop_back();
      bytes += bytes / 8;
    }
  }
  return std::make_unique<Block>(bytes);
}

void ArenaPool::give(std::unique_ptr<Block> block) {
  const std::lock_guard lock(mutex_);
  const auto is_smaller = [](const auto& a, const auto& b) { return a->bytes() < b->bytes(); };
  idle_.insert(std::upper_bound(idle_.begin(), idle_.end(), block, is_smaller), std::move(block));
}

}  // namespace lathe
