// Products with dequantized weights keep these in few bits, and give what they gave.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

constexpr int64_t kRows = 520, kColumns = 516, kBlock = 16;  // of the weights

struct Net : testing::PassNet {
  // All elements random; of 4 bits two in a byte.
  ValueId codes(DType dtype, const Dims& dims) {
    Tensor tensor(dtype, dims);
    for (size_t i = 0; i < tensor.bytes(); ++i)
      static_cast<uint8_t*>(tensor.mutable_raw())[i] = static_cast<uint8_t>(random());
    return constant(tensor);
  }
  // [k, n] by blocks along k, or turned.
  ValueId blocked(DType dtype, bool turned, bool has_zeros, int64_t block = kBlock, int64_t rows = kRows) {
    const int64_t blocks = (rows + block - 1) / block;
    const Dims dims = turned ? Dims{kColumns, rows} : Dims{rows, kColumns};
    const Dims scales = turned ? Dims{kColumns, blocks} : Dims{blocks, kColumns};
    std::vector<ValueId> inputs{codes(dtype, dims), weights(scales, 0.01F, 0.02F)};
    if (has_zeros) inputs.push_back(codes(dtype, scales));
    return op("DequantizeLinear", inputs, {{"axis", int64_t{turned}}, {"block_size", block}}, 21);
  }
  // [k, n] with a scale for each index of `axis`; -1: one for all.
  ValueId by_axis(DType dtype, int64_t axis, int64_t rows = kRows) {
    const Dims scales = axis < 0 ? Dims{} : Dims{axis == 0 ? rows : kColumns};
    return op("DequantizeLinear", {codes(dtype, {rows, kColumns}), weights(scales, 0.01F, 0.02F), codes(dtype, scales)},
              {{"axis", std::max<int64_t>(axis, 0)}}, 21);
  }
};

std::string kept(Net& net) {
  return testing::ops_of(testing::rewritten(net, {passes::keep_bits, passes::remove_dead}));
}

TEST(KeepBits, TakesBlocksOfEachType) {
  for (const DType dtype : {DType::i4, DType::u4, DType::i8, DType::u8}) {
    for (const bool has_zeros : {false, true}) {
      Net net;
      net.output(net.op("MatMul", {net.input({2, 3, kRows}), net.blocked(dtype, false, has_zeros)}));
      EXPECT_EQ(kept(net), "MatMulNBits") << name_of(dtype) << has_zeros;
    }
  }
}

TEST(KeepBits, TakesTurnedWeightsAndABias) {
  Net net;
  const ValueId turned = net.transpose(net.blocked(DType::u4, true, true), {1, 0});
  net.output(net.op("MatMul", {net.input({3, kRows}), turned}));
  net.output(net.op("Gemm", {net.input({3, kRows}), net.blocked(DType::i8, true, false), net.weights({kColumns})},
                    {{"transB", int64_t{1}}}));
  EXPECT_EQ(kept(net), "MatMulNBits MatMulNBits Add");
}

TEST(KeepBits, TakesScalesOfColumnsAndOfAll) {
  for (const int64_t axis : {1, -1}) {
    for (const DType dtype : {DType::i4, DType::u8}) {
      Net net;
      net.output(net.op("MatMul", {net.input({3, kRows}), net.by_axis(dtype, axis)}));
      EXPECT_EQ(kept(net), "MatMulNBits") << axis << name_of(dtype);
    }
  }
}

TEST(KeepBits, LeavesBytesOfManyRowsToFolding) {
  Net net;
  net.output(net.op("MatMul", {net.input({2, 4, kRows}), net.by_axis(DType::i8, 1)}));
  net.output(net.op("MatMul", {net.input({2, 4, kRows}), net.by_axis(DType::i4, 1)}));
  EXPECT_EQ(kept(net), "DequantizeLinear MatMul MatMulNBits");
}

TEST(KeepBits, LeavesWhatMatMulNBitsCannotSay) {
  const auto expect_left = [](const char* what, const std::function<ValueId(Net&)>& make) {
    Net net;
    net.output(make(net));
    EXPECT_EQ(kept(net).find("MatMulNBits"), std::string::npos) << what;
  };
  expect_left("scales along the sum", [](Net& net) {
    return net.op("MatMul", {net.input({3, kRows}), net.by_axis(DType::i4, 0)});
  });
  expect_left("blocks that are no power of two", [](Net& net) {
    return net.op("MatMul", {net.input({3, kRows}), net.blocked(DType::i4, false, false, 20)});
  });
  expect_left("few weights", [](Net& net) {
    return net.op("MatMul", {net.input({3, 32}), net.by_axis(DType::i4, 1, 32)});
  });
  expect_left("weights on the left", [](Net& net) {
    return net.op("MatMul", {net.by_axis(DType::i4, 1), net.input({kColumns, 3})});
  });
  expect_left("a factor", [](Net& net) {
    return net.op("Gemm", {net.input({3, kRows}), net.by_axis(DType::i4, 1)}, {{"alpha", 2.0F}});
  });
  expect_left("an operand of bytes", [](Net& net) {
    const ValueId x = net.op("QuantizeLinear", {net.input({3, kRows}), net.scalar(0.01F)}, {}, 21);
    return net.op("MatMul", {net.op("DequantizeLinear", {x, net.scalar(0.01F)}, {}, 21), net.by_axis(DType::i4, 1)});
  });
}

}  // namespace
}  // namespace lathe
