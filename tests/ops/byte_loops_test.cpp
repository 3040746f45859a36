// Bytes by tables and shuffles: functions of one byte, nearest pictures of any pixel, casts to float16.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/pointwise/byte_table.h"
#include "tests/jit/guarded_floats.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::OpTester;
using testing::random_bytes;

TEST(ByteTable, LooksUpAnyNumberOfBytes) {
  std::mt19937 random(1);
  ByteTable table;
  for (uint8_t& entry : table) entry = static_cast<uint8_t>(random());
  for (const Isa isa : testing::isas_here()) {
    for (const size_t count : {0, 1, 63, 64, 65, 200, 1000}) {
      std::vector<uint8_t> in(count), out(count + 1, 77);
      for (uint8_t& byte : in) byte = static_cast<uint8_t>(random());
      look_up(table, in.data(), out.data(), static_cast<int64_t>(count), isa);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], table[in[i]]) << count << " at " << i;
      EXPECT_EQ(out[count], 77);
    }
  }
}

Tensor picked(const Tensor& data, const std::vector<int64_t>& rows, const std::vector<int64_t>& columns,
              int64_t in_columns, int64_t pixel) {
  Tensor out(data.dtype(), {1, static_cast<int64_t>(rows.size()), static_cast<int64_t>(columns.size()), pixel});
  const size_t bytes = static_cast<size_t>(pixel) * data.bytes() / static_cast<size_t>(data.size());
  char* to = static_cast<char*>(out.mutable_raw());
  for (const int64_t row : rows) {
    for (const int64_t column : columns) {
      std::memcpy(to, static_cast<const char*>(data.raw()) + static_cast<size_t>(row * in_columns + column) * bytes,
                  bytes);
      to += bytes;
    }
  }
  return out;
}

TEST(NearestResize, PicksPixelsOfAnySize) {
  std::mt19937 random(2);
  for (const DType dtype : {DType::u8, DType::i16, DType::f64}) {
    for (const int64_t pixel : {1, 2, 3, 4, 5}) {
      for (const int64_t columns : {1, 3, 7, 17, 40}) {
        for (const float scale : {0.5F, 1.0F, 1.5F, 2.0F, 3.7F}) {
          Tensor data(dtype, {1, 5, columns, pixel});
          auto* bytes = static_cast<uint8_t*>(data.mutable_raw());
          for (size_t i = 0; i < data.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random() % 120);
          const auto places = [&](int64_t extent) {
            std::vector<int64_t> all(static_cast<size_t>(static_cast<float>(extent) * scale));
            for (size_t i = 0; i < all.size(); ++i)
              all[i] = std::min(extent - 1, static_cast<int64_t>(static_cast<float>(i) / scale));
            return all;
          };
          OpTester tester("Resize", 13);
          tester.input(data).absent().constant(Tensor::from<float>({4}, {1, scale, scale, 1}));
          tester.with("mode", "nearest").with("nearest_mode", "floor");
          tester.with("coordinate_transformation_mode", "asymmetric");
          const auto made = tester.lowered(Isa::avx2, 2);
          ASSERT_TRUE(made);
          const Tensor expected = picked(data, places(5), places(columns), columns, pixel);
          ASSERT_EQ((*made)[0].dims(), expected.dims());
          if (expected.bytes() == 0) continue;
          ASSERT_EQ(std::memcmp((*made)[0].raw(), expected.raw(), expected.bytes()), 0)
              << name_of(dtype) << " pixels of " << pixel << ", " << columns << " columns by " << scale;
        }
      }
    }
  }
}

// 480 * 0.35 is 168 as float32 and less as float64.
TEST(Resize, RoundsExtentsAsFloat32) {
  OpTester tester("Resize", 13);
  tester.input(Tensor(DType::f32, {480})).absent().constant(Tensor::from<float>({1}, {0.35F})).with("mode", "nearest");
  EXPECT_EQ(tester.result().dims(), Dims{168});
  // 3.5 / 0.35 - 0.5 lies between elements 9 and 10.
  OpTester ties("Resize", 13);
  Tensor data(DType::f32, {480});
  for (int i = 0; i < 480; ++i) data.mutable_data<float>()[i] = static_cast<float>(i);
  ties.input(data).absent().constant(Tensor::from<float>({1}, {0.35F})).with("mode", "nearest");
  EXPECT_EQ(ties.result().data<float>()[3], 9);
}

// Positions that float32 leaves just beside a half, or the last pixel, as ONNX Runtime 1.31 has them.
TEST(Resize, PicksTheNeighbourThatOnnxRuntimePicks) {
  const struct {
    const char *coordinates, *rule;
    int64_t in, out, position, picked;
  } cases[] = {{"asymmetric", "round_prefer_ceil", 7, 4, 2, 4},    {"asymmetric", "round_prefer_ceil", 10, 12, 9, 8},
               {"half_pixel", "round_prefer_ceil", 14, 1, 0, 7},   {"asymmetric", "round_prefer_floor", 7, 4, 2, 3},
               {"align_corners", "floor", 13, 14, 13, 12},         {"align_corners", "floor", 13, 7, 1, 2},
               {"align_corners", "round_prefer_floor", 8, 3, 1, 3}};
  for (const auto& c : cases) {
    Tensor data(DType::f32, {c.in});
    for (int64_t i = 0; i < c.in; ++i) data.mutable_data<float>()[i] = static_cast<float>(i);
    OpTester tester("Resize", 13);
    tester.input(data).absent().absent().constant(testing::longs({c.out})).with("mode", "nearest");
    tester.with("coordinate_transformation_mode", c.coordinates).with("nearest_mode", c.rule);
    EXPECT_EQ(tester.result().data<float>()[c.position], static_cast<float>(c.picked))
        << c.coordinates << " " << c.rule << " " << c.in << " to " << c.out;
  }
}

TEST(Cast, RoundsIntegersToFloat16) {
  std::mt19937 random(5);
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::i8, DType::boolean}) {
    for (const int64_t count : {1, 7, 255, 256, 257, 5000}) {
      Tensor data(dtype, {count});
      for (int64_t i = 0; i < count; ++i) {
        const auto number = static_cast<int32_t>(random());
        store_real(data, i, dtype == DType::i64 || dtype == DType::i32 ? number >> (random() % 31) : number & 1);
      }
      OpTester tester("Cast", 13);
      tester.input(data).with("to", static_cast<int>(DType::f16));
      const auto made = tester.lowered(Isa::avx2, 2);
      ASSERT_TRUE(made) << name_of(dtype);
      const Tensor expected = tester.result();
      EXPECT_EQ(std::memcmp((*made)[0].raw(), expected.raw(), expected.bytes()), 0) << name_of(dtype) << count;
    }
  }
}

TEST(Int8Rows, AgreeWithTheReferences) {
  std::mt19937 random(6);
  for (const char* op : {"Add", "Sub", "Mul", "Max", "Min", "Abs", "Neg", "Sign", "Relu"}) {
    OpTester tester(op, 18);
    tester.input(random_bytes(DType::i8, {3, 70}, random));
    const std::string name = op;
    if (name == "Add" || name == "Sub" || name == "Mul" || name == "Max" || name == "Min")
      tester.input(random_bytes(DType::i8, {70}, random));
    const auto made = tester.lowered(Isa::avx2, 1);
    ASSERT_TRUE(made) << op;
    const Tensor expected = tester.result();
    EXPECT_EQ(std::memcmp((*made)[0].raw(), expected.raw(), expected.bytes()), 0) << op;
  }
}

}  // namespace
}  // namespace lathe
