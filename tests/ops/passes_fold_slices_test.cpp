// Slices behind convolutions that cut off what padding has added.
#include <limits>

#include "tests/ops/pass_net.h"

namespace lathe::testing {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

ValueId sliced(PassNet& net, ValueId x, const Ints& starts, const Ints& ends, const Ints& axes) {
  return net.op("Slice", {x, net.integers(starts), net.integers(ends), net.integers(axes)});
}

ValueId transposed_conv(PassNet& net, ValueId x, const Dims& extents, PassNet::NamedAttributes attributes) {
  return net.op("ConvTranspose", {x, net.weights(extents)}, std::move(attributes));
}

std::string after(PassNet& net) { return ops_of(rewritten(net, {passes::fold_slices})); }

TEST(FoldSlices, MakesACausalConvolutionOfOneThatIsPaddedOnBothSides) {
  for (const bool is_open : {false, true}) {
    PassNet net;
    TensorType type = TensorType::of(DType::f32, {2, 3, 9});
    if (is_open) type.dims[2] = Dim();
    const ValueId x = net.input(type);
    const auto conv = [&] { return net.conv(x, {4, 3, 3}, {{"pads", Ints{4, 4}}, {"dilations", Ints{2}}}); };
    net.output(sliced(net, conv(), {0}, {-4}, {2}));
    net.output(sliced(net, conv(), {0}, {-3}, {-1}));
    net.output(sliced(net, conv(), {2}, {kEnd}, {2}));
    net.output(sliced(net, conv(), {1}, {-2}, {2}));
    if (!is_open) net.output(sliced(net, conv(), {0}, {9}, {2}));
    const std::string one = "Conv+Slice";
    EXPECT_EQ(after(net), one + " " + one + " " + one + " " + one + (is_open ? "" : " " + one));
  }
}

TEST(FoldSlices, CountsStridesAndTakesBothAxes) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 2, 8, 7});
  const ValueId y = net.conv(x, {3, 2, 3, 3}, {{"pads", Ints{2, 2, 2, 2}}, {"strides", Ints{2, 1}}});
  net.output(sliced(net, y, {1, 0}, {-1, -2}, {2, 3}));
  EXPECT_EQ(after(net), "Conv+Slice");
}

TEST(FoldSlices, LeavesWhatIsMoreThanPaddingAndWhatOthersRead) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 9});
  const auto conv = [&](Ints pads, const char* auto_pad = "NOTSET") {
    return net.conv(x, {4, 3, 3}, {{"pads", std::move(pads)}, {"auto_pad", std::string(auto_pad)}});
  };
  net.output(sliced(net, conv({1, 1}), {0}, {-2}, {2}));
  net.output(sliced(net, conv({1, 1}), {1}, {3}, {2}));
  net.output(sliced(net, conv({1, 1}), {0}, {2}, {1}));
  net.output(sliced(net, net.conv(x, {4, 3, 3}, {{"pads", Ints{1, 1}}, {"strides", Ints{2}}}), {1}, {kEnd}, {2}));
  net.output(
      net.op("Slice", {conv({1, 1}), net.integers({0}), net.integers({-1}), net.integers({2}), net.integers({2})}));
  const ValueId shared = conv({1, 1});
  net.output(sliced(net, shared, {0}, {-1}, {2}));
  net.output(net.op("Relu", {shared}));
  const ValueId result = conv({1, 1});
  net.output(result);
  net.output(sliced(net, result, {0}, {-1}, {2}));
  EXPECT_EQ(after(net).find("+Slice"), std::string::npos);
}

// A picture of one pixel leaves nothing, which a Slice may say and a convolution not.
TEST(FoldSlices, LeavesOpenExtentsThatMayBeTooSmall) {
  PassNet net;
  TensorType type = TensorType::of(DType::f32, {1, 3, 9});
  type.dims[2] = Dim();
  net.output(sliced(net, net.conv(net.input(type), {4, 3, 3}, {{"pads", Ints{1, 1}}}), {0}, {-1}, {2}));
  EXPECT_EQ(after(net), "Conv Slice");
}

TEST(FoldSlices, CutsTheBorderOfTransposedConvolutions) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 6});
  net.output(sliced(net, transposed_conv(net, x, {3, 2, 8}, {{"strides", Ints{4}}}), {2}, {-2}, {2}));
  net.output(
      sliced(net, transposed_conv(net, x, {3, 2, 8}, {{"strides", Ints{4}}, {"pads", Ints{1, 2}}}), {0}, {-4}, {2}));
  EXPECT_EQ(after(net), "ConvTranspose+Slice ConvTranspose+Slice");
}

TEST(FoldSlices, LeavesTransposedConvolutionsThatWouldLoseWholeWindows) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 6});
  net.output(sliced(net, transposed_conv(net, x, {3, 2, 3}, {{"strides", Ints{2}}}), {3}, {kEnd}, {2}));
  net.output(sliced(net, transposed_conv(net, x, {3, 2, 3}, {{"strides", Ints{2}}, {"output_shape", Ints{12}}}), {0},
                    {-1}, {2}));
  EXPECT_EQ(after(net).find("+Slice"), std::string::npos);
}

}  // namespace
}  // namespace lathe::testing
