#include <webp/decode.h>

#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

bool recognizes(ImageBytes bytes) {
  return begins_with(bytes, "RIFF") && bytes.size() >= 12 && begins_with(bytes.subspan(8), "WEBP");
}

std::optional<Image> decode(ImageBytes bytes) {
  int width = 0, height = 0;
  if (WebPGetInfo(bytes.data(), bytes.size(), &width, &height) == 0) return std::nullopt;
  std::optional<Image> image = blank_image(height, width);
  if (!image) return std::nullopt;
  const uint8_t* decoded =
      WebPDecodeRGBInto(bytes.data(), bytes.size(), image->pixels.data(), image->pixels.size(), width * 3);
  return decoded != nullptr ? std::move(image) : std::nullopt;
}

}  // namespace

ImageCodec webp_codec() { return {"WebP", recognizes, decode}; }

}  // namespace lathe::codecs
