// Reductions of reductions.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

ValueId reduce(PassNet& net, const char* op, ValueId x, int64_t axis, int64_t keepdims = 1) {
  return net.op(op, {x}, {{"axes", Ints{axis}}, {"keepdims", keepdims}});
}
std::string merged(PassNet& net) {
  return ops_of(rewritten(net, {passes::merge_reductions, passes::pool_means, passes::remove_dead}));
}

TEST(MergeReductions, MeansOfRowsAndColumnsAreOneOfAllPixels) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  net.output(reduce(net, "ReduceMean", reduce(net, "ReduceMean", x, 3), -2));
  net.output(reduce(net, "ReduceMean", reduce(net, "ReduceMean", x, 2, 0), 2, 0));
  EXPECT_EQ(merged(net), "GlobalAveragePool GlobalAveragePool Flatten");
}

TEST(MergeReductions, SumsAndExtremesWithAxesAsInputs) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  const ValueId sum = net.op("ReduceSum", {x, net.integers({0})}, {{"keepdims", int64_t{0}}});
  net.output(net.op("ReduceSum", {sum, net.integers({0, -1})}, {{"keepdims", int64_t{0}}}));
  net.output(reduce(net, "ReduceMax", reduce(net, "ReduceMax", x, 1), 3));
  EXPECT_EQ(merged(net), "ReduceSum ReduceMax");
}

TEST(MergeReductions, MaximaOfRowsAndColumnsAreAPool) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  net.output(reduce(net, "ReduceMax", reduce(net, "ReduceMax", x, 3), 2));
  net.output(reduce(net, "ReduceMin", reduce(net, "ReduceMin", x, 3), 2));
  EXPECT_EQ(merged(net), "GlobalMaxPool ReduceMin");
}

TEST(MergeReductions, LeavesOtherKindsReadersAndAxes) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 4, 5});
  net.output(reduce(net, "ReduceMax", reduce(net, "ReduceMean", x, 3), 2));
  const ValueId read = reduce(net, "ReduceMax", x, 3);
  net.output(read);
  net.output(reduce(net, "ReduceMax", read, 2));
  net.output(reduce(net, "ReduceMax", reduce(net, "ReduceMax", x, 3, 0), 2));  // one of them keeps its axis
  net.output(reduce(net, "ReduceL2", reduce(net, "ReduceL2", x, 3), 2));
  EXPECT_EQ(merged(net), "ReduceMean ReduceMax ReduceMax ReduceMax ReduceMax ReduceMax ReduceL2 ReduceL2");
}

}  // namespace
}  // namespace lathe
