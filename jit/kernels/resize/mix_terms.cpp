#include "jit/kernels/resize/mix_terms.h"

#include <algorithm>

namespace lathe {

std::vector<int32_t> MixTerms::alike() const {
  const auto each = static_cast<size_t>(terms);
  std::vector<int32_t> alike(static_cast<size_t>(count()), 1);
  for (size_t i = alike.size(); i-- > 1;) {
    const auto at = places.begin() + static_cast<int64_t>(i * each);
    if (std::equal(at, at + terms, at - terms)) alike[i - 1] = alike[i] + 1;
  }
  return alike;
}

}  // namespace lathe
