// Normalizations and Softmax that store bytes, as fuse-quantize leaves them: generated code against references.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/isas_here.h"
#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::microsoft;
using testing::OpTester;
using testing::random_tensor;

struct Stored {
  DType dtype;
  float scale;
  int zero;
};

// round_even(x / scale) + zero
Expression quantization(const Stored& stored) {
  Expression e;
  e.inputs = {DType::f32};
  e.output = stored.dtype;
  const int x = e.add({.op = ExprOp::input, .a = 0});
  const int scale = e.add({.op = ExprOp::constant, .value = stored.scale});
  const int rounded = e.add({.op = ExprOp::round_even, .a = e.add({.op = ExprOp::div, .a = x, .b = scale})});
  const int zero = e.add({.op = ExprOp::constant, .value = static_cast<float>(stored.zero)});
  e.add({.op = ExprOp::add, .a = rounded, .b = zero});
  return e;
}

// Bytes next to one another only where the value lies between them.
void expect_near(const Tensor& got, const Tensor& expected, int64_t& count, int64_t& differing) {
  ASSERT_EQ(got.dtype(), expected.dtype());
  ASSERT_EQ(got.dims(), expected.dims());
  const std::vector<double> a = reals_of(got), b = reals_of(expected);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_LE(std::abs(a[i] - b[i]), 1) << "element " << i;
    differing += a[i] != b[i];
    ++count;
  }
}

struct RowsCase {
  const char* op;
  const char* domain;
  int inputs;  // the data, then operands of its shape (`skips` of them), then vectors
  int skips;
};

const Stored kStored[] = {{DType::u8, 0.02F, 128}, {DType::i8, 0.03F, -3}, {DType::u8, 0.01F, 0}};
const int64_t kColumns[] = {1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 47, 63, 64, 65, 77, 128, 130, 300, 2100};

TEST(QuantizedRows, NormalizationsStoreBytes) {
  std::mt19937 random(3);
  const RowsCase cases[] = {{"LayerNormalization", "", 3, 0},
                            {"RMSNormalization", "", 2, 0},
                            {"SkipLayerNormalization", "com.microsoft", 5, 1}};
  int64_t count = 0, differing = 0;
  for (const RowsCase& c : cases) {
    for (const int64_t columns : kColumns) {
      for (const Stored& stored : kStored) {
        for (const Isa isa : isas_here()) {
          SCOPED_TRACE(std::string(c.op) + " " + std::to_string(columns) + " " + std::string(name_of(isa)));
          OpTester tester(c.op, c.domain[0] == '\0' ? 28 : 1, c.domain);
          for (int i = 0; i < c.inputs; ++i) {
            tester.input(random_tensor(i <= c.skips ? Dims{1, 5, columns} : Dims{columns}, random));
          }
          tester.epilogue(quantization(stored), {});
          const auto got = tester.lowered(isa, 2);
          ASSERT_TRUE(got);
          ASSERT_NO_FATAL_FAILURE(expect_near((*got)[0], tester.result(), count, differing));
        }
      }
    }
  }
  EXPECT_LT(differing * 500, count);
}

TEST(QuantizedRows, KeepTheSumThatANormalizationAlsoGives) {
  std::mt19937 random(4);
  for (const Isa isa : isas_here()) {
    OpTester tester = microsoft("SkipLayerNormalization");
    for (const Dims& dims : {Dims{1, 4, 50}, Dims{1, 4, 50}, Dims{50}, Dims{50}})
      tester.input(random_tensor(dims, random));
    tester.outputs(4).unwanted(1).unwanted(2).epilogue(quantization(kStored[0]), {});
    const auto got = tester.lowered(isa, 1);
    ASSERT_TRUE(got);
    const std::vector<double> sums = reals_of((*got)[3]), expected = reals_of(tester.reference()[3]);
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], expected[i], 1e-6);
  }
}

TEST(QuantizedRows, SoftmaxStoresBytes) {
  std::mt19937 random(5);
  int64_t count = 0, differing = 0;
  for (const int64_t columns : kColumns) {
    for (const Stored& stored :
         {Stored{DType::u8, 0.004F, 0}, Stored{DType::i8, 0.0042F, -128}, Stored{DType::u8, 0.0005F, 3}}) {
      for (const Isa isa : isas_here()) {
        for (const float range : {1.0F, 30.0F}) {
          SCOPED_TRACE(std::to_string(columns) + " " + std::string(name_of(isa)));
          Tensor scores = random_tensor({7, columns}, random);
          for (int64_t i = 0; i < scores.size(); ++i) scores.mutable_data<float>()[i] *= range;
          // A row with masked scores, of both kinds.
          for (int64_t i = 1; i < columns; ++i) {
            scores.mutable_data<float>()[i] = i % 2 == 0 ? -INFINITY : std::numeric_limits<float>::lowest();
          }
          OpTester tester("Softmax", 13);
          tester.input(scores).epilogue(quantization(stored), {});
          const auto got = tester.lowered(isa, 2);
          ASSERT_TRUE(got);
          ASSERT_NO_FATAL_FAILURE(expect_near((*got)[0], tester.result(), count, differing));
        }
      }
    }
  }
  EXPECT_LT(differing * 500, count);
}

}  // namespace
}  // namespace lathe
