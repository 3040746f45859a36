#pragma once
// Floats between two pages without access: a kernel that reads or writes past either end faults.
#include <sys/mman.h>

#include <cmath>
#include <random>

#include "tests/isas_here.h"

namespace lathe::testing {

class GuardedFloats {
 public:
  // Filled with NaN. The last element ends at the page border, or the first one begins there.
  explicit GuardedFloats(size_t count, bool begins_at_border = false) : count_(count) {
    const size_t page = 4096, bytes = count * sizeof(float);
    mapped_ = (bytes + page - 1) / page * page + 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_, page, PROT_NONE);
    mprotect(memory_ + mapped_ - page, page, PROT_NONE);
    data_ = reinterpret_cast<float*>(begins_at_border ? memory_ + page : memory_ + mapped_ - page - bytes);
    for (size_t i = 0; i < count; ++i) data_[i] = std::nanf("");
  }
  ~GuardedFloats() { munmap(memory_, mapped_); }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;

  void randomize(std::mt19937& random, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    for (size_t i = 0; i < count_; ++i) data_[i] = uniform(random);
  }
  float* data() const { return data_; }
  float& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return count_; }

 private:
  size_t count_, mapped_ = 0;
  char* memory_ = nullptr;
  float* data_ = nullptr;
};

}  // namespace lathe::testing
