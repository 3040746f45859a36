// Loops of a few known iterations, and those that must stay loops.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

// state' = state * 0.5 + number of the iteration; the state before is a row of the scan output.
std::shared_ptr<const Graph> halving_body(bool ends_early = false) {
  PassNet body;
  const ValueId trip = body.input(TensorType::of(DType::i64, {}));
  const ValueId goes_on = body.input(TensorType::of(DType::boolean, {}));
  const ValueId state = body.input(TensorType::unranked(DType::f32));
  const ValueId number = body.op("Cast", {trip}, {{"to", int64_t{1}}});
  const ValueId next = body.op("Add", {body.op("Mul", {state, body.scalar(0.5f)}), number});
  const ValueId limit = body.constant(Tensor::scalar<int64_t>(1));
  body.output(ends_early ? body.op("Less", {trip, limit}) : body.op("Identity", {goes_on}));
  body.output(next);
  body.output(state);
  return std::make_shared<const Graph>(std::move(body.graph));
}

std::vector<ValueId> loop(PassNet& net, ValueId trips, ValueId condition, ValueId state,
                          const std::shared_ptr<const Graph>& body) {
  return net.op("Loop", {trips, condition, state}, 2, {{"body", body}});
}
std::string unrolled(PassNet& net) { return ops_of(rewritten(net, {passes::unroll_loops})); }

TEST(UnrollLoops, WritesOutAFewIterationsAndStacksTheirRows) {
  PassNet net;
  const ValueId trips = net.constant(Tensor::scalar<int64_t>(2)), go = net.constant(Tensor::scalar(true));
  const std::vector<ValueId> results = loop(net, trips, go, net.input(Dims{3}), halving_body());
  net.output(results[0]);
  net.output(net.op("Relu", {results[1]}));
  const std::string ops = unrolled(net);
  EXPECT_EQ(ops.find("Loop"), std::string::npos) << ops;
  EXPECT_NE(ops.find("Unsqueeze Unsqueeze Concat"), std::string::npos) << ops;
}

TEST(UnrollLoops, NeedsNoConditionAndOneIterationIsEnough) {
  PassNet net;
  const ValueId trips = net.integers({1});
  net.output(loop(net, trips, ValueId::none, net.input(Dims{2, 2}), halving_body())[0]);
  EXPECT_EQ(unrolled(net).find("Loop"), std::string::npos);
}

TEST(UnrollLoops, LeavesLoopsThatMayEndEarlyOrNeverBeginOrAreLong) {
  PassNet net;
  const ValueId go = net.constant(Tensor::scalar(true)), stop = net.constant(Tensor::scalar(false));
  const auto count = [&](int64_t trips) { return net.constant(Tensor::scalar<int64_t>(trips)); };
  net.output(loop(net, count(3), go, net.input(Dims{3}), halving_body(true))[0]);
  net.output(loop(net, count(3), stop, net.input(Dims{3}), halving_body())[0]);
  net.output(loop(net, count(0), go, net.input(Dims{3}), halving_body())[0]);
  net.output(loop(net, count(100), go, net.input(Dims{3}), halving_body())[0]);
  EXPECT_EQ(unrolled(net), "Loop Loop Loop Loop");
}

TEST(UnrollLoops, LeavesACountThatIsNotKnown) {
  PassNet net;
  const ValueId x = net.input(Dims{3});
  const ValueId rows =
      net.op("Gather", {net.op("Shape", {net.op("NonZero", {x})}), net.constant(Tensor::scalar<int64_t>(1))});
  net.output(loop(net, rows, ValueId::none, x, halving_body())[0]);
  EXPECT_NE(unrolled(net).find("Loop"), std::string::npos);
}

}  // namespace
}  // namespace lathe
