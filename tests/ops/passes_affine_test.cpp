// Constants into the weights of what follows and of what comes before: where they fire, and near misses.
#include "src/base/half.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

// ---- fold-affine

std::string folded(PassNet& net) { return ops_of(rewritten(net, {passes::fold_affine})); }

TEST(FoldAffine, TakesAChainBeforeAConvolution) {
  for (const bool has_bias : {true, false}) {
    PassNet net;
    const ValueId scaled = net.op("Mul", {net.weights({4, 1, 1}), net.input({2, 4, 5, 6})});
    const ValueId shifted = net.op("Sub", {net.weights({1, 4, 1, 1}), scaled});
    net.output(net.conv(net.op("Div", {shifted, net.scalar(3)}), {5, 4, 3, 3}, {}, has_bias));
    EXPECT_EQ(folded(net), "Mul+Sub+Div+Conv");
  }
}

TEST(FoldAffine, KnowsTheGroupsOfAConvolution) {
  PassNet net;
  const ValueId x =
      net.op("Add", {net.op("Mul", {net.input({1, 6, 4, 4}), net.weights({6, 1, 1})}), net.weights({6, 1, 1})});
  net.output(net.conv(x, {9, 2, 2, 2}, {{"group", int64_t{3}}}));
  EXPECT_EQ(folded(net), "Mul+Add+Conv");
}

TEST(FoldAffine, LeavesASumBeforeAPaddedConvolutionButTakesTheFactorBehindIt) {
  const std::pair<const char*, Attribute> borders[] = {{"pads", Ints{0, 1, 0, 0}},
                                                       {"auto_pad", std::string("SAME_UPPER")}};
  for (const auto& border : borders) {
    PassNet net;
    const ValueId sum = net.op("Add", {net.input({1, 4, 5, 6}), net.weights({4, 1, 1})});
    net.output(net.conv(net.op("Mul", {sum, net.weights({4, 1, 1})}), {5, 4, 3, 3}, {border}));
    EXPECT_EQ(folded(net), "Add Mul+Conv");
  }
}

TEST(FoldAffine, TakesRowsBeforeProducts) {
  PassNet net;
  const ValueId x = net.op("Add", {net.op("Mul", {net.input({2, 3, 4}), net.weights({4})}), net.weights({1, 4})});
  net.output(net.op("MatMul", {x, net.weights({4, 7})}));
  EXPECT_EQ(folded(net), "Mul+Add+MatMul Add");
}

TEST(FoldAffine, TakesRowsBeforeGemmsOfEitherOrder) {
  for (const int64_t is_transposed : {0, 1}) {
    PassNet net;
    const ValueId x = net.op("Add", {net.op("Mul", {net.input({3, 4}), net.weights({4})}), net.weights({4})});
    net.output(net.op("Gemm", {x, net.weights(is_transposed != 0 ? Dims{7, 4} : Dims{4, 7}), net.weights({7})},
                      {{"transB", is_transposed}, {"alpha", 0.5F}, {"beta", 2.F}}));
    EXPECT_EQ(folded(net), "Mul+Add+Gemm");
  }
}

TEST(FoldAffine, LeavesOneFactorForAllToRideBehindTheProduct) {
  PassNet net;
  net.output(net.op("MatMul", {net.op("Mul", {net.input({3, 4}), net.scalar(0.5F)}), net.weights({4, 7})}));
  EXPECT_EQ(folded(net), "Mul MatMul");
}

TEST(FoldAffine, KeepsWhatOthersRead) {
  PassNet second, output;
  const ValueId a = second.op("Mul", {second.input({1, 4, 5, 5}), second.weights({4, 1, 1})});
  second.output(second.conv(a, {5, 4, 1, 1}));
  second.output(second.op("Relu", {a}));
  EXPECT_EQ(folded(second), "Mul Conv Relu");
  const ValueId b = output.op("Mul", {output.input({1, 4, 5, 5}), output.weights({4, 1, 1})});
  output.output(output.conv(b, {5, 4, 1, 1}));
  output.output(b);
  EXPECT_EQ(folded(output), "Mul Conv");
}

