#include "src/runtime/shared_constants.h"

#include <algorithm>

#include "graph/node_key.h"

namespace lathe {
namespace {

constexpr int kMostAlike = 8;  // constants of one sample that are compared

}  // namespace

size_t SharedConstants::share(Graph& graph) {
  size_t added = 0;
  const std::lock_guard lock(mutex_);
  for (size_t v = 0; v < graph.value_count(); ++v) {
    Tensor& constant = graph.value(static_cast<ValueId>(v)).constant;
    if (!constant.defined() || constant.dtype() == DType::string || constant.owner() == nullptr) continue;
    if (constant.bytes() <= kComparedBytes) continue;
    std::string sample = sample_of(constant);
    if (Tensor known = find(sample, constant); known.defined()) {
      constant = std::move(known);
      continue;
    }
    by_sample_.emplace(std::move(sample), Known{constant.dtype(), constant.dims(), constant.raw(), constant.owner()});
    added += constant.bytes();
  }
  if (by_sample_.size() > most_) drop_stale();
  return added;
}

Tensor SharedConstants::find(const std::string& sample, const Tensor& constant) const {
  const auto [first, last] = by_sample_.equal_range(sample);
  int looked_at = 0;
  for (auto known = first; known != last && looked_at < kMostAlike; ++known, ++looked_at) {
    const auto& [dtype, dims, elements, weak_owner] = known->second;
    std::shared_ptr<const void> owner = weak_owner.lock();
    if (owner == nullptr) continue;
    Tensor other = Tensor::view(dtype, dims, elements, std::move(owner));
    if (are_equal(other, constant)) return other;
  }
  return {};
}

void SharedConstants::drop_stale() {
  std::erase_if(by_sample_, [](const auto& entry) { return entry.second.owner.expired(); });
  most_ = std::max(most_, 2 * by_sample_.size());
}

}  // namespace lathe
