#include "graph/onnx/external_data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr size_t kReadableBehind = 64;  // what Tensor promises of its own memory too

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  int get() const { return value_; }
  bool is_open() const { return value_ >= 0; }

 private:
  int value_;
};

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

// O_NONBLOCK: opening a FIFO must not wait for a writer.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;

std::vector<std::string> split_path(const std::string& location) {
  const std::string shown = "external data " + in_quotes(location);
  if (location.empty()) reject("external data without a location");
  if (location.find('\0') != std::string::npos) reject(shown + ": the location has a NUL byte");
  if (location.find('\\') != std::string::npos) reject(shown + ": the location has a backslash");
  if (location.front() == '/') reject(shown + ": the location is an absolute path");
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= location.size()) {
    const size_t end = std::min(location.find('/', begin), location.size());
    std::string part = location.substr(begin, end - begin);
    if (part == "..") reject(shown + ": the location leaves the model's folder");
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    begin = end + 1;
  }
  if (parts.empty()) reject(shown + ": the location names no file");
  return parts;
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, size_t max_bytes) {
  const Descriptor file(::open(path.c_str(), kOpenFlags));
  if (!file.is_open()) throw Error(ErrorCode::io, in_quotes(path) + ": cannot open: " + std::strerror(errno));
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) {
    throw Error(ErrorCode::io, in_quotes(path) + ": cannot read: " + std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::io, in_quotes(path) + ": not a regular file");
  const size_t size = static_cast<size_t>(status.st_size);
  if (size > max_bytes) {
    throw Error(ErrorCode::limit, in_quotes(path) + ": has " + std::to_string(size) + " bytes, the limit is " +
                                      std::to_string(max_bytes));
  }
  return map(file.get(), size, path);
}

std::shared_ptr<const MappedFile> MappedFile::map(int descriptor, size_t size, const std::string& path) {
  // The file lies over the front of a larger reservation of zero pages, so that a vector load at its end may run past.
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t reserved = (size + kReadableBehind + page - 1) / page * page;
  void* base = ::mmap(nullptr, reserved, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw Error(ErrorCode::limit, in_quotes(path) + ": cannot map: " + std::strerror(errno));
  if (size != 0 && ::mmap(base, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, descriptor, 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(base, reserved);
    throw Error(ErrorCode::io, in_quotes(path) + ": cannot map: " + std::strerror(error));
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const char*>(base), size, reserved));
}

void MappedFile::release_pages() const { ::madvise(const_cast<char*>(data_), reserved_, MADV_DONTNEED); }

MappedFile::~MappedFile() { ::munmap(const_cast<char*>(data_), reserved_); }

std::shared_ptr<const MappedFile> ExternalData::open_inside(const std::string& location) const {
  const std::string shown = "external data " + in_quotes(location);
  if (directory_.empty()) reject(shown + ": the model was not loaded from a folder");
  const std::vector<std::string> parts = split_path(location);
  // Step by step below the model's folder and never through a link: nothing can be exchanged between check and use.
  Descriptor at(::open(directory_.c_str(), kOpenFlags | O_DIRECTORY));
  for (size_t i = 0; at.is_open() && i < parts.size(); ++i) {
    const int flags = kOpenFlags | O_NOFOLLOW | (i + 1 < parts.size() ? O_DIRECTORY : 0);
    at = Descriptor(::openat(at.get(), parts[i].c_str(), flags));
  }
  if (!at.is_open()) {
    const bool is_link = errno == ELOOP;
    reject(shown + ": " + (is_link ? "links are not followed" : std::string("cannot open: ") + std::strerror(errno)));
  }
  struct stat status = {};
  if (::fstat(at.get(), &status) != 0) reject(shown + ": cannot read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) reject(shown + ": not a regular file");
  // A hard link can bring a file of another folder in here (CVE-2026-34446).
  if (status.st_nlink > 1) reject(shown + ": the file has more than one hard link");
  return MappedFile::map(at.get(), static_cast<size_t>(status.st_size), location);
}

ExternalData::View ExternalData::resolve(const ExternalLocation& where, size_t wanted) {
  std::shared_ptr<const MappedFile>& file = open_files_[where.location];
  if (file == nullptr) file = open_inside(where.location);
  const std::string shown = "external data " + in_quotes(where.location);
  if (where.length && *where.length != wanted) {
    reject(shown + ": has a length of " + std::to_string(*where.length) + " bytes, the tensor needs " +
           std::to_string(wanted));
  }
  const std::span<const char> bytes = file->bytes();
  if (where.offset > bytes.size() || wanted > bytes.size() - where.offset) {
    reject(shown + ": " + std::to_string(wanted) + " bytes at offset " + std::to_string(where.offset) +
           " exceed the file's " + std::to_string(bytes.size()));
  }
  return {bytes.subspan(where.offset, wanted), file};
}

std::vector<std::shared_ptr<const MappedFile>> ExternalData::files() const {
  std::vector<std::shared_ptr<const MappedFile>> files;
  for (const auto& [location, file] : open_files_)
    if (file != nullptr) files.push_back(file);
  return files;
}

std::optional<size_t> parse_extent(const std::string& text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_digits = text.find_first_not_of("0123456789") == std::string::npos;
  if (error != std::errc() || end != text.data() + text.size() || !is_digits) return std::nullopt;
  return value;
}

}  // namespace lathe
