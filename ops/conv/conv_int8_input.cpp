#include "ops/conv/conv_int8_input.h"

#include <tmmintrin.h>

#include <algorithm>
#include <cstring>

#include "ops/gemm/gemm_plan.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

template <class Byte>
void widen(const Byte* in, int64_t count, int64_t in_step, int16_t zero, int16_t* out, int64_t out_step) noexcept {
  for (int64_t i = 0; i < count; ++i) out[i * out_step] = static_cast<int16_t>(in[i * in_step] - zero);
}

// out[i] = (in[i] ^ flip) - less
void move_bytes(const uint8_t* in, int64_t count, uint8_t flip, uint8_t less, uint8_t* out) noexcept {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip)), all_less = _mm_set1_epi8(static_cast<char>(less));
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm_sub_epi8(_mm_xor_si128(bytes, flips), all_less));
  }
  for (; i < count; ++i) out[i] = static_cast<uint8_t>((in[i] ^ flip) - less);
}

// Sixteen pixels of three planes, with a zero in place of a fourth: four to a vector.
struct Quads {
  __m128i of[4];
};
Quads quads_of(const uint8_t* row, int64_t plane, uint8_t flip) noexcept {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip)), zero = _mm_setzero_si128();
  const auto load = [&](int64_t c) {
    return _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row + c * plane)), flips);
  };
  const __m128i red = load(0), green = load(1), blue = load(2);
  const __m128i low = _mm_unpacklo_epi8(red, green), high = _mm_unpackhi_epi8(red, green);
  const __m128i blue_low = _mm_unpacklo_epi8(blue, zero), blue_high = _mm_unpackhi_epi8(blue, zero);
  return {{_mm_unpacklo_epi16(low, blue_low), _mm_unpackhi_epi16(low, blue_low), _mm_unpacklo_epi16(high, blue_high),
           _mm_unpackhi_epi16(high, blue_high)}};
}

void interleave16(const uint8_t* row, int64_t plane, uint8_t flip, uint8_t* out) noexcept {
  const Quads pixels = quads_of(row, plane, flip);
  for (const __m128i& four : pixels.of) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), four);
    out += 16;
  }
}

// The same without the fourth: 48 bytes.
[[gnu::target("ssse3")]] void interleave_triples(const uint8_t* row, int64_t plane, uint8_t flip,
                                                 uint8_t* out) noexcept {
  const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  Quads pixels = quads_of(row, plane, flip);
  for (__m128i& four : pixels.of) four = _mm_shuffle_epi8(four, order);
  const auto& twelve = pixels.of;
  auto* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_or_si128(twelve[0], _mm_slli_si128(twelve[1], 12)));
  _mm_storeu_si128(to + 1, _mm_or_si128(_mm_srli_si128(twelve[1], 4), _mm_slli_si128(twelve[2], 8)));
  _mm_storeu_si128(to + 2, _mm_or_si128(_mm_srli_si128(twelve[2], 8), _mm_slli_si128(twelve[3], 4)));
}

// Four pixels of four bytes, three of each stored, less `subtracted` in 16 bits: 24 bytes, and 2 more that the next
// pixel overwrites.
void store_wide_triples(__m128i pixels, __m128i subtracted, uint8_t* out) noexcept {
  const __m128i zero = _mm_setzero_si128();
  const __m128i two[2] = {_mm_sub_epi16(_mm_unpacklo_epi8(pixels, zero), subtracted),
                          _mm_sub_epi16(_mm_unpackhi_epi8(pixels, zero), subtracted)};
  for (int i = 0; i < 2; ++i) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 12 * i), two[i]);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 12 * i + 6), _mm_unpackhi_epi64(two[i], two[i]));
  }
}

}  // namespace

bool ConvInt8Input::flatten(const ConvNode& conv, Int8Dot dot) {
  const size_t x = conv.window.axes() - 1;
  const int64_t kernel = conv.window.kernel[x], group = group_of(dot), step = conv.window.strides[x] * channels;
  const bool is_less = divide_up(kernel * channels, group) < kernel * divide_up(channels, group);
  if (!is_plain || !is_less || conv.sizes.groups > 1 || conv.window.dilations[x] != 1 ||
      step * element_bytes() % 2 != 0)
    return false;
  if (conv.window.pads_begin[x] < 0 || conv.window.pads_end[x] < 0) return false;
  pixel_bytes = channels * element_bytes();
  if (out_cols == cols && out_rows == rows) add_border(conv.window);
  unit_bytes = step * element_bytes() % 4 == 0 ? 4 : 2;
  return true;
}

