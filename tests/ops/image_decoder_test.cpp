#include <gtest/gtest.h>

#include "ops/codecs/image_codec.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

Tensor bytes_of(const std::string& text) {
  Tensor tensor(DType::u8, {static_cast<int64_t>(text.size())});
  std::copy(text.begin(), text.end(), tensor.mutable_data<uint8_t>());
  return tensor;
}

Tensor decoded(const std::string& bytes, const char* format = "RGB") {
  return OpTester("ImageDecoder").with("pixel_format", format).input(bytes_of(bytes)).result();
}

std::string little(uint32_t number, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

// A BMP of 24 bits a pixel; `rows` as stored, padded.
std::string bitmap(int32_t width, int32_t height, const std::string& rows) {
  return "BM" + little(54 + static_cast<uint32_t>(rows.size()), 4) + little(0, 4) + little(54, 4) + little(40, 4) +
         little(static_cast<uint32_t>(width), 4) + little(static_cast<uint32_t>(height), 4) + little(1, 2) +
         little(24, 2) + std::string(24, '\0') + rows;
}

TEST(ImageDecoder, ReadsBitmapsFromTheBottom) {
  const std::string rows("\x03\x02\x01\0\x06\x05\x04\0", 8);
  const Tensor image = decoded(bitmap(1, 2, rows));
  EXPECT_EQ(image.dims(), (Dims{2, 1, 3}));
  EXPECT_EQ(list<uint8_t>(image), (std::vector<uint8_t>{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(list<uint8_t>(decoded(bitmap(1, -2, rows))), (std::vector<uint8_t>{1, 2, 3, 4, 5, 6}));
}

TEST(ImageDecoder, GivesTheWantedPixelFormat) {
  const std::string ppm = "P6 1 1 255\n\x0a\x14\x1e";
  EXPECT_EQ(list<uint8_t>(decoded(ppm, "BGR")), (std::vector<uint8_t>{30, 20, 10}));
  const Tensor gray = decoded(ppm, "Grayscale");
  EXPECT_EQ(gray.dims(), (Dims{1, 1, 1}));
  EXPECT_EQ(list<uint8_t>(gray), (std::vector<uint8_t>{18}));  // 0.299 * 10 + 0.587 * 20 + 0.114 * 30
  EXPECT_THROW(decoded(ppm, "CMYK"), Error);
}

TEST(ImageDecoder, ReadsPortableImagesOfEveryKind) {
  const std::vector<uint8_t> black_white{0, 0, 0, 255, 255, 255};
  EXPECT_EQ(list<uint8_t>(decoded("P1\n# bits\n2 1\n10")), black_white);
  EXPECT_EQ(list<uint8_t>(decoded("P2 2 1 15 0 15 ")), black_white);
  EXPECT_EQ(list<uint8_t>(decoded("P3 1 1 255 7 8 9")), (std::vector<uint8_t>{7, 8, 9}));
  EXPECT_EQ(list<uint8_t>(decoded(std::string("P4 2 1\n\x80", 8))), black_white);
  EXPECT_EQ(list<uint8_t>(decoded(std::string("P5 2 1 255\n\0\xff", 13))), black_white);
  EXPECT_EQ(list<uint8_t>(decoded(std::string("P5 2 1 65535\n\0\0\xff\xff", 17))), black_white);
}

TEST(ImageDecoder, GivesAnEmptyImageForWhatItCannotDecode) {
  const std::string png_header("\x89PNG\r\n\x1a\n\0\0\0\rIHDR\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\x02\0\0\0\0\0\0\0",
                               33);
  const std::vector<std::string> broken = {"",
                                           "no image",
                                           "BM",
                                           bitmap(2, 2, "short"),
                                           bitmap(0x7fffffff, 0x7fffffff, ""),
                                           "P6 100000 100000 255\n",
                                           "P6 99999999999999999999 1 255\n",
                                           "P2 1 1 255 900",
                                           "P7 1 1",
                                           "\xff\xd8\xff",
                                           std::string("\xff\xd8\xff\xe0\0\x10JFIF", 10),
                                           png_header,
                                           std::string("II*\0\x08\0\0\0", 8),
                                           "RIFF\x10zzzWEBPVP8 ",
                                           std::string("\xff\x4f\xff\x51\0\x29", 6)};
  for (const std::string& bytes : broken) EXPECT_EQ(decoded(bytes).dims(), (Dims{0, 0, 3})) << bytes.substr(0, 12);
}

TEST(ImageDecoder, HasACodecForEachFormatThatItWasBuiltWith) {
  EXPECT_GE(image_codecs().size(), 2u);
  for (const ImageCodec& codec : image_codecs()) EXPECT_FALSE(codec.recognizes({})) << codec.name;
}

}  // namespace
}  // namespace lathe::testing