TEST(FoldAffine, LeavesOtherAxesAndOtherExtents) {
  for (const Dims& constant : {Dims{4}, Dims{4, 1}, Dims{2, 1, 1, 1}, Dims{4, 4, 1}}) {
    PassNet net;
    net.output(net.conv(net.op("Mul", {net.input({2, 4, 4, 4}), net.weights(constant)}), {5, 4, 1, 1}));
    EXPECT_EQ(folded(net), "Mul Conv");
  }
  PassNet spreading;  // one channel becomes four
  spreading.output(
      spreading.conv(spreading.op("Mul", {spreading.input({2, 1, 4, 4}), spreading.weights({4, 1, 1})}), {5, 4, 1, 1}));
  EXPECT_EQ(folded(spreading), "Mul Conv");
  PassNet rows;
  rows.output(rows.op("MatMul", {rows.op("Mul", {rows.input({4, 4}), rows.weights({4, 1})}), rows.weights({4, 7})}));
  EXPECT_EQ(folded(rows), "Mul MatMul");
  PassNet turned;
  turned.output(turned.op("Gemm",
                          {turned.op("Mul", {turned.input({4, 4}), turned.weights({4})}), turned.weights({4, 7})},
                          {{"transA", int64_t{1}}}));
  EXPECT_EQ(folded(turned), "Mul Gemm");
}

TEST(FoldAffine, LeavesFactorsThatWeightsCannotHold) {
  PassNet net;
  const ValueId x = net.op("Mul", {net.input({1, 2, 3, 3}), net.constant(Tensor::from<float>({2, 1, 1}, {1e30F, 1}))});
  const ValueId small = net.op("Mul", {x, net.constant(Tensor::from<float>({2, 1, 1}, {1e-30F, 1}))});
  net.output(net.op("Conv", {small, net.constant(Tensor::from<float>({1, 2, 1, 1}, {1e38F, 1}))}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::fold_affine}, 1e30)), "Mul+Mul+Conv") << "both together are harmless";
  PassNet large;
  const ValueId y =
      large.op("Mul", {large.input({1, 2, 3, 3}), large.constant(Tensor::from<float>({2, 1, 1}, {1e30F, 1}))});
  large.output(large.op("Conv", {y, large.constant(Tensor::from<float>({1, 2, 1, 1}, {1e30F, 1}))}));
  Graph after = large.graph;
  const Limits limits;
  infer_types(after, limits);
  EXPECT_FALSE(passes::fold_affine(after, {OpRegistry::builtin(), limits, 8}));
}

// A tensor of 16-bit numbers.
Tensor narrow(const Tensor& numbers, DType dtype) {
  Tensor result(dtype, numbers.dims());
  for (int64_t i = 0; i < numbers.size(); ++i) {
    const float x = numbers.data<float>()[i];
    result.mutable_data<uint16_t>()[i] = dtype == DType::f16 ? float_to_half(x) : float_to_bfloat(x);
  }
  return result;
}

// Results of `net` over 16-bit `input`, without the pass and with it; fires() says whether it did anything.
struct Narrow {
  DType dtype;
  PassNet net;
  Graph after;

  ValueId constant(const Dims& dims, float low, float high) {
    return net.constant(narrow(net.noise(dims, low, high), dtype));
  }
  bool fires(testing::PassFn* pass) {
    after = net.graph;
    const Limits limits;
    infer_types(after, limits);
    return pass(after, {OpRegistry::builtin(), limits, 8});
  }
  void expect_same(double tolerance) {
    const std::vector<Tensor> x{narrow(net.noise(net.graph.value(net.graph.inputs[0]).type.extents()), dtype)};
    const Tensor want = run_reference_graph(net.graph, x)[0], got = run_reference_graph(after, x)[0];
    const auto number = [&](const Tensor& tensor, int64_t i) {
      const uint16_t bits = tensor.data<uint16_t>()[i];
      return dtype == DType::f16 ? half_to_float(bits) : bfloat_to_float(bits);
    };
    ASSERT_EQ(want.dims(), got.dims());
    for (int64_t i = 0; i < want.size(); ++i) ASSERT_NEAR(number(want, i), number(got, i), tolerance) << i;
  }
};

