// com.microsoft's MatMulNBits by its kernels against its reference, which contrib_matmul_test holds to the definition.
#include <gtest/gtest.h>

#include "jit/kernels/common/int8_dot.h"
#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

struct BitsCase {
  int64_t m, n, k, bits, block;
  enum class Zeros { none, packed, real } zeros = Zeros::none;
  bool has_bias = false;
  int threads = 1;
  friend std::ostream& operator<<(std::ostream& out, const BitsCase& c) {
    return out << c.m << "x" << c.n << "x" << c.k << " of " << c.bits << " bits by " << c.block;
  }
};

Tensor random_bytes(const Dims& dims, std::mt19937& random) {
  Tensor tensor(DType::u8, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(random());
  return tensor;
}

class MatMulBits : public ::testing::TestWithParam<BitsCase> {};

TEST_P(MatMulBits, MatchesItsReferenceOnEachIsa) {
  const BitsCase& c = GetParam();
  std::mt19937 random(3);
  const int64_t blocks = (c.k + c.block - 1) / c.block;
  OneNode one;
  one.domain = "com.microsoft";
  one.inputs = {random_tensor({c.m, c.k}, random),
                random_bytes({c.n, blocks, c.block * c.bits / 8}, random),
                random_tensor({c.n * blocks}, random, 0.01F, 0.02F),
                Tensor(),
                Tensor(),
                Tensor()};
  if (c.zeros == BitsCase::Zeros::packed) one.inputs[3] = random_bytes({c.n * ((blocks * c.bits + 7) / 8)}, random);
  if (c.zeros == BitsCase::Zeros::real) one.inputs[3] = random_tensor({c.n * blocks}, random, 0, 10);
  if (c.has_bias) one.inputs[5] = random_tensor({c.n}, random);
  one.is_constant = {false, true, true, true, true, true};
  Attributes attributes;
  attributes.set("K", c.k);
  attributes.set("N", c.n);
  attributes.set("bits", c.bits);
  attributes.set("block_size", c.block);
  one.make("MatMulNBits", 1, attributes, std::vector<int>(6, 0), 0);
  const Tensor expected = one.expected();
  // Weights are below 2^bits * 0.02; each product and sum is rounded.
  const float largest = static_cast<float>(1 << c.bits) * 0.02F * static_cast<float>(c.k);
  for (const Isa isa : isas_here()) {
    SCOPED_TRACE(name_of(isa));
    const std::optional<Tensor> got = one.run(isa, c.threads);
    ASSERT_TRUE(got) << "the reference ran";
    ASSERT_EQ(got->dims(), expected.dims());
    for (int64_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], largest * 1e-6F) << "element " << i;
  }
}

// A becomes bytes only where the model says that it may, and only as far as that goes.
TEST(MatMulBitsOfBytes, RoundWhereTheModelAllowsIt) {
  std::mt19937 random(4);
  for (const int64_t bits : {2, 4, 8}) {
    for (const bool has_zeros : {false, true}) {
      for (const int64_t m : {1, 7, 100}) {
        constexpr int64_t n = 70, k = 330, block = 64, blocks = (k + block - 1) / block;
        OneNode one;
        one.domain = "com.microsoft";
        one.inputs = {random_tensor({m, k}, random),
                      random_bytes({n, blocks, block * bits / 8}, random),
                      random_tensor({n * blocks}, random, 0.01F, 0.02F),
                      has_zeros ? random_bytes({n * ((blocks * bits + 7) / 8)}, random) : Tensor(),
                      Tensor(),
                      random_tensor({n}, random)};
        one.is_constant = {false, true, true, true, true, true};
        Attributes attributes;
        attributes.set("K", k);
        attributes.set("N", n);
        attributes.set("bits", bits);
        attributes.set("block_size", block);
        attributes.set("accuracy_level", int64_t{4});
        one.make("MatMulNBits", 1, attributes, std::vector<int>(6, 0), 0);
        const Tensor expected = one.expected();
        for (const Isa isa : testing::int8_isas_here()) {
          const std::optional<Tensor> got = one.run(isa, 2);
          ASSERT_TRUE(got);
          // Each element of A is off by half of 1 / 127, in any direction.
          const double weight = 0.02 * static_cast<double>(1 << bits) * 0.5;
          const double bound = has_vnni(isa) ? weight * 6 * std::sqrt(k / 12.0) / 127 : 1e-4;
          double worst = 0;
          for (int64_t i = 0; i < expected.size(); ++i)
            worst = std::max<double>(worst, std::abs(got->data<float>()[i] - expected.data<float>()[i]));
          EXPECT_LT(worst, bound) << name_of(isa) << " " << bits << " bits, " << m << " rows";
        }
      }
    }
  }
}

using Zeros = BitsCase::Zeros;
INSTANTIATE_TEST_SUITE_P(
    Shapes, MatMulBits,
    ::testing::Values(BitsCase{1, 1, 1, 4, 16}, BitsCase{1, 64, 64, 4, 32},
                      BitsCase{1, 100, 300, 4, 32, Zeros::packed, true}, BitsCase{3, 200, 1500, 4, 128, Zeros::packed},
                      BitsCase{5, 33, 77, 8, 16, Zeros::packed, true}, BitsCase{40, 130, 513, 4, 64, Zeros::real, true},
                      BitsCase{29, 65, 260, 8, 256, Zeros::real}, BitsCase{2, 640, 512, 4, 16, Zeros::packed, true, 3},
                      BitsCase{31, 500, 200, 8, 32, Zeros::none, false, 2},
                      BitsCase{4, 70, 700, 2, 32, Zeros::packed, true, 2}, BitsCase{9, 64, 128, 2, 16},
                      BitsCase{6, 100, 96, 4, 32, Zeros::none, true}, BitsCase{7, 70, 200, 8, 64, Zeros::real},
                      BitsCase{8, 640, 512, 4, 32, Zeros::packed, true, 2}));

}  // namespace
}  // namespace lathe
