#include "jit/kernel.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "jit/code_listener.h"
#include "lathe/error.h"

namespace lathe {
namespace {

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The perf tool finds generated code in /tmp/perf-<pid>.map: one line "address size name" (hex) for each kernel.
void announce_to_perf(const void* code, size_t bytes, const std::string& name) {
  static const bool wanted = [] {
    const char* text = std::getenv("LATHE_PERF");
    return text && std::strcmp(text, "1") == 0;
  }();
  if (!wanted) return;
  const std::string path = fmt::format("/tmp/perf-{}.map", getpid());
  const std::string line = fmt::format("{:x} {:x} lathe:{}\n", reinterpret_cast<uintptr_t>(code), bytes, name);
  // O_NOFOLLOW: the name is predictable and /tmp is shared.
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  // One write of one line is atomic under O_APPEND; a lost line costs a name in a profile.
  [[maybe_unused]] const ssize_t written = write(file, line.data(), line.size());
  close(file);
}

using Pages = std::shared_ptr<const CodePages>;

struct CodeCache {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_future<Pages>> by_key;
  KernelCacheStats stats;
};

CodeCache& code_cache() {
  static CodeCache cache;
  return cache;
}

thread_local CodeListener* listener = nullptr;

}  // namespace

CodePages::CodePages(const void* code, size_t bytes, const std::string& name)
    : memory_(nullptr), bytes_(bytes), mapped_(round_up(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)))) {
  void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::limit,
                fmt::format("kernel '{}': cannot map {} bytes for code: {}", name, mapped_, std::strerror(errno)));
  }
  std::memcpy(memory, code, bytes);
  if (mprotect(memory, mapped_, PROT_READ | PROT_EXEC) != 0) {
    const int reason = errno;
    munmap(memory, mapped_);
    throw Error(ErrorCode::unsupported, fmt::format("kernel '{}': the system does not let memory become executable: {}",
                                                    name, std::strerror(reason)));
  }
  memory_ = memory;
  announce_to_perf(memory_, bytes_, name);
}

CodePages::~CodePages() { munmap(memory_, mapped_); }

void CodePages::fetch() const noexcept {
  constexpr size_t kLine = 64;  // cache line
  for (size_t at = 0; at < bytes_; at += kLine) __builtin_prefetch(static_cast<const char*>(memory_) + at, 0, 2);
}

Pages cached_code(const std::string& key, const std::function<Pages()>& emit) {
  CodeCache& cache = code_cache();
  if (listener != nullptr) listener->hear(key);
  std::promise<Pages> promise;
  {
    std::unique_lock lock(cache.mutex);
    if (const auto found = cache.by_key.find(key); found != cache.by_key.end()) {
      ++cache.stats.hits;
      const std::shared_future<Pages> code = found->second;
      lock.unlock();
      return code.get();  // another thread may still emit it
    }
    ++cache.stats.misses;
    cache.by_key.emplace(key, promise.get_future().share());
  }
  try {
    Pages pages = emit();
    promise.set_value(pages);
    const std::lock_guard lock(cache.mutex);
    ++cache.stats.kernels;
    cache.stats.bytes += pages->bytes();
    return pages;
  } catch (...) {
    {
      const std::lock_guard lock(cache.mutex);
      cache.by_key.erase(key);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

CodeListener::CodeListener() : outer_(std::exchange(listener, this)) {}

CodeListener::~CodeListener() { listener = outer_; }

void CodeListener::hear(const std::string& key) {
  if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) keys_.push_back(key);
}

KernelCacheStats kernel_cache_stats() {
  CodeCache& cache = code_cache();
  const std::lock_guard lock(cache.mutex);
  return cache.stats;
}

std::span<const std::byte> find_code(const std::string& key) {
  CodeCache& cache = code_cache();
  std::shared_future<Pages> code;
  {
    const std::lock_guard lock(cache.mutex);
    const auto found = cache.by_key.find(key);
    if (found == cache.by_key.end()) return {};
    code = found->second;
  }
  const Pages pages = code.get();  // stays in the cache, so the bytes outlive this copy
  return {static_cast<const std::byte*>(pages->entry()), pages->bytes()};
}

}  // namespace lathe
