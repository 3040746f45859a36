#include <cstdio>
// After <cstdio>, which jpeglib.h needs and does not include.
#include <jpeglib.h>

#include <csetjmp>

#include "ops/codecs/image_codec.h"

namespace lathe::codecs {
namespace {

// libjpeg reports an error by a call that must not return.
struct ErrorExit {
  jpeg_error_mgr manager;
  std::jmp_buf target;
};

void leave(j_common_ptr state) { std::longjmp(reinterpret_cast<ErrorExit*>(state->err)->target, 1); }
void keep_silent(j_common_ptr) {}
void keep_silent_at(j_common_ptr, int) {}

bool recognizes(ImageBytes bytes) { return begins_with(bytes, "\xff\xd8\xff"); }

// Leaves by longjmp: nothing with a destructor may live here.
bool decode_into(jpeg_decompress_struct& state, ErrorExit& exit, ImageBytes bytes, std::optional<Image>& image) {
  if (setjmp(exit.target) != 0) return false;
  jpeg_mem_src(&state, bytes.data(), bytes.size());
  jpeg_read_header(&state, TRUE);
  state.out_color_space = JCS_RGB;
  image = blank_image(state.image_height, state.image_width);
  if (!image) return false;
  jpeg_start_decompress(&state);
  while (state.output_scanline < state.output_height) {
    JSAMPROW row = image->pixels.data() + static_cast<size_t>(state.output_scanline) * state.output_width * 3;
    jpeg_read_scanlines(&state, &row, 1);
  }
  jpeg_finish_decompress(&state);
  return true;
}

std::optional<Image> decode(ImageBytes bytes) {
  ErrorExit exit{};
  jpeg_decompress_struct state{};
  state.err = jpeg_std_error(&exit.manager);
  exit.manager.error_exit = leave;
  exit.manager.output_message = keep_silent;
  exit.manager.emit_message = keep_silent_at;
  std::optional<Image> image;
  jpeg_create_decompress(&state);
  const bool is_good = decode_into(state, exit, bytes, image);
  jpeg_destroy_decompress(&state);
  return is_good ? std::move(image) : std::nullopt;
}

}  // namespace

ImageCodec jpeg_codec() { return {"JPEG", recognizes, decode}; }

}  // namespace lathe::codecs
