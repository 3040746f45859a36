#pragma once
// The image formats that ImageDecoder reads. Each is one file in this folder; those with a library of their own are
// built when that library is there (cmake/LatheImages.cmake).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lathe {

struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;  // red, green, blue; rows from the top
};

using ImageBytes = std::span<const uint8_t>;

struct ImageCodec {
  std::string_view name;
  bool (*recognizes)(ImageBytes bytes);
  // nullopt: malformed, larger than kMostPixels, or of a kind that the codec lacks. Never throws but for memory.
  std::optional<Image> (*decode)(ImageBytes bytes);
};

// All that this build has.
std::span<const ImageCodec> image_codecs();

// A few bytes can claim a picture of any size.
inline constexpr int64_t kMostPixels = int64_t{1} << 28;

// Room for the pixels; nullopt when an extent is not positive or there are too many.
inline std::optional<Image> blank_image(int64_t height, int64_t width) {
  if (height <= 0 || width <= 0 || height > kMostPixels / width) return std::nullopt;
  return Image{height, width, std::vector<uint8_t>(static_cast<size_t>(height * width) * 3)};
}

inline bool begins_with(ImageBytes bytes, std::string_view magic) {
  if (bytes.size() < magic.size()) return false;
  for (size_t i = 0; i < magic.size(); ++i)
    if (bytes[i] != static_cast<uint8_t>(magic[i])) return false;
  return true;
}

}  // namespace lathe
