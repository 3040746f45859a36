// lathe::MatMulViews: products that step through transposed operands, against plain loops and the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;
using Perm = std::vector<int64_t>;

// The stored extents behind `logical`, which are taken in the order `perm`.
Dims stored_dims(const Dims& logical, const Perm& perm) {
  Dims stored(logical.size());
  for (size_t i = 0; i < perm.size(); ++i) stored[static_cast<size_t>(perm[i])] = logical[i];
  return stored;
}

Dims taken_in_order(const Dims& dims, const Perm& perm) {
  Dims result;
  for (const int64_t axis : perm) result.push_back(dims[static_cast<size_t>(axis)]);
  return result;
}

// The element of a tensor whose axes are taken in the order `perm` at this logical index.
int64_t offset_of(const Dims& stored, const Perm& perm, const Dims& index) {
  Dims at(stored.size());
  for (size_t i = 0; i < perm.size(); ++i) at[static_cast<size_t>(perm[i])] = index[i];
  int64_t offset = 0;
  for (size_t i = 0; i < stored.size(); ++i) offset = offset * stored[i] + at[i];
  return offset;
}

struct Views {
  Dims batch;
  int64_t m, k, n;
  Perm a, b, y;

  Dims joined(int64_t rows, int64_t columns) const {
    Dims dims = batch;
    dims.insert(dims.end(), {rows, columns});
    return dims;
  }
};

Tensor product_by_loops(const Views& views, const Tensor& a, const Tensor& b) {
  const Dims y_dims = taken_in_order(views.joined(views.m, views.n), views.y);
  Tensor result(DType::f32, y_dims);
  Perm back(views.y.size());
  for (size_t i = 0; i < back.size(); ++i) back[static_cast<size_t>(views.y[i])] = static_cast<int64_t>(i);
  const Dims full = views.joined(views.m, views.n);
  Dims index(full.size(), 0);
  for (int64_t count = result.size(); count > 0; --count) {
    double sum = 0;
    for (int64_t p = 0; p < views.k; ++p) {
      Dims at_a = index, at_b = index;
      at_a.back() = p;
      at_b[at_b.size() - 2] = p;
      sum += double(a.data<float>()[offset_of(a.dims(), views.a, at_a)]) *
             double(b.data<float>()[offset_of(b.dims(), views.b, at_b)]);
    }
    result.mutable_data<float>()[offset_of(y_dims, back, index)] = static_cast<float>(sum);
    for (size_t axis = full.size(); axis-- > 0;) {
      if (++index[axis] < full[axis]) break;
      index[axis] = 0;
    }
  }
  return result;
}

OneNode node_of(const Views& views, std::mt19937& random) {
  OneNode one;
  one.domain = "lathe";
  one.inputs = {random_tensor(stored_dims(views.joined(views.m, views.k), views.a), random),
                random_tensor(stored_dims(views.joined(views.k, views.n), views.b), random)};
  one.is_constant = {false, false};
  return one;
}

Attributes attributes_of(const Views& views) {
  Attributes attributes;
  attributes.set("perm_a", views.a);
  attributes.set("perm_b", views.b);
  attributes.set("perm_y", views.y);
  return attributes;
}

void expect_near(const Tensor& got, const Tensor& expected, int64_t k) {
  ASSERT_EQ(got.dims(), expected.dims());
  const double tolerance = 1.2e-7 * static_cast<double>(k + 8) * std::sqrt(static_cast<double>(k + 1)) * 4;
  for (int64_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got.data<float>()[i], expected.data<float>()[i], tolerance) << "element " << i;
  }
}

// Orders that the kernels can step through: whole rows of A and Y, whole rows or columns of B.
Views random_views(std::mt19937& random, bool is_thin = false) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  Views views;
  const int rank = pick(2, 5);
  for (int i = 0; i + 2 < rank; ++i) views.batch.push_back(pick(1, 4));
  views.m = pick(1, 40);
  views.k = pick(1, 40);
  views.n = pick(1, 70);
  if (is_thin) {
    (pick(0, 1) == 1 ? views.m : views.n) = pick(1, 4);
    views.k = pick(60, 200);
  }
  Perm order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto shuffled = [&] {
    Perm perm = order;
    std::shuffle(perm.begin(), perm.end() - 1, random);
    return perm;
  };
  views.a = shuffled();
  views.b = shuffled();
  views.y = shuffled();
  if (pick(0, 1) == 1) std::swap(views.b[views.b.size() - 1], views.b[views.b.size() - 2]);
  return views;
}

