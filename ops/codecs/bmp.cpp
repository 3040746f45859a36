// BMP: 24 and 32 bits a pixel, or up to 8 with a palette; not compressed.
//   file header   14 bytes: "BM", size, 0, offset of the pixels
//   info header   >= 40 bytes: own size, width, height (negative: rows from the top), planes, bits, compression, ...
//   palette       4 bytes a color: blue, green, red, 0
//   rows          each padded to 4 bytes
#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

constexpr size_t kFileHeader = 14, kInfoHeader = 40;

uint32_t number_at(ImageBytes bytes, size_t at, size_t count) {
  uint32_t number = 0;
  for (size_t i = 0; i < count; ++i) number |= static_cast<uint32_t>(bytes[at + i]) << (8 * i);
  return number;
}

struct Header {
  size_t pixels, palette, colors, row_bytes;
  uint32_t bits;
  int64_t width, height;
  bool is_top_down;
};

std::optional<Header> read_header(ImageBytes bytes) {
  if (bytes.size() < kFileHeader + kInfoHeader) return std::nullopt;
  Header header{};
  const size_t info_bytes = number_at(bytes, 14, 4);
  header.pixels = number_at(bytes, 10, 4);
  header.width = static_cast<int32_t>(number_at(bytes, 18, 4));
  const int64_t height = static_cast<int32_t>(number_at(bytes, 22, 4));
  header.is_top_down = height < 0;
  header.height = height < 0 ? -height : height;
  header.bits = number_at(bytes, 28, 2);
  header.palette = kFileHeader + info_bytes;
  const bool is_plain = number_at(bytes, 30, 4) == 0;
  const bool has_palette = header.bits == 1 || header.bits == 4 || header.bits == 8;
  if (info_bytes < kInfoHeader || !is_plain || (!has_palette && header.bits != 24 && header.bits != 32))
    return std::nullopt;
  if (header.width <= 0 || header.height <= 0 || header.width > kMostPixels / header.height) return std::nullopt;
  header.row_bytes = (static_cast<size_t>(header.width) * header.bits + 31) / 32 * 4;
  if (has_palette) {
    const size_t given = number_at(bytes, 46, 4);
    header.colors = given == 0 ? size_t{1} << header.bits : given;
    if (header.colors > 256 || header.palette + 4 * header.colors > bytes.size()) return std::nullopt;
  }
  const size_t needed = header.row_bytes * static_cast<size_t>(header.height);
  if (header.pixels > bytes.size() || bytes.size() - header.pixels < needed) return std::nullopt;
  return header;
}

bool recognizes(ImageBytes bytes) { return begins_with(bytes, "BM"); }

std::optional<Image> decode(ImageBytes bytes) {
  const std::optional<Header> header = read_header(bytes);
  if (!header) return std::nullopt;
  std::optional<Image> image = blank_image(header->height, header->width);
  if (!image) return std::nullopt;
  uint8_t* out = image->pixels.data();
  for (int64_t y = 0; y < header->height; ++y) {
    const int64_t stored = header->is_top_down ? y : header->height - 1 - y;
    const uint8_t* row = bytes.data() + header->pixels + static_cast<size_t>(stored) * header->row_bytes;
    for (size_t x = 0; x < static_cast<size_t>(header->width); ++x, out += 3) {
      const uint8_t* blue = row + x * header->bits / 8;
      if (header->bits <= 8) {
        const size_t bit = x * header->bits;
        const auto index =
            static_cast<size_t>(row[bit / 8] >> (8 - header->bits - bit % 8)) & ((1U << header->bits) - 1);
        if (index >= header->colors) return std::nullopt;
        blue = bytes.data() + header->palette + 4 * index;
      }
      out[0] = blue[2];
      out[1] = blue[1];
      out[2] = blue[0];
    }
  }
  return image;
}

}  // namespace

ImageCodec bmp_codec() { return {"BMP", recognizes, decode}; }

}  // namespace lathe::codecs
