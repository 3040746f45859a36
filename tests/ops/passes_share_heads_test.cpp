// Keys and values that exporters spread over the heads that share them.
#include <algorithm>

#include "graph/passes/rewrite.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

constexpr int64_t kBatch = 2, kShared = 3, kGroup = 4, kHeads = kShared * kGroup, kSize = 8, kKeys = 5;

struct Case {
  int64_t queries = 6;
  Dims mask = {kBatch, 1, 6, kKeys};  // empty: none
  bool is_stored_by_rows = false;     // queries and results as [batch, rows, heads * size]
  bool are_spread_last = false;       // K and V as [batch, keys, heads, size], then in order
};

// [batch, shared, keys, size] or [batch, keys, shared, size], over all heads.
ValueId spread(PassNet& net, const Case& c) {
  const int64_t axis = c.are_spread_last ? 3 : 2;
  const Dims dims = c.are_spread_last ? Dims{kBatch, kKeys, kShared, kSize} : Dims{kBatch, kShared, kKeys, kSize};
  const ValueId apart = net.op("Unsqueeze", {net.input(dims), net.integers({axis})});
  const std::vector<int64_t> shape = c.are_spread_last ? std::vector<int64_t>{kBatch, kKeys, kShared, kGroup, kSize}
                                                       : std::vector<int64_t>{kBatch, kShared, kGroup, kKeys, kSize};
  const ValueId expanded = net.op("Expand", {apart, net.integers(shape)});
  if (!c.are_spread_last) return net.reshape(expanded, {kBatch, kHeads, kKeys, kSize});
  return net.transpose(net.reshape(expanded, {kBatch, kKeys, kHeads, kSize}), {0, 2, 1, 3});
}

Graph shared(PassNet& net, const Case& c, bool spreads_values = true) {
  ValueId q = ValueId::none;
  if (c.is_stored_by_rows) {
    const ValueId joined = net.op("MatMul", {net.input(Dims{kBatch, c.queries, 7}), net.weights({7, kHeads * kSize})});
    q = net.transpose(net.reshape(joined, {kBatch, c.queries, kHeads, kSize}), {0, 2, 1, 3});
  } else {
    q = net.input(Dims{kBatch, kHeads, c.queries, kSize});
  }
  const ValueId k = net.transpose(spread(net, c), {0, 1, 3, 2});
  const ValueId v = spreads_values ? spread(net, c) : net.input(Dims{kBatch, kHeads, kKeys, kSize});
  ValueId scores = net.op("Mul", {net.op("MatMul", {q, k}), net.scalar(0.3F)});
  if (!c.mask.empty()) scores = net.op("Add", {scores, net.input(c.mask)});
  ValueId y = net.op("MatMul", {net.op("Softmax", {scores}, {{"axis", int64_t{-1}}}), v});
  if (c.is_stored_by_rows) {
    y = net.reshape(net.transpose(y, {0, 2, 1, 3}), {kBatch, c.queries, kHeads * kSize});
  }
  net.output(y);
  return rewritten(net, {passes::remove_identities, passes::absorb_transposes, passes::fuse_epilogue,
                         passes::fuse_attention, passes::remove_dead, passes::share_heads, passes::remove_dead});
}

bool has_op(const Graph& graph, std::string_view op) {
  return std::any_of(graph.order().begin(), graph.order().end(),
                     [&](NodeId id) { return graph.node(id).op->name == op; });
}

TEST(ShareHeads, ReadsSharedKeysAndValuesOnce) {
  for (const bool is_stored_by_rows : {false, true}) {
    for (const bool are_spread_last : {false, true}) {
      for (const int64_t queries : {1, 6}) {
        const Dims masks[] = {{},
                              {queries, kKeys},
                              {kBatch, 1, 1, kKeys},
                              {kBatch, 1, queries, kKeys},
                              {1, kHeads, queries, kKeys},
                              {kHeads, 1, kKeys}};
        for (const Dims& mask : masks) {
          PassNet net;
          const Graph after = shared(net, {queries, mask, is_stored_by_rows, are_spread_last});
          SCOPED_TRACE(ops_of(after) + " mask " + to_string(mask));
          EXPECT_FALSE(has_op(after, "Expand"));
          for (const NodeId id : after.order()) {
            const Node& node = after.node(id);
            if (!is_lathe_op(node, "Attention")) continue;
            // The heads of a group are rows where there is one query.
            EXPECT_EQ(after.value(node.inputs[1]).type.rank(), queries == 1 ? 4 : 5);
          }
        }
      }
    }
  }
}

TEST(ShareHeads, LeavesKeysWhoseValuesAreTheirOwn) {
  PassNet net;
  EXPECT_TRUE(has_op(shared(net, {}, false), "Expand"));
}

}  // namespace
}  // namespace lathe
