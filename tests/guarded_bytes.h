#pragma once
// Bytes between two pages without access: code that reads or writes past either end faults.
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace lathe::testing {

// Which end of the bytes is a page border. The other end is followed by what is left of a page, which may be touched:
// is_untouched_outside() tells.
enum class PageBorder { behind, before };

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes, unsigned char fill = 0xa5, PageBorder border = PageBorder::behind)
      : bytes_(bytes), fill_(fill) {
    constexpr size_t kPage = 4096;
    mapped_ = (bytes + kPage - 1) / kPage * kPage + 2 * kPage;
    void* mapped = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory_ = static_cast<unsigned char*>(mapped);
    first_ = memory_ + kPage;
    end_ = memory_ + mapped_ - kPage;
    std::memset(first_, fill, static_cast<size_t>(end_ - first_));
    mprotect(memory_, kPage, PROT_NONE);
    mprotect(end_, kPage, PROT_NONE);
    data_ = border == PageBorder::before ? first_ : end_ - bytes;
  }
  ~GuardedBytes() { munmap(memory_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t size() const { return bytes_; }
  bool is_untouched_outside() const {
    const auto is_filled = [&](unsigned char byte) { return byte == fill_; };
    return std::all_of(first_, data_, is_filled) && std::all_of(data_ + bytes_, end_, is_filled);
  }

 private:
  size_t bytes_, mapped_ = 0;
  unsigned char fill_;
  unsigned char *memory_ = nullptr, *first_ = nullptr, *end_ = nullptr, *data_ = nullptr;
};

}  // namespace lathe::testing
