#pragma once
// Floats between two pages without access.
#include <random>

#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"

namespace lathe::testing {

class GuardedFloats {
 public:
  // Filled with NaN. The last element ends at the page border, or the first one begins there.
  explicit GuardedFloats(size_t count, bool begins_at_border = false)
      : count_(count),
        memory_(count * sizeof(float), 0xff, begins_at_border ? PageBorder::before : PageBorder::behind) {}

  void randomize(std::mt19937& random, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    for (size_t i = 0; i < count_; ++i) data()[i] = uniform(random);
  }
  float* data() const { return memory_.as<float>(); }
  float& operator[](size_t i) const { return data()[i]; }
  size_t size() const { return count_; }

 private:
  size_t count_;
  GuardedBytes memory_;
};

}  // namespace lathe::testing
