#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace lathe {

// A plan that cannot be emitted (too few registers, a shape out of range). Lowering skips the candidate.
class JitError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Executable bytes, mapped writable while they are filled and executable afterwards, never both.
class CodePages {
 public:
  CodePages(const void* code, size_t bytes, const std::string& name);  // copies; announces `name` to perf on request
  ~CodePages();
  CodePages(const CodePages&) = delete;
  CodePages& operator=(const CodePages&) = delete;
  const void* entry() const { return memory_; }
  size_t bytes() const { return bytes_; }
  // Begins to bring the code into this core's caches, all lines at once: a run through code that other steps' weights
  // have driven out would wait for one line after the other.
  void fetch() const noexcept;

 private:
  void* memory_;
  size_t bytes_, mapped_;
};

// Machine code typed by its signature. Cheap to copy; the code lives as long as the last copy.
template <class Signature>
class Kernel {
 public:
  Kernel() = default;
  explicit Kernel(std::shared_ptr<const CodePages> pages) : pages_(std::move(pages)) {}
  explicit operator bool() const { return pages_ != nullptr; }
  Signature* entry() const { return reinterpret_cast<Signature*>(reinterpret_cast<uintptr_t>(pages_->entry())); }
  template <class... Args>
  auto operator()(Args... args) const {
    return entry()(args...);
  }
  const std::shared_ptr<const CodePages>& pages() const { return pages_; }

 private:
  std::shared_ptr<const CodePages> pages_;
};

// Several functions of one signature in one piece of code, numbered in the order of Emitter::begin_entry(). Where they
// are stands in the code's last words, so that cached code can be used without its emitter.
template <class Signature>
class KernelSet {
 public:
  KernelSet() = default;
  KernelSet(std::shared_ptr<const CodePages> pages, size_t count) : pages_(std::move(pages)) {
    const auto* code = static_cast<const std::byte*>(pages_->entry());
    const auto* offsets = reinterpret_cast<const uint32_t*>(code + pages_->bytes()) - count;
    for (size_t i = 0; i < count; ++i) {
      entries_.push_back(reinterpret_cast<Signature*>(reinterpret_cast<uintptr_t>(code + offsets[i])));
    }
  }
  explicit operator bool() const { return pages_ != nullptr; }
  Signature* entry(int i) const { return entries_[static_cast<size_t>(i)]; }

 private:
  std::shared_ptr<const CodePages> pages_;
  std::vector<Signature*> entries_;
};

// One cache of machine code per process. `key` is the plan's text with its family and ISA. Emits outside the lock.
std::shared_ptr<const CodePages> cached_code(const std::string& key,
                                             const std::function<std::shared_ptr<const CodePages>()>& emit);
struct KernelCacheStats {
  size_t kernels = 0, bytes = 0, hits = 0, misses = 0;
};
KernelCacheStats kernel_cache_stats();
// Code by key, for `lathe inspect --asm`; empty when it is not there.
std::span<const std::byte> find_code(const std::string& key);

}  // namespace lathe
