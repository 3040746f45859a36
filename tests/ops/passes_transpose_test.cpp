// Transposes that go into the products around them, and those that must stay.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

std::string absorbed(PassNet& net) { return ops_of(rewritten(net, {passes::absorb_transposes})); }

TEST(AbsorbTransposes, TakesThoseOfHeadsOnAllThreeSides) {
  PassNet net;
  const ValueId q = net.transpose(net.input(Dims{2, 5, 3, 4}), {0, 2, 1, 3});
  const ValueId k = net.transpose(net.input(Dims{2, 6, 3, 4}), {0, 2, 3, 1});
  net.output(net.transpose(net.op("MatMul", {q, k}), {0, 2, 1, 3}));
  EXPECT_EQ(absorbed(net), "MatMul");
}

TEST(AbsorbTransposes, LeavesAnOperandWhoseRowsWouldBreak) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{4, 5}), {1, 0});
  net.output(net.op("MatMul", {a, net.input(Dims{4, 6})}));
  EXPECT_EQ(absorbed(net), "Transpose MatMul");
}

TEST(AbsorbTransposes, LeavesAResultWhoseRowsWouldBreak) {
  PassNet net;
  net.output(net.transpose(net.op("MatMul", {net.input(Dims{4, 5}), net.input(Dims{5, 6})}), {1, 0}));
  EXPECT_EQ(absorbed(net), "MatMul Transpose");
}

TEST(AbsorbTransposes, LeavesATransposeThatOthersRead) {
  PassNet net;
  const ValueId b = net.transpose(net.input(Dims{6, 5}), {1, 0});
  net.output(net.op("MatMul", {net.input(Dims{4, 5}), b}));
  net.output(net.op("Relu", {b}));
  EXPECT_EQ(absorbed(net), "Transpose MatMul Relu");
}

TEST(AbsorbTransposes, LeavesATransposeThatIsAnOutput) {
  PassNet net;
  const ValueId b = net.transpose(net.input(Dims{6, 5}), {1, 0});
  net.output(net.op("MatMul", {net.input(Dims{4, 5}), b}));
  net.output(b);
  EXPECT_EQ(absorbed(net), "Transpose MatMul");
}

TEST(AbsorbTransposes, LeavesTheTransposeOfAProductThatIsAnOutput) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input(Dims{2, 3, 4, 5}), net.input(Dims{2, 3, 5, 6})});
  net.output(y);
  net.output(net.transpose(y, {0, 2, 1, 3}));
  EXPECT_EQ(absorbed(net), "MatMul Transpose");
}

TEST(AbsorbTransposes, LeavesAProductOfAValueWithItself) {
  PassNet net;
  const ValueId a = net.transpose(net.input(Dims{2, 4, 3, 4}), {0, 2, 1, 3});
  net.output(net.op("MatMul", {a, a}));
  EXPECT_EQ(absorbed(net), "Transpose MatMul");
}

TEST(AbsorbTransposes, LeavesProductsOfVectors) {
  PassNet net;
  net.output(net.op("MatMul", {net.input(Dims{5}), net.transpose(net.input(Dims{6, 5}), {1, 0})}));
  EXPECT_EQ(absorbed(net), "Transpose MatMul");
}

}  // namespace
}  // namespace lathe
