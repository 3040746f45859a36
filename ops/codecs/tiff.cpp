#include <tiffio.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

// The file that libtiff sees: bytes in memory.
struct MemoryFile {
  ImageBytes bytes;
  size_t at = 0;
};

MemoryFile& file_of(thandle_t handle) { return *static_cast<MemoryFile*>(handle); }

tmsize_t read_file(thandle_t handle, void* buffer, tmsize_t size) {
  MemoryFile& file = file_of(handle);
  const size_t left = file.bytes.size() - std::min(file.at, file.bytes.size());
  const size_t count = std::min(left, static_cast<size_t>(std::max<tmsize_t>(size, 0)));
  if (count > 0) std::memcpy(buffer, file.bytes.data() + file.at, count);
  file.at += count;
  return static_cast<tmsize_t>(count);
}
tmsize_t refuse_write(thandle_t, void*, tmsize_t) { return 0; }
toff_t seek_file(thandle_t handle, toff_t offset, int whence) {
  MemoryFile& file = file_of(handle);
  file.at = whence == SEEK_CUR   ? file.at + offset
            : whence == SEEK_END ? file.bytes.size() + offset
                                 : static_cast<size_t>(offset);
  return file.at;
}
int close_file(thandle_t) { return 0; }
toff_t size_of_file(thandle_t handle) { return file_of(handle).bytes.size(); }

bool recognizes(ImageBytes bytes) {
  return begins_with(bytes, {"II*\0", 4}) || begins_with(bytes, {"MM\0*", 4}) || begins_with(bytes, {"II+\0", 4}) ||
         begins_with(bytes, {"MM\0+", 4});
}

std::optional<Image> decode(ImageBytes bytes) {
  // libtiff would print what it thinks of the file.
  TIFFSetErrorHandler(nullptr);
  TIFFSetWarningHandler(nullptr);
  MemoryFile file{bytes};
  const std::unique_ptr<TIFF, void (*)(TIFF*)> tiff(
      TIFFClientOpen("image", "rm", &file, read_file, refuse_write, seek_file, close_file, size_of_file, nullptr,
                     nullptr),
      TIFFClose);
  uint32_t width = 0, height = 0;
  if (!tiff || TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width) == 0 ||
      TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height) == 0) {
    return std::nullopt;
  }
  std::optional<Image> image = blank_image(height, width);
  if (!image) return std::nullopt;
  std::vector<uint32_t> pixels(image->pixels.size() / 3);
  if (TIFFReadRGBAImageOriented(tiff.get(), width, height, pixels.data(), ORIENTATION_TOPLEFT, 1) == 0)
    return std::nullopt;
  for (size_t i = 0; i < pixels.size(); ++i) {
    image->pixels[3 * i] = static_cast<uint8_t>(TIFFGetR(pixels[i]));
    image->pixels[3 * i + 1] = static_cast<uint8_t>(TIFFGetG(pixels[i]));
    image->pixels[3 * i + 2] = static_cast<uint8_t>(TIFFGetB(pixels[i]));
  }
  return image;
}

}  // namespace

ImageCodec tiff_codec() { return {"TIFF", recognizes, decode}; }

}  // namespace lathe::codecs
