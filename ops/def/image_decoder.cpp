// ImageDecoder: an encoded picture to a tensor [height, width, channels]. What cannot be decoded gives an empty one, as
// ONNX asks.
#include <algorithm>

#include "ops/codecs/image_codec.h"
#include "ops/copy/copy_elements.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

enum class PixelFormat { rgb, bgr, gray };

template <class Context>
PixelFormat pixel_format(const Context& context) {
  const std::string name = context.node.attributes.get_string("pixel_format", "RGB");
  if (name == "RGB") return PixelFormat::rgb;
  if (name == "BGR") return PixelFormat::bgr;
  if (name != "Grayscale") context.fail("attribute pixel_format is '" + name + "'");
  return PixelFormat::gray;
}

void infer(InferContext& context) {
  const int64_t channels = pixel_format(context) == PixelFormat::gray ? 1 : 3;
  if (context.input(0).dtype != DType::u8)
    context.fail("input 0 is " + to_string(context.input(0)) + ", expected bytes");
  context.set_output(0, {DType::u8, true, {{}, {}, {channels, ""}}, {}});
}

Image decoded(ImageBytes bytes) {
  for (const ImageCodec& codec : image_codecs()) {
    if (!codec.recognizes(bytes)) continue;
    if (std::optional<Image> image = codec.decode(bytes)) return *std::move(image);
  }
  return {};
}

// ITU-R 601-2 in 16 bits of fraction.
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16);
}

void run(ReferenceContext& context) {
  const PixelFormat format = pixel_format(context);
  const Image image = decoded(context.inputs[0].elements<uint8_t>());
  const int64_t channels = format == PixelFormat::gray ? 1 : 3;
  Tensor result = make_output(context, DType::u8, {image.height, image.width, channels});
  auto* out = result.mutable_data<uint8_t>();
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    const uint8_t* rgb = image.pixels.data() + i;
    if (format == PixelFormat::gray) {
      out[i / 3] = luma(rgb);
      continue;
    }
    const bool is_reversed = format == PixelFormat::bgr;
    for (size_t c = 0; c < 3; ++c) out[i + c] = rgb[is_reversed ? 2 - c : c];
  }
  context.outputs[0] = std::move(result);
}

}  // namespace

std::vector<OpDef> image_decoder_ops() {
  return {{.schema = {.name = "ImageDecoder",
                      .since = 20,
                      .attributes = {{"pixel_format", AttributeSpec::Kind::string}},
                      .infer = infer,
                      .reference = run}}};
}

}  // namespace lathe::ops