TEST(MatMulViews, MatchesPlainLoopsForAnyOrderOfAxes) {
  std::mt19937 random(20240701);
  for (int round = 0; round < 180; ++round) {
    const Views views = random_views(random, round >= 120);
    OneNode one = node_of(views, random);
    one.make("MatMulViews", 1, attributes_of(views), {0, 0}, 0);
    SCOPED_TRACE("round " + std::to_string(round) + " A " + to_string(one.inputs[0].dims()) + " by " +
                 to_string(views.a) + " B " + to_string(one.inputs[1].dims()) + " by " + to_string(views.b) + " Y by " +
                 to_string(views.y));
    const Tensor expected = product_by_loops(views, one.inputs[0], one.inputs[1]);
    expect_near(one.expected(), expected, views.k);
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(name_of(isa));
      const std::optional<Tensor> got = one.run(isa, 1 + round % 3);
      ASSERT_TRUE(got) << "the reference ran";
      expect_near(*got, expected, views.k);
    }
    if (HasFatalFailure()) return;
  }
}

// (x * mask + row) below 0.25, where mask and row spread into the result as it is stored.
Epilogue masked_sum() {
  Epilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs.assign(3, DType::f32);
  const int x = e.add({ExprOp::input, 0}), mask = e.add({ExprOp::input, 1}), row = e.add({ExprOp::input, 2});
  const int product = e.add({ExprOp::mul, x, mask}), sum = e.add({ExprOp::add, product, row});
  const int high = e.add({.op = ExprOp::constant, .value = 0.25f});
  e.add({ExprOp::min, sum, high});
  epilogue.inputs = 2;
  return epilogue;
}

TEST(MatMulViews, AppliesEpiloguesWhoseOperandsLieAsTheResultDoes) {
  std::mt19937 random(20240702);
  for (int round = 0; round < 120; ++round) {
    const Views views = random_views(random, round >= 60);
    OneNode one = node_of(views, random);
    const Dims y_dims = taken_in_order(views.joined(views.m, views.n), views.y);
    for (int operand = 0; operand < 2; ++operand) {
      Dims dims = y_dims;
      for (int64_t& extent : dims) {
        if (random() % 2 == 0) extent = 1;
      }
      dims.erase(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(random() % dims.size()));
      one.inputs.push_back(random_tensor(dims, random));
      one.is_constant.push_back(false);
    }
    one.make("MatMulViews", 1, attributes_of(views), {0, 0, 0, 0}, 0, masked_sum());
    SCOPED_TRACE("round " + std::to_string(round) + " Y " + to_string(y_dims) + " operands " +
                 to_string(one.inputs[2].dims()) + " and " + to_string(one.inputs[3].dims()));
    const Tensor expected = one.expected();
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(name_of(isa));
      const std::optional<Tensor> got = one.run(isa, 1 + round % 3);
      ASSERT_TRUE(got) << "the reference ran";
      expect_near(*got, expected, views.k);
    }
    if (HasFatalFailure()) return;
  }
}

TEST(MatMulViews, LeavesOrdersThatBreakRowsToTheReference) {
  std::mt19937 random(3);
  for (const int operand : {0, 2}) {
    Views views{{}, 5, 6, 7, {0, 1}, {0, 1}, {0, 1}};
    (operand == 0 ? views.a : views.y) = {1, 0};
    OneNode one = node_of(views, random);
    one.make("MatMulViews", 1, attributes_of(views), {0, 0}, 0);
    EXPECT_FALSE(one.run(Isa::avx2, 1));
    expect_near(one.expected(), product_by_loops(views, one.inputs[0], one.inputs[1]), views.k);
  }
}

}  // namespace
}  // namespace lathe
