#pragma once
// Elements between two pages without access: a kernel that reads or writes past either end faults.
#include <sys/mman.h>

#include <cstddef>
#include <cstring>

namespace lathe::testing {

class GuardedBytes {
 public:
  // Filled with 0xa5. The last byte ends at the page border.
  explicit GuardedBytes(size_t bytes) : bytes_(bytes) {
    const size_t page = 4096;
    mapped_ = (bytes + page - 1) / page * page + 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_, page, PROT_NONE);
    mprotect(memory_ + mapped_ - page, page, PROT_NONE);
    std::memset(data(), 0xa5, bytes);
  }
  ~GuardedBytes() { munmap(memory_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  void* data() const { return memory_ + mapped_ - 4096 - bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_, mapped_ = 0;
  char* memory_ = nullptr;
};

}  // namespace lathe::testing
