// Einsums as matrix products: which ones, and which not.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

struct Case {
  const char* equation;
  Dims a, b;
};

std::string expanded(const Case& given, bool is_constant = false) {
  PassNet net;
  const ValueId a = net.input(given.a), b = is_constant ? net.weights(given.b) : net.input(given.b);
  net.output(net.op("Einsum", {a, b}, {{"equation", std::string(given.equation)}}));
  return ops_of(rewritten(net, {passes::expand_einsum, passes::fold_constants}));
}

TEST(ExpandEinsum, ProductsOfMatricesAndOfStacksOfThem) {
  EXPECT_EQ(expanded({"ik,kj->ij", {3, 4}, {4, 5}}), "MatMul");
  EXPECT_EQ(expanded({"bhlt, bhtv -> bhlv", {2, 3, 4, 5}, {2, 3, 5, 6}}), "MatMul");
  EXPECT_EQ(expanded({"B G H I D, B G H J D -> B G H I J", {1, 2, 3, 4, 5}, {1, 2, 3, 6, 5}}), "Transpose MatMul");
}

TEST(ExpandEinsum, TurnsStacksOfAnyOrder) {
  EXPECT_EQ(expanded({"ibnd,jbnd->bnij", {4, 2, 3, 5}, {6, 2, 3, 5}}), "Transpose Transpose MatMul");
  EXPECT_EQ(expanded({"bnij,jbnd->ibnd", {2, 3, 4, 6}, {6, 2, 3, 5}}), "Transpose MatMul Transpose");
  EXPECT_EQ(expanded({"kia,jka->ija", {4, 3, 2}, {5, 4, 2}}), "Transpose Transpose MatMul Transpose");
}

TEST(ExpandEinsum, WeightsOfSeveralAxesAreOneMatrix) {
  EXPECT_EQ(expanded({"ibh,hnd->ibnd", {4, 2, 6}, {6, 3, 5}}, true), "MatMul Reshape");
  EXPECT_EQ(expanded({"ibnd,hnd->ibh", {4, 2, 3, 5}, {6, 3, 5}}, true), "Reshape MatMul");
  EXPECT_EQ(expanded({"bld,dk->blk", {2, 3, 4}, {4, 5}}, true), "MatMul");
}

TEST(ExpandEinsum, LeavesOtherSumsDiagonalsAndBroadcasts) {
  EXPECT_EQ(expanded({"i,j->ij", {3}, {4}}), "Einsum");
  EXPECT_EQ(expanded({"ik,kj->j", {3, 4}, {4, 5}}), "Einsum");
  EXPECT_EQ(expanded({"ii,ij->ij", {3, 3}, {3, 5}}), "Einsum");
  EXPECT_EQ(expanded({"...ik,...kj->...ij", {2, 3, 4}, {2, 4, 5}}), "Einsum");
  EXPECT_EQ(expanded({"bik,bkj->bij", {2, 3, 4}, {1, 4, 5}}), "Einsum");
  EXPECT_EQ(expanded({"bhwc,hkc->bhwk", {2, 3, 4, 5}, {3, 6, 5}}), "Einsum");
  EXPECT_EQ(expanded({"ij,ij->ij", {3, 4}, {3, 4}}), "Einsum");
}

// --- several operands

std::string split(const std::string& equation, const std::vector<Dims>& operands) {
  PassNet net;
  std::vector<ValueId> inputs;
  for (const Dims& dims : operands) inputs.push_back(net.input(dims));
  net.output(net.op("Einsum", inputs, {{"equation", equation}}));
  return ops_of(rewritten(net, {passes::split_einsum}));
}

TEST(SplitEinsum, JoinsTheCheapestPairFirst) {
  EXPECT_EQ(split("bhnd,bhde,bhn->bhne", {{1, 2, 30, 8}, {1, 2, 8, 9}, {1, 2, 30}}), "Unsqueeze Mul Einsum");
  EXPECT_EQ(split("nth,nhd,tn->td", {{8, 4, 16}, {8, 16, 12}, {4, 8}}), "Transpose Unsqueeze Mul Einsum");
  EXPECT_EQ(split("ij,jk,kl->il", {{30, 20}, {20, 2}, {2, 30}}), "Einsum Einsum");
}

TEST(SplitEinsum, SumsAlongAxesOfOneOperandFirst) {
  EXPECT_EQ(split("ik,kj->j", {{3, 4}, {4, 5}}), "ReduceSum Einsum");
  EXPECT_EQ(split("ijk->ji", {{3, 4, 5}}), "ReduceSum Transpose");
}

TEST(SplitEinsum, MultipliesWhatIsNotSummed) {
  EXPECT_EQ(split("ij,ij->ij", {{3, 4}, {3, 4}}), "Mul");
  EXPECT_EQ(split("i,j->ij", {{3}, {4}}), "Unsqueeze Unsqueeze Mul");
  EXPECT_EQ(split("bij,j->bji", {{2, 3, 4}, {4}}), "Transpose Unsqueeze Mul");
}

TEST(SplitEinsum, LeavesProductsDiagonalsAndBroadcasts) {
  EXPECT_EQ(split("ik,kj->ij", {{3, 4}, {4, 5}}), "Einsum");
  EXPECT_EQ(split("ij->ji", {{3, 4}}), "Einsum");
  EXPECT_EQ(split("ii,ij->ij", {{3, 3}, {3, 5}}), "Einsum");
  EXPECT_EQ(split("bi,bi->bi", {{2, 3}, {1, 3}}), "Einsum");
  EXPECT_EQ(split("...i,...i->...i", {{2, 3}, {2, 3}}), "Einsum");
}

}  // namespace
}  // namespace lathe