TEST(FoldAffine, TakesHalfFloatsAndBFloats) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Narrow half{dtype, {}, {}};
    PassNet& net = half.net;
    ValueId y = net.op("Mul", {net.input(TensorType::of(dtype, {1, 4, 3, 3})), half.constant({4, 1, 1}, 0.5f, 1)});
    y = net.op("Add", {y, half.constant({4, 1, 1}, -1, 1)});
    net.output(net.op("Conv", {y, half.constant({2, 4, 1, 1}, -1, 1)}));
    ASSERT_TRUE(half.fires(passes::fold_affine));
    EXPECT_EQ(ops_of(half.after), "Mul+Add+Conv");
    EXPECT_EQ(half.after.value(half.after.node(half.after.order()[0]).inputs[1]).constant.dtype(), dtype);
    half.expect_same(dtype == DType::f16 ? 8e-3 : 6e-2);  // some roundings of numbers up to 4
  }
}

TEST(FoldAffine, LeavesFactorsThatHalfFloatsCannotHold) {
  const auto product_of_factor = [](DType dtype, float factor) {
    Narrow half{dtype, {}, {}};
    PassNet& net = half.net;
    const ValueId y = net.op(
        "Mul", {net.input(TensorType::of(dtype, {1, 4, 3, 3})), half.constant({4, 1, 1}, factor, 1.01f * factor)});
    net.output(net.op("Conv", {y, half.constant({2, 4, 1, 1}, 300, 301)}));
    return half.fires(passes::fold_affine);
  };
  EXPECT_TRUE(product_of_factor(DType::f16, 200)) << "60,600 is a float16";
  EXPECT_FALSE(product_of_factor(DType::f16, 300)) << "90,000 is none";
  EXPECT_TRUE(product_of_factor(DType::bf16, 300));
}

TEST(FoldBatchNorm, TakesHalfFloatsThatHoldTheResult) {
  for (const float scale : {2.F, 300.F}) {
    Narrow half{DType::f16, {}, {}};
    PassNet& net = half.net;
    const ValueId y = net.op("Conv", {net.input(TensorType::of(DType::f16, {1, 4, 3, 3})),
                                      half.constant({2, 4, 1, 1}, scale, scale + 0.1f)});
    net.output(net.op("Mul", {y, half.constant({2, 1, 1}, scale, scale + 0.1f)}));
    EXPECT_EQ(half.fires(passes::fold_batch_norm), scale < 3);
    if (scale < 3) half.expect_same(2e-2);  // of sums up to 16
  }
}

// ---- fold-batch-norm, of matrix products

std::string normed(PassNet& net) { return ops_of(rewritten(net, {passes::fold_batch_norm})); }

TEST(FoldBatchNorm, TakesFactorsPerColumnIntoAProduct) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input({2, 3, 4}), net.weights({4, 6})});
  net.output(
      net.op("Add", {net.op("Mul", {net.op("Sub", {y, net.weights({6})}), net.weights({6})}), net.weights({6})}));
  EXPECT_EQ(normed(net), "MatMul+Sub+Mul+Add Add");
}

TEST(FoldBatchNorm, NormalizesTheColumnsOfAProduct) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input({5, 4}), net.weights({4, 6})});
  net.output(net.op("BatchNormalization",
                    {y, net.weights({6}), net.weights({6}), net.weights({6}), net.weights({6}, 0.5F, 2)}));
  EXPECT_EQ(normed(net), "MatMul+BatchNormalization Add");
}

TEST(FoldBatchNorm, LeavesABiasAndAFactorForAllBehindAProduct) {
  PassNet net;
  const ValueId y = net.op("Add", {net.op("MatMul", {net.input({5, 4}), net.weights({4, 6})}), net.weights({6})});
  net.output(net.op("Mul", {y, net.scalar(0.5F)}));
  EXPECT_EQ(normed(net), "MatMul Add Mul");
}

TEST(FoldBatchNorm, LeavesRowsOfAProduct) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input({2, 6, 4}), net.weights({4, 6})});
  net.output(net.op("Mul", {y, net.weights({6, 1})}));
  EXPECT_EQ(normed(net), "MatMul Mul");
}

}  // namespace
}  // namespace lathe