ConvNode ConvInt8Input::flat_conv(const ConvNode& conv, Int8Dot dot) const {
  ConvNode flat = conv;
  const size_t x = conv.window.axes() - 1;
  flat.sizes.in_channels = group_of(dot);
  flat.sizes.in[x] = row_bytes() / unit_bytes;
  flat.window.kernel[x] = divide_up(conv.window.kernel[x] * channels, group_of(dot));
  flat.window.strides[x] = conv.window.strides[x] * pixel_bytes / unit_bytes;
  flat.window.dilations[x] = 4 / unit_bytes;
  flat.window.pads_begin[x] = flat.window.pads_end[x] = 0;
  return flat;
}

Tensor ConvInt8Input::flat_weights(const Tensor& weights, Int8Dot dot) const {
  const Dims& dims = weights.dims();
  const int64_t kernel = dims.back(), group = group_of(dot), columns = divide_up(kernel * channels, group);
  const int64_t rows_in_window = weights.size() / (dims[0] * channels * kernel);
  Tensor flat(weights.dtype(), {dims[0], group, rows_in_window, columns});
  const auto* from = static_cast<const uint8_t*>(weights.raw());
  auto* to = static_cast<uint8_t*>(flat.mutable_raw());
  std::memset(to, 0, flat.bytes());
  for (int64_t out = 0; out < dims[0]; ++out) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t y = 0; y < rows_in_window; ++y) {
        for (int64_t i = 0; i < kernel; ++i, ++from) {
          const int64_t place = i * channels + c;
          to[((out * group + place % group) * rows_in_window + y) * columns + place / group] = *from;
        }
      }
    }
  }
  return flat;
}

ConvInt8Input::ConvInt8Input(const TensorType& type, const ConvNode& conv, Int8Dot dot,
                             std::optional<int32_t> zero_point, int block) {
  const size_t x = conv.window.axes() - 1;
  is_plain = type.layout.channel_block == 0;
  widens = is_wide(dot);
  is_signed = type.dtype == DType::i8;
  zero = zero_point.value_or(0);
  channels = conv.sizes.in_channels;
  lanes = block;
  planes = conv.sizes.batch * (is_plain ? 1 : divide_up(channels, lanes));
  rows = out_rows = x == 1 ? conv.sizes.in[0] : 1;
  cols = out_cols = conv.sizes.in[x];
  const int64_t group = group_of(dot);
  pixel_bytes = is_plain ? divide_up(channels, group) * 4 : lanes * (widens ? 2 : 1);
  is_needed = is_plain || widens || is_signed;
  // Zeros need no border: the kernels leave out what lies beyond. Groups have few products beside which outputs can be
  // finished, and that only where all tiles are alike.
  constexpr int64_t kMostShallow = 64;
  const bool is_shallow = conv.sizes.groups > 1 && channels / conv.sizes.groups <= kMostShallow;
  const bool needs_border = widens ? dot == Int8Dot::crossed : zero_point != 0 || is_signed || is_shallow;
  if (needs_border) add_border(conv.window);
}

void ConvInt8Input::move_down(int32_t by) {
  moved_down = by;
  is_needed = true;
}

void ConvInt8Input::add_border(const Window& window) {
  const size_t x = window.axes() - 1;
  const auto border = [](int64_t pad) { return std::max<int64_t>(0, pad); };
  left = border(window.pads_begin[x]);
  out_cols += left + border(window.pads_end[x]);
  if (x == 1) {
    top = border(window.pads_begin[0]);
    out_rows += top + border(window.pads_end[0]);
  }
  is_needed = is_needed || out_cols != cols || out_rows != rows;
}

void ConvInt8Input::interleave_flat(const uint8_t* row, uint8_t* out) const noexcept {
  const int64_t plane = rows * cols;
  int64_t first = 0;
  if (channels == 3 && !widens) {
    for (; first + 16 <= cols; first += 16) interleave_triples(row + first, plane, flip(), out + first * pixel_bytes);
  }
  // At least one pixel follows, to overwrite what is stored too much.
  for (; channels == 3 && widens && !is_signed && first + 16 < cols; first += 16) {
    uint8_t* to = out + first * pixel_bytes;
    const Quads pixels = quads_of(row + first, plane, flip());
    for (const __m128i& four : pixels.of) {
      store_wide_triples(four, _mm_set1_epi16(static_cast<int16_t>(zero)), to);
      to += 4 * pixel_bytes;
    }
  }
  for (int64_t i = first; i < cols; ++i) {
    for (int64_t c = 0; c < channels; ++c) {
      const uint8_t byte = row[c * plane + i];
      const auto wide = static_cast<int16_t>((is_signed ? static_cast<int8_t>(byte) : byte) - zero);
      uint8_t* to = out + i * pixel_bytes + c * element_bytes();
      widens ? static_cast<void>(std::memcpy(to, &wide, 2))
             : static_cast<void>(*to = static_cast<uint8_t>(byte ^ flip()));
    }
  }
}

