#pragma once
// Files mapped read-only, and the one resolver of ONNX external data. A model may only name regular files inside its
// own folder: no absolute path, no "..", no symbolic or hard link, no device, nothing outside the file's bounds.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lathe {

// The bytes of a file, and at least 64 readable bytes behind them (zeros).
class MappedFile {
 public:
  // `path` may be anything that the caller trusts. Throws Error(io) naming it; Error(limit) above `max_bytes`.
  static std::shared_ptr<const MappedFile> open(const std::string& path, size_t max_bytes);
  // Takes an open descriptor of a regular file; does not close it.
  static std::shared_ptr<const MappedFile> map(int descriptor, size_t size, const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const char> bytes() const { return {data_, size_}; }

  // Gives the memory back. The bytes stay readable: the next access reads the page again.
  void release_pages() const;

 private:
  MappedFile(const char* data, size_t size, size_t reserved) : data_(data), size_(size), reserved_(reserved) {}

  const char* data_;
  size_t size_;
  size_t reserved_;
};

// Where a tensor's bytes lie, as the model says. Offset and length are decimal text in the model; see parse_extent.
struct ExternalLocation {
  std::string location;
  size_t offset = 0;
  std::optional<size_t> length;  // absent: as many as the tensor needs
};

class ExternalData {
 public:
  // `directory`: the model's folder; empty: the model has none and external data is refused.
  explicit ExternalData(std::string directory) : directory_(std::move(directory)) {}

  struct View {
    std::span<const char> bytes;
    std::shared_ptr<const void> owner;
  };
  // Exactly `wanted` bytes. Throws Error(invalid_model) with what is wrong; the caller names the tensor.
  View resolve(const ExternalLocation& where, size_t wanted);

  // Every file that a tensor lies in.
  std::vector<std::shared_ptr<const MappedFile>> files() const;

 private:
  std::shared_ptr<const MappedFile> open_inside(const std::string& location) const;

  std::string directory_;
  std::map<std::string, std::shared_ptr<const MappedFile>> open_files_;
};

// A number of bytes in decimal digits and nothing else; nullopt otherwise or on overflow.
std::optional<size_t> parse_extent(const std::string& text);

}  // namespace lathe
