#include <sys/mman.h>

#include "lathe/error.h"
#include "ops/lower.h"
#include "src/base/checked_size.h"

namespace lathe {

Tensor PackedWeights::get(const std::string& key, const std::function<Tensor()>& pack) {
  {
    std::lock_guard lock(mutex_);
    if (auto found = packed_.find(key); found != packed_.end()) return found->second;
  }
  Tensor made = pack();
  if (after_packing_) after_packing_(made.bytes());
  std::lock_guard lock(mutex_);
  return packed_.try_emplace(key, std::move(made)).first->second;  // the first to finish wins
}

size_t PackedWeights::bytes() const {
  std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& [key, tensor] : packed_) sum += tensor.bytes();
  return sum;
}

Tensor allocate_weights(DType dtype, Dims dims) {
  constexpr size_t kHugePage = size_t{2} << 20;
  size_t bytes = checked_bytes(dtype, dims);
  if (bytes < kHugePage / 2) return Tensor(dtype, std::move(dims));
  size_t mapped = checked_add(bytes, kHugePage) / kHugePage * kHugePage;
  // One huge page more than needed, so that the weights can begin on a huge page's border.
  void* memory = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw Error(ErrorCode::limit, "out of memory: " + std::to_string(bytes) + " bytes for packed weights");
  auto start = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) & ~(kHugePage - 1);
  madvise(reinterpret_cast<void*>(start), mapped, MADV_HUGEPAGE);
  std::shared_ptr<const void> owner(memory,
                                    [mapped](const void* p) { munmap(const_cast<void*>(p), mapped + kHugePage); });
  return Tensor::view(dtype, std::move(dims), reinterpret_cast<const void*>(start), std::move(owner));
}

}  // namespace lathe
