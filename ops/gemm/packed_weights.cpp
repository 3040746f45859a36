#include <sys/mman.h>

#include "lathe/error.h"
#include "ops/lower.h"
#include "src/base/checked_size.h"

namespace lathe {

Tensor PackedWeights::get(const Tensor& source, const std::string& format, const std::function<Tensor()>& pack) {
  {
    std::lock_guard lock(mutex_);
    if (const auto entry = packed_.find(source.raw()); entry != packed_.end() && entry->second.is_of(source)) {
      const auto& formats = entry->second.by_format;
      if (const auto found = formats.find(format); found != formats.end()) return found->second;
    }
  }
  Tensor made = pack();
  has_packed(made.bytes());
  std::lock_guard lock(mutex_);
  drop_stale();
  Entry& entry = packed_[source.raw()];
  if (!entry.is_of(source)) entry = {};
  entry.owner = source.owner();
  entry.has_owner = source.owner() != nullptr;
  return entry.by_format.try_emplace(format, std::move(made)).first->second;  // the first to finish wins
}

bool PackedWeights::contains(const Tensor& source) const {
  std::lock_guard lock(mutex_);
  const auto entry = packed_.find(source.raw());
  return entry != packed_.end() && entry->second.is_of(source);
}

void PackedWeights::drop_stale() {
  std::erase_if(packed_, [](const auto& entry) { return entry.second.has_owner && entry.second.owner.expired(); });
}

size_t PackedWeights::bytes() const {
  std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& [source, entry] : packed_)
    for (const auto& [format, tensor] : entry.by_format) sum += tensor.bytes();
  return sum;
}

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;  // cache line

// Address space on huge pages; only what is written takes memory.
std::shared_ptr<char> map_weights(size_t bytes) {
  const size_t mapped = checked_add(bytes, kHugePage);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::limit, "out of memory: " + std::to_string(bytes) + " bytes for packed weights");
  // Weights begin on a huge page's border.
  const auto start = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) & ~(kHugePage - 1);
  madvise(reinterpret_cast<void*>(start), bytes, MADV_HUGEPAGE);
  return {reinterpret_cast<char*>(start), [memory, mapped](char*) { munmap(memory, mapped); }};
}

// Tensors lie behind each other in slabs: huge pages of their own would waste half a page each. A slab lives as long as
// its last tensor.
class WeightSlabs {
 public:
  std::shared_ptr<char> allocate(size_t bytes) {
    bytes = checked_add(bytes, kAlignment - 1) / kAlignment * kAlignment;
    if (bytes > kSlab / 2) return map_weights(bytes);
    const std::lock_guard lock(mutex_);
    std::shared_ptr<char> slab = current_.lock();
    if (slab == nullptr || kSlab - used_ < bytes) {
      slab = map_weights(kSlab);
      current_ = slab;
      used_ = 0;
    }
    char* at = slab.get() + used_;
    used_ += bytes;
    return {std::move(slab), at};
  }

 private:
  static constexpr size_t kSlab = size_t{128} << 20;
  std::mutex mutex_;
  std::weak_ptr<char> current_;
  size_t used_ = 0;
};

}  // namespace

Tensor allocate_weights(DType dtype, Dims dims) {
  constexpr size_t kSmall = 16 << 10;
  static WeightSlabs slabs;  // one for the process
  const size_t bytes = checked_bytes(dtype, dims);
  if (bytes < kSmall) return Tensor(dtype, std::move(dims));
  // Kernels may read one whole vector that begins at the last element.
  const std::shared_ptr<char> memory = slabs.allocate(checked_add(bytes, kAlignment));
  return Tensor::view(dtype, std::move(dims), memory.get(), memory);
}

}  // namespace lathe
