#include "tools/prove.h"

#include <gtest/gtest.h>

#include "graph/pipeline.h"
#include "tests/ops/pass_net.h"

namespace lathe::tools {
namespace {

ProofOptions one_thread() {
  ProofOptions options;
  options.session.threads = 1;
  options.session.use_cache = false;
  return options;
}

TEST(Prove, RunsWithoutEachPassAndInOtherOrders) {
  testing::PassNet net;
  const ValueId y = net.op("Add", {net.op("MatMul", {net.input(Dims{4, 8}), net.weights({8, 8})}), net.weights({8})});
  net.output(net.op("Mul", {y, net.op("Sigmoid", {y})}));
  ProofOptions options = one_thread();
  options.orders = 3;
  const Proof proof = prove_passes(net.graph, {net.noise({4, 8})}, options);
  EXPECT_TRUE(proof.departures.empty()) << proof.departures.front();
  EXPECT_GT(proof.runs, 5);
  EXPECT_GT(proof.runs + proof.idle, static_cast<int>(load_passes().size()) + 3);
}

TEST(Prove, NamesWhatDeparts) {
  testing::PassNet net;
  // Folded into one factor the rounding is another, as it is in a sum of many.
  const ValueId product = net.op("MatMul", {net.input(Dims{20, 300}), net.weights({300, 40})});
  net.output(net.op("Mul", {net.op("Mul", {product, net.scalar(1.1f)}), net.scalar(0.7f)}));
  ProofOptions options = one_thread();
  options.tolerance = 0;
  const Proof proof = prove_passes(net.graph, {net.noise({20, 300})}, options);
  ASSERT_FALSE(proof.departures.empty());
  EXPECT_EQ(proof.departures[0].substr(0, 17), "with all passes: ");
}

TEST(Prove, LeavesWhatIsRandomAlone) {
  testing::PassNet net;
  net.output(net.op("RandomUniformLike", {net.input(Dims{4, 8})}));
  EXPECT_TRUE(prove_passes(net.graph, {net.noise({4, 8})}, one_thread()).is_random);
}

}  // namespace
}  // namespace lathe::tools