// The channels of one row of a plain picture, side by side.
void ConvInt8Input::interleave(const uint8_t* row, uint8_t* out) const noexcept {
  const int64_t plane = rows * cols;
  if (widens) {
    const int64_t step = pixel_bytes / 2;
    auto* wide = reinterpret_cast<int16_t*>(out);
    const auto subtracted = static_cast<int16_t>(zero);
    for (int64_t c = 0; c < channels; ++c) {
      is_signed ? widen(reinterpret_cast<const int8_t*>(row) + c * plane, cols, 1, subtracted, wide + c, step)
                : widen(row + c * plane, cols, 1, subtracted, wide + c, step);
    }
    for (int64_t c = channels; c < step; ++c) {
      for (int64_t i = 0; i < cols; ++i) wide[i * step + c] = 0;
    }
    return;
  }
  int64_t first = 0;
  if (channels == 3) {
    for (; first + 16 <= cols; first += 16) interleave16(row + first, plane, flip(), out + first * 4);
  }
  for (int64_t i = first; i < cols; ++i) {
    for (int64_t c = 0; c < pixel_bytes; ++c) {
      out[i * pixel_bytes + c] = c < channels ? static_cast<uint8_t>(row[c * plane + i] ^ flip()) : uint8_t{0};
    }
  }
}

void ConvInt8Input::fill_row(const void* from, void* to, int64_t item) const noexcept {
  const int64_t plane = item / out_rows, row = item % out_rows - top;
  auto* out = static_cast<uint8_t*>(to) + item * row_bytes();
  const auto border = widens ? uint8_t{0} : stored(static_cast<uint8_t>(zero));
  if (row < 0 || row >= rows) {
    std::memset(out, border, static_cast<size_t>(row_bytes()));
    return;
  }
  const int64_t before = left * pixel_bytes, inner = cols * pixel_bytes;
  std::memset(out, border, static_cast<size_t>(before));
  std::memset(out + before + inner, border, static_cast<size_t>(row_bytes() - before - inner));
  const auto* bytes = static_cast<const uint8_t*>(from);
  if (unit_bytes != 0) return interleave_flat(bytes + (plane * channels * rows + row) * cols, out + before);
  if (is_plain) return interleave(bytes + (plane * channels * rows + row) * cols, out + before);
  const uint8_t* in = bytes + (plane * rows + row) * cols * lanes;
  flip() == 0 && moved_down == 0 ? static_cast<void>(std::memcpy(out + before, in, static_cast<size_t>(cols * lanes)))
                                 : move_bytes(in, cols * lanes, flip(), static_cast<uint8_t>(moved_down), out + before);
}

// Blocks without a border.
void ConvInt8Input::widen_all(const void* from, void* to, const StepArgs& args) const noexcept {
  const Range range = split_evenly(planes * rows * cols, args.share, args.shares);
  const int64_t first = range.begin * lanes, count = (range.end - range.begin) * lanes;
  auto* wide = static_cast<int16_t*>(to) + first;
  const auto subtracted = static_cast<int16_t>(zero);
  is_signed ? widen(static_cast<const int8_t*>(from) + first, count, 1, subtracted, wide, 1)
            : widen(static_cast<const uint8_t*>(from) + first, count, 1, subtracted, wide, 1);
}

BufferId ConvInt8Input::add_step(const LowerContext& context, BufferId from, BufferId zero_buffer) const {
  if (!is_needed) return from;
  // The last group may reach beyond the last row.
  const BufferId to = context.scratch(checked_bytes(DType::u8, {planes, out_rows, row_bytes()}) + 4);
  Step step;
  step.kernel = is_plain ? "interleave channels" : widens ? "widen channels" : "pad channels";
  step.reads = {from};
  if (zero_buffer != BufferId::none) step.reads.push_back(zero_buffer);
  step.writes = {to};
  step.bytes = 2.0 * static_cast<double>(planes * out_rows * row_bytes());
  step.threads = worthwhile_threads(step.bytes * 5, context.target.threads);
  step.run = [prepared = *this, from, to, zero_buffer](const StepArgs& args) {
    ConvInt8Input input = prepared;
    if (zero_buffer != BufferId::none) input.zero = input.zero_at(args.at<const void>(zero_buffer));
    if (input.widens && !input.is_plain) return input.widen_all(args.at<void>(from), args.at<void>(to), args);
    const Range range = split_evenly(input.planes * input.out_rows, args.share, args.shares);
    for (int64_t item = range.begin; item < range.end; ++item) {
      input.fill_row(args.at<const void>(from), args.at<void>(to), item);
    }
  };
  context.add(std::move(step));
  return to;
}

}  // namespace lathe
