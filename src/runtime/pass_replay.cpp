#include "src/runtime/pass_replay.h"

namespace lathe {

std::optional<PassReplay::Scripts> PassReplay::scripts() {
  // Lengths that are far from those that were seen may want other passes.
  constexpr int kMostReplays = 64;
  const std::lock_guard lock(mutex_);
  if (!is_confirmed_ || ++replayed_ > kMostReplays) return std::nullopt;
  return last_;
}

void PassReplay::tell(Scripts scripts) {
  const std::lock_guard lock(mutex_);
  is_confirmed_ = last_ == scripts;
  last_ = std::move(scripts);
  replayed_ = 0;
}

void PassReplay::forget() {
  const std::lock_guard lock(mutex_);
  last_.reset();
  is_confirmed_ = false;
}

}  // namespace lathe
