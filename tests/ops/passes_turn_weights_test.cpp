// Pictures that are flattened in another order for a product, and those whose order must stay.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

std::string turned(PassNet& net) {
  return ops_of(rewritten(net, {passes::turn_weights, passes::fold_constants, passes::remove_dead}));
}

TEST(TurnWeights, TakeTheOrderOfWhatIsFlattened) {
  PassNet net;
  const ValueId x =
      net.transpose(net.input({DType::f32, true, {{-1, "n"}, {3, ""}, {4, ""}, {5, ""}}, {}, nullptr}), {0, 2, 3, 1});
  net.output(net.op("MatMul", {net.reshape(x, {0, 60}), net.weights({60, 7})}));
  const ValueId y = net.op("Flatten", {net.transpose(net.input(Dims{2, 3, 4, 5}), {0, 3, 1, 2})});
  net.output(net.op("Gemm", {y, net.weights({7, 60}), net.weights({7})}, {{"transB", int64_t{1}}}));
  EXPECT_EQ(turned(net), "Reshape MatMul Reshape Gemm");
}

TEST(TurnWeights, StayWhereTheOrderIsReadOrTheBatchMoves) {
  PassNet net;
  const ValueId x = net.transpose(net.input(Dims{2, 3, 4, 5}), {0, 2, 3, 1});
  net.output(x);
  net.output(net.op("MatMul", {net.reshape(x, {2, 60}), net.weights({60, 7})}));
  const ValueId y = net.transpose(net.input(Dims{3, 2, 4, 5}), {1, 0, 2, 3});
  net.output(net.op("MatMul", {net.reshape(y, {2, 60}), net.weights({60, 7})}));
  const ValueId z = net.transpose(net.input(Dims{2, 3, 4, 5}), {0, 2, 3, 1});
  net.output(net.op("MatMul", {net.reshape(z, {2, 4, 15}), net.weights({15, 7})}));
  const ValueId w = net.transpose(net.input(Dims{2, 3, 4, 5}), {0, 2, 3, 1});
  net.output(net.op("MatMul", {net.reshape(w, {2, 60}), net.input(Dims{60, 7})}));
  EXPECT_EQ(turned(net),
            "Transpose Reshape MatMul Transpose Reshape MatMul Transpose Reshape MatMul Transpose Reshape MatMul");
}

}  // namespace
}  // namespace lathe
