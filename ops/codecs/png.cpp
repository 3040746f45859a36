#include <png.h>

#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

bool recognizes(ImageBytes bytes) { return begins_with(bytes, "\x89PNG\r\n\x1a\n"); }

std::optional<Image> decode(ImageBytes bytes) {
  png_image control{};
  control.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&control, bytes.data(), bytes.size()) == 0) return std::nullopt;
  std::optional<Image> image = blank_image(control.height, control.width);
  if (!image) {
    png_image_free(&control);
    return std::nullopt;
  }
  // With alpha: without it libpng would blend the picture with a background.
  control.format = PNG_FORMAT_RGBA;
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(control));
  if (png_image_finish_read(&control, nullptr, pixels.data(), 0, nullptr) == 0) return std::nullopt;
  for (size_t i = 0; i < image->pixels.size(); ++i) image->pixels[i] = pixels[i / 3 * 4 + i % 3];
  return image;
}

}  // namespace

ImageCodec png_codec() { return {"PNG", recognizes, decode}; }

}  // namespace lathe::codecs
