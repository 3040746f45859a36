#include <openjpeg.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

constexpr std::string_view kBoxed{"\0\0\0\x0cjP  \r\n\x87\n", 12}, kBare{"\xff\x4f\xff\x51", 4};

bool recognizes(ImageBytes bytes) { return begins_with(bytes, kBoxed) || begins_with(bytes, kBare); }

// The stream that OpenJPEG reads: bytes in memory.
struct MemoryFile {
  ImageBytes bytes;
  size_t at = 0;
};

OPJ_SIZE_T read_file(void* buffer, OPJ_SIZE_T size, void* data) {
  auto& file = *static_cast<MemoryFile*>(data);
  const size_t count = std::min(size, file.bytes.size() - file.at);
  if (count == 0) return static_cast<OPJ_SIZE_T>(-1);
  std::memcpy(buffer, file.bytes.data() + file.at, count);
  file.at += count;
  return count;
}
OPJ_OFF_T skip_file(OPJ_OFF_T size, void* data) {
  auto& file = *static_cast<MemoryFile*>(data);
  if (size < 0) return -1;
  file.at = std::min(file.bytes.size(), file.at + static_cast<size_t>(size));
  return size;
}
OPJ_BOOL seek_file(OPJ_OFF_T to, void* data) {
  auto& file = *static_cast<MemoryFile*>(data);
  if (to < 0 || static_cast<size_t>(to) > file.bytes.size()) return OPJ_FALSE;
  file.at = static_cast<size_t>(to);
  return OPJ_TRUE;
}

using Stream = std::unique_ptr<opj_stream_t, void (*)(opj_stream_t*)>;
using Codec = std::unique_ptr<opj_codec_t, void (*)(opj_codec_t*)>;
using Picture = std::unique_ptr<opj_image_t, void (*)(opj_image_t*)>;

Stream open(MemoryFile& file) {
  Stream stream(opj_stream_default_create(OPJ_TRUE), opj_stream_destroy);
  opj_stream_set_user_data(stream.get(), &file, nullptr);
  opj_stream_set_user_data_length(stream.get(), file.bytes.size());
  opj_stream_set_read_function(stream.get(), read_file);
  opj_stream_set_skip_function(stream.get(), skip_file);
  opj_stream_set_seek_function(stream.get(), seek_file);
  return stream;
}

uint8_t to_byte(const opj_image_comp_t& component, size_t i) {
  const int64_t most = (int64_t{1} << component.prec) - 1;
  int64_t value = component.data[i];
  if (component.sgnd != 0) value += int64_t{1} << (component.prec - 1);
  value = std::clamp<int64_t>(value, 0, most);
  return static_cast<uint8_t>(component.prec == 8 ? value : (value * 255 + most / 2) / most);
}

// Gray, or red, green and blue of equal extents; what else there is (alpha) is left out.
std::optional<Image> pixels_of(const opj_image_t& picture) {
  if (picture.numcomps < 1 || picture.color_space == OPJ_CLRSPC_SYCC || picture.color_space == OPJ_CLRSPC_EYCC ||
      picture.color_space == OPJ_CLRSPC_CMYK) {
    return std::nullopt;
  }
  const opj_image_comp_t& first = picture.comps[0];
  const uint32_t used = picture.numcomps < 3 ? 1 : 3;
  for (uint32_t c = 0; c < used; ++c) {
    const opj_image_comp_t& component = picture.comps[c];
    if (component.w != first.w || component.h != first.h || component.prec < 1 || component.prec > 31 ||
        component.data == nullptr) {
      return std::nullopt;
    }
  }
  std::optional<Image> image = blank_image(first.h, first.w);
  if (!image) return std::nullopt;
  for (size_t i = 0; i < image->pixels.size(); ++i) {
    image->pixels[i] = to_byte(picture.comps[used == 1 ? 0 : i % 3], i / 3);
  }
  return image;
}

std::optional<Image> decode(ImageBytes bytes) {
  MemoryFile file{bytes};
  const Stream stream = open(file);
  const Codec codec(opj_create_decompress(begins_with(bytes, kBoxed) ? OPJ_CODEC_JP2 : OPJ_CODEC_J2K),
                    opj_destroy_codec);
  opj_dparameters_t parameters;
  opj_set_default_decoder_parameters(&parameters);
  if (!stream || !codec || opj_setup_decoder(codec.get(), &parameters) == OPJ_FALSE) return std::nullopt;
  opj_image_t* header = nullptr;
  const bool has_header = opj_read_header(stream.get(), codec.get(), &header) == OPJ_TRUE;
  const Picture picture(header, opj_image_destroy);
  if (!has_header || !picture) return std::nullopt;
  // Before anything as large as the picture is allocated.
  const int64_t width = int64_t{picture->x1} - picture->x0, height = int64_t{picture->y1} - picture->y0;
  if (width <= 0 || height <= 0 || height > kMostPixels / width) return std::nullopt;
  if (opj_decode(codec.get(), stream.get(), picture.get()) == OPJ_FALSE) return std::nullopt;
  return pixels_of(*picture);
}

}  // namespace

ImageCodec jpeg2000_codec() { return {"JPEG 2000", recognizes, decode}; }

}  // namespace lathe::codecs
