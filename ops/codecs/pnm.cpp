// Portable images: P1 to P6. A header of numbers between white space and comments, then elements as text or bytes.
#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

class Reader {
 public:
  explicit Reader(ImageBytes bytes) : bytes_(bytes) {}

  std::optional<int64_t> number() {
    skip_space();
    int64_t number = 0;
    const size_t begin = at_;
    for (; at_ < bytes_.size() && bytes_[at_] >= '0' && bytes_[at_] <= '9'; ++at_) {
      number = number * 10 + (bytes_[at_] - '0');
      if (number > kMostPixels) return std::nullopt;
    }
    return at_ == begin ? std::nullopt : std::optional(number);
  }
  std::optional<int64_t> bit() {  // bits may stand side by side
    skip_space();
    if (at_ == bytes_.size() || bytes_[at_] < '0' || bytes_[at_] > '1') return std::nullopt;
    return bytes_[at_++] - '0';
  }
  std::optional<int64_t> big_endian(size_t count) {
    if (bytes_.size() - at_ < count) return std::nullopt;
    int64_t number = 0;
    for (size_t i = 0; i < count; ++i) number = number << 8 | bytes_[at_++];
    return number;
  }
  void skip(size_t count) { at_ = std::min(bytes_.size(), at_ + count); }
  size_t left() const { return bytes_.size() - at_; }

 private:
  static bool is_space(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }
  void skip_space() {
    while (at_ < bytes_.size() && (is_space(bytes_[at_]) || bytes_[at_] == '#')) {
      if (bytes_[at_] == '#')
        while (at_ < bytes_.size() && bytes_[at_] != '\n') ++at_;
      else
        ++at_;
    }
  }
  ImageBytes bytes_;
  size_t at_ = 0;
};

bool recognizes(ImageBytes bytes) {
  return bytes.size() > 2 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '6' &&
         (bytes[2] == '#' || bytes[2] == ' ' || (bytes[2] >= '\t' && bytes[2] <= '\r'));
}

// P4: eight pixels a byte, rows end with a byte; 1 is black.
bool read_packed_bits(Reader& reader, Image& image) {
  uint8_t* out = image.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    int64_t byte = 0;
    for (int64_t x = 0; x < image.width; ++x, out += 3) {
      if (x % 8 == 0) {
        const auto next = reader.big_endian(1);
        if (!next) return false;
        byte = *next;
      }
      const auto value = static_cast<uint8_t>((byte >> (7 - x % 8) & 1) != 0 ? 0 : 255);
      out[0] = out[1] = out[2] = value;
    }
  }
  return true;
}

std::optional<Image> decode(ImageBytes bytes) {
  const int kind = bytes[1] - '0';
  const bool is_bits = kind == 1 || kind == 4, is_color = kind == 3 || kind == 6, is_text = kind <= 3;
  Reader reader(bytes);
  reader.skip(2);
  const auto width = reader.number(), height = reader.number();
  const auto most = is_bits ? std::optional<int64_t>(1) : reader.number();
  if (!width || !height || !most || *most < 1 || *most > 65535) return std::nullopt;
  if (!is_text) reader.skip(1);
  // The least that the elements take: a bit each.
  if (*height > 0 && *width / 8 > static_cast<int64_t>(reader.left()) / *height) return std::nullopt;
  std::optional<Image> image = blank_image(*height, *width);
  if (!image) return std::nullopt;
  if (kind == 4) return read_packed_bits(reader, *image) ? image : std::nullopt;
  for (size_t i = 0; i < image->pixels.size();) {
    const auto element = kind == 1 ? reader.bit() : is_text ? reader.number() : reader.big_endian(*most > 255 ? 2 : 1);
    if (!element || *element > *most) return std::nullopt;
    const auto value = static_cast<uint8_t>(kind == 1 ? (1 - *element) * 255 : (*element * 255 + *most / 2) / *most);
    for (int copies = is_color ? 1 : 3; copies > 0; --copies) image->pixels[i++] = value;
  }
  return image;
}

}  // namespace

ImageCodec pnm_codec() { return {"PNM", recognizes, decode}; }

}  // namespace lathe::codecs
