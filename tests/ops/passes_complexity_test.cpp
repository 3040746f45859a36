// What all passes together look at grows as the graph does: counted in uses of values, on graphs where many nodes read
// one value.
#include "graph/passes/rewrite.h"
#include "graph/pipeline.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::PassNet;

// x + x, so many times, into one long sum.
void sum_of_equals(PassNet& net, int count) {
  const ValueId x = net.input(Dims{4, 8});
  ValueId sum = x;
  for (int i = 0; i < count; ++i) sum = net.op("Add", {sum, net.op("Add", {x, x})});
  net.output(net.op("Relu", {sum}));
}

// One value in every second node of a chain.
void chain_over_one(PassNet& net, int count) {
  const ValueId x = net.input(Dims{4, 8}), wide = net.op("Exp", {x});
  ValueId value = x;
  for (int i = 0; i < count; ++i) value = net.op("Sigmoid", {net.op("Mul", {value, wide})});
  net.output(value);
}

// One value by many factors, then all of them together.
void fan(PassNet& net, int count) {
  const ValueId x = net.op("Tanh", {net.input(Dims{4, 8})});
  std::vector<ValueId> parts;
  for (int i = 0; i < count; ++i) parts.push_back(net.op("Mul", {x, net.scalar(static_cast<float>(i))}));
  net.output(net.op("Concat", parts, {{"axis", int64_t{0}}}));
}

// Convolutions of one picture, added up.
void sum_of_convolutions(PassNet& net, int count) {
  const ValueId x = net.op("Relu", {net.input(Dims{1, 4, 5, 5})});
  ValueId sum = x;
  for (int i = 0; i < count; ++i) sum = net.op("Add", {sum, net.conv(x, {4, 4, 1, 1})});
  net.output(sum);
}

int64_t uses_read(void (*build)(PassNet&, int), int count) {
  PassNet net;
  build(net, count);
  const Limits limits;
  const PassContext context{OpRegistry::builtin(), limits, 16};
  infer_types(net.graph, limits);
  const int64_t before = Rewriter::uses_read();
  for (const auto* passes : {&load_passes(), &bind_passes(), &specialize_passes()})
    run_passes(net.graph, *passes, context, 99, {});
  return Rewriter::uses_read() - before;
}

TEST(PassesComplexity, GrowsAsTheGraphDoes) {
  for (const auto build : {sum_of_equals, chain_over_one, fan, sum_of_convolutions}) {
    const int64_t some = uses_read(build, 300), more = uses_read(build, 1200);
    EXPECT_GT(some, 0);
    EXPECT_LT(more, 6 * some) << "for four times as many nodes";
  }
}

TEST(PassesComplexity, AsksAWideValueAtNoCost) {
  PassNet net;
  const ValueId x = net.input(Dims{4});
  for (int i = 0; i < 1000; ++i) net.output(net.op("Relu", {x}));
  Rewriter rewriter(net.graph);
  const int64_t before = Rewriter::uses_read();
  for (const NodeId id : net.graph.order()) {
    EXPECT_FALSE(rewriter.has_one_use(x));
    EXPECT_EQ(rewriter.only_user(x), NodeId::none);
    EXPECT_TRUE(rewriter.is_used(x));
    EXPECT_FALSE(rewriter.all_users(x, [id](NodeId user) { return user == id; }));
  }
  EXPECT_LT(Rewriter::uses_read() - before, 10000);
}

TEST(PassesComplexity, ForgetsUsesThatAreGone) {
  PassNet net;
  const ValueId x = net.input(Dims{4});
  for (int i = 0; i < 1000; ++i) net.op("Relu", {x});
  net.output(net.op("Neg", {x}));
  Rewriter rewriter(net.graph);
  const NodeId last = net.graph.order().back();
  const int64_t before = Rewriter::uses_read();
  for (const NodeId id : std::vector<NodeId>(net.graph.order())) {
    EXPECT_TRUE(rewriter.is_used(x));
    if (id != last) rewriter.erase(id);
  }
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(rewriter.only_user(x), last);
  EXPECT_LT(Rewriter::uses_read() - before, 10000);
  EXPECT_TRUE(rewriter.has_one_use(x));
  EXPECT_EQ(rewriter.uses(x).size(), 1U);
}

}  // namespace
}  // namespace lathe
