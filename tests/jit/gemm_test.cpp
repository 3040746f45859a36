#include "jit/kernels/gemm/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::isas_here;

// Floats that end where an unreadable page begins.
class GuardedFloats {
 public:
  explicit GuardedFloats(size_t count) : count_(count) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    body_ = (count * sizeof(float) + page - 1) / page * page;
    mapped_ = body_ + page;
    memory_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory_ + body_, page, PROT_NONE);
  }
  ~GuardedFloats() { munmap(memory_, mapped_); }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;
  float* data() { return reinterpret_cast<float*>(memory_ + body_) - count_; }
  size_t size() const { return count_; }
  float& operator[](size_t i) { return data()[i]; }

 private:
  size_t count_, body_, mapped_;
  char* memory_;
};

struct TileCase {
  GemmTilePlan plan;
  int64_t k = 0, tiles = 1, tail_lanes = 0, gap = 0;  // gap: elements between rows
  int64_t fetch_left = 0;
  bool rows_together = false;  // A's chunks are of all tiles' rows
};

std::ostream& operator<<(std::ostream& out, const TileCase& test) {
  return out << test.plan.key() << " k=" << test.k << " tiles=" << test.tiles << " tail=" << test.tail_lanes
             << " gap=" << test.gap << (test.rows_together ? " rows together" : "");
}

// The tile's operands, each ending at a guard page, and the product by plain loops.
class TileBench {
 public:
  explicit TileBench(const TileCase& test, unsigned seed)
      : test_(test),
        lanes_(vector_lanes(test.plan.isa)),
        rows_(test.plan.rows * test.tiles),
        columns_((test.plan.vecs - (test.plan.masked ? 1 : 0)) * lanes_ + test.tail_lanes),
        a_stride_(test.k + test.gap),
        c_stride_(columns_ + test.gap),
        b_stride_(test.plan.b_in_place ? columns_ + test.gap : test.plan.vecs * lanes_),
        a_(span_of(rows_, a_stride_, test.k)),
        b_(span_of(test.plan.b_sign != 0 ? 2 * test.k : test.k, b_stride_,
                   test.plan.b_in_place ? columns_ : b_stride_)),
        c_(span_of(rows_, c_stride_, columns_)),
        residual_(c_.size()),
        bias_(static_cast<size_t>(columns_)),
        random_(seed) {
    for (GuardedFloats* floats : {&a_, &b_, &c_, &residual_, &bias_}) {
      for (size_t i = 0; i < floats->size(); ++i) (*floats)[i] = std::uniform_real_distribution<float>(-1, 1)(random_);
    }
    for (size_t i = 0; i < c_.size(); ++i) before_.push_back(c_[i]);
  }

  void run(const GemmTile& kernel) {
    GemmTileArgs args = {};
    args.a = test_.plan.a_in_chunks ? a_in_chunks() : a_.data();
    args.b = b_.data();
    args.c = c_.data();
    args.k = test_.k;
    args.tiles = test_.tiles;
    args.a_stride_bytes = a_stride_ * 4;
    args.b_stride_bytes = b_stride_ * 4;
    args.c_stride_bytes = c_stride_ * 4;
    args.prefetch = b_.data();
    args.tail_lanes = test_.tail_lanes;
    args.inputs[0] = bias_.data();
    args.inputs[1] = residual_.data();
    args.input_stride_bytes[1] = c_stride_ * 4;
    args.inputs[2] = bias_.data();
    args.input_stride_bytes[2] = columns_ >= rows_ ? 4 : 0;
    args.b_second_bytes = test_.k * b_stride_ * 4;
    args.c_vector_bytes = vector_stride() * 4;
    args.fetch = c_.data();
    args.fetch_left = test_.fetch_left;
    args.fetch_stride_bytes = c_stride_ * 4;
    if (test_.plan.a_in_chunks) {
      args.a_stride_bytes = (test_.rows_together ? lanes_ : test_.k) * 4;
      args.a_chunk_bytes = (test_.rows_together ? rows_ : test_.plan.rows) * lanes_ * 4;
    }
    if (test_.plan.apart) args.c_stride_bytes = lanes_ * 4;
    for (int i = 1; i < test_.plan.fold_count(); ++i) {
      more_.push_back(std::make_unique<GuardedFloats>(c_.size()));
      for (size_t at = 0; at < c_.size(); ++at) (*more_.back())[at] = before_[at];
      args.inputs[i - 1] = more_.back()->data();
      args.input_stride_bytes[i - 1] = args.c_stride_bytes;
    }
    for (size_t i = 0; i < GemmTilePlan::kMostFolds; ++i) {
      if (!test_.plan.completes[i]) continue;
      const float* matrix = i == 0 ? args.c : args.inputs[i - 1];
      args.alike_bytes[0] = completes_one() ? (residual_.data() - matrix) * 4 : 0;
      args.fold_inputs[i][1] = bias_.data();
      args.fold_inputs[i][2] = bias_.data();
    }
    kernel(&args);
    const int64_t fetched = std::min(test_.fetch_left, test_.plan.fetch_rows * test_.tiles);
    ASSERT_EQ(args.fetch - c_.data(), fetched * c_stride_);
  }

  // The further matrices that the product was folded into.
  void check_more() {
    for (size_t number = 0; number < more_.size(); ++number) {
      for (size_t i = 0; i < c_.size(); ++i) {
        const float after = (*more_[number])[i];
        const auto [row, column] = place_of(static_cast<int64_t>(i));
        if (column >= columns_) {
          ASSERT_EQ(after, before_[i]) << "written between rows " << row << " and " << row + 1;
          continue;
        }
        auto [sum, magnitude] = product(row, column);
        if (test_.plan.folds[0] == GemmFold::take) sum += before_[i];
        sum = folded(test_.plan.folds[number + 1], before_[i], sum);
        if (test_.plan.completes[number + 1]) sum = completed(sum, i, column);
        ASSERT_NEAR(after, sum, tolerance(magnitude))
            << "matrix " << number + 2 << " row " << row << " column " << column;
      }
    }
  }

  // max |error| over the bound k * eps * sum |a * b|; and that nothing else was written.
  void check() {
    for (size_t i = 0; i < c_.size(); ++i) {
      const auto [row, column] = place_of(static_cast<int64_t>(i));
      if (column >= columns_) {
        ASSERT_EQ(c_[i], before_[i]) << "written between rows " << row << " and " << row + 1;
        continue;
      }
      auto [sum, magnitude] = product(row, column);
      if (test_.plan.accumulate) sum += before_[i];
      sum = folded(test_.plan.folds[0], before_[i], sum);
      if (test_.plan.completes[0]) sum = completed(sum, i, column);
      if (test_.plan.epilogue && !test_.plan.folds_product()) {
        const float uniform = bias_[columns_ >= rows_ ? static_cast<size_t>(row) : 0];
        const float inputs[] = {static_cast<float>(sum), bias_[static_cast<size_t>(column)], residual_[i], uniform};
        sum = evaluate(test_.plan.epilogue->expression, inputs);
      }
      ASSERT_NEAR(c_[i], sum, tolerance(magnitude)) << "row " << row << " column " << column;
    }
  }

 private:
  const float* a_in_chunks() {
    const int64_t height = test_.plan.rows;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t k = 0; k < test_.k; ++k) {
        const int64_t chunk = row / height * (test_.k / lanes_) + k / lanes_;
        const int64_t place = test_.rows_together ? k / lanes_ * rows_ + row : chunk * height + row % height;
        chunks_.resize(static_cast<size_t>(rows_ * test_.k));
        chunks_[static_cast<size_t>(place * lanes_ + k % lanes_)] = a_[static_cast<size_t>(row * a_stride_ + k)];
      }
    }
    return chunks_.data();
  }
  // Apart: column vectors of all rows, one behind the other, gap or not.
  int64_t vector_stride() const { return test_.plan.apart ? rows_ * lanes_ : lanes_; }
  std::pair<int64_t, int64_t> place_of(int64_t i) const {
    if (!test_.plan.apart) return {i / c_stride_, i % c_stride_};
    const int64_t vector = i / vector_stride();
    if (vector >= test_.plan.vecs) return {0, columns_};
    return {i % vector_stride() / lanes_, vector * lanes_ + i % lanes_};
  }

  // Of one element: the sum, and the sum of magnitudes.
  std::pair<double, double> product(int64_t row, int64_t column) {
    double sum = 0, magnitude = 1;
    for (int64_t k = 0; k < test_.k; ++k) {
      double b = b_[static_cast<size_t>(k * b_stride_ + column)];
      if (test_.plan.b_sign != 0) {
        b += test_.plan.b_sign * double(b_[static_cast<size_t>((test_.k + k) * b_stride_ + column)]);
      }
      const double term = double(a_[static_cast<size_t>(row * a_stride_ + k)]) * b;
      sum += term;
      magnitude += std::abs(term);
    }
    return {sum, magnitude};
  }
  static double folded(GemmFold fold, double before, double product) {
    if (fold == GemmFold::take) return before;
    return fold == GemmFold::add ? before + product : fold == GemmFold::subtract ? before - product : product;
  }
  bool completes_one() const { return std::count(test_.plan.completes.begin(), test_.plan.completes.end(), true) == 1; }
  // Of several matrices each is alike to itself, as it was before.
  double completed(double sum, size_t i, int64_t column) {
    const float inputs[] = {static_cast<float>(sum), completes_one() ? residual_[i] : before_[i],
                            bias_[static_cast<size_t>(column)], bias_[0]};
    return evaluate(test_.plan.epilogue->expression, inputs);
  }
  double tolerance(double magnitude) const { return static_cast<double>(test_.k + 8) * 1.2e-7 * magnitude * 4; }

  // The last row needs no gap behind it.
  static size_t span_of(int64_t rows, int64_t stride, int64_t columns) {
    return static_cast<size_t>(rows == 0 ? 0 : (rows - 1) * stride + columns);
  }

  const TileCase test_;
  const int64_t lanes_, rows_, columns_, a_stride_, c_stride_, b_stride_;
  GuardedFloats a_, b_, c_, residual_, bias_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<GuardedFloats>> more_;
  std::vector<float> chunks_, before_;
};

GemmEpilogue bias_residual_gelu(bool long_form) {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32, DType::f32, DType::f32, DType::f32};
  const auto input = [&](int i) { return e.add({ExprOp::input, i}); };
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  int x = e.add({ExprOp::add, input(0), input(1)});
  x = e.add({ExprOp::add, x, input(2)});
  x = e.add({ExprOp::mul, x, input(3)});
  if (long_form) {
    const int erf = e.add({ExprOp::erf, e.add({ExprOp::mul, x, constant(0.70710678f)})});
    e.add({ExprOp::mul, e.add({ExprOp::mul, x, constant(0.5f)}), e.add({ExprOp::add, erf, constant(1)})});
  } else {
    e.add({ExprOp::max, x, constant(0)});
  }
  epilogue.inputs = {GemmInputAccess::columns, GemmInputAccess::columns, GemmInputAccess::uniform};
  return epilogue;
}

class GemmTileTest : public ::testing::TestWithParam<Isa> {};

TEST_P(GemmTileTest, MatchesPlainLoopsOverRandomShapes) {
  std::mt19937 random(20240611);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  int tried = 0;
  for (int round = 0; round < 3000 && tried < 250; ++round) {
    TileCase test;
    test.plan.isa = GetParam();
    const int lanes = vector_lanes(GetParam());
    test.plan.rows = pick(1, 30);
    test.plan.vecs = pick(1, 14);
    test.plan.k_unroll = pick(1, 4);
    test.plan.prefetch_lines = pick(0, 3);
    test.plan.embed_broadcast = pick(0, 3) == 0;
    test.plan.accumulate = pick(0, 1);
    test.plan.masked = pick(0, 1);
    test.plan.b_in_place = pick(0, 1);
    if (pick(0, 2) == 0) test.plan.epilogue = bias_residual_gelu(pick(0, 1));
    test.k = pick(0, 40);
    test.tiles = pick(1, 3);
    test.tail_lanes = test.plan.masked ? pick(1, lanes - 1) : 0;
    test.gap = pick(0, 1) * pick(1, 20);
    if (!test.plan.is_valid()) continue;
    SCOPED_TRACE(::testing::PrintToString(test));
    TileBench bench(test, random());
    bench.run(gemm_tile(test.plan));
    bench.check();
    if (HasFatalFailure()) return;
    ++tried;
  }
  EXPECT_GE(tried, 200);
}

TEST_P(GemmTileTest, TakesAsThereAreRowsOfAWithoutAProduct) {
  const int64_t lanes = vector_lanes(GetParam());
  for (const int64_t tail : {int64_t{0}, int64_t{1}, lanes - 3}) {
    GemmTilePlan plan;
    plan.isa = GetParam();
    plan.rows = 3;
    plan.vecs = 2;
    plan.starts_at_a = true;
    plan.masked = tail > 0;
    plan.accumulate = tail != 1;
    const int64_t tiles = 2, rows = 3 * tiles, columns = tail > 0 ? lanes + tail : 2 * lanes;
    const int64_t a_stride = columns + 5, c_stride = columns + 9;
    GuardedFloats a(static_cast<size_t>((rows - 1) * a_stride + columns)),
        c(static_cast<size_t>((rows - 1) * c_stride + columns));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
    for (size_t i = 0; i < c.size(); ++i) c[i] = -1;
    GemmTileArgs args = {};
    args.a = args.b = a.data();
    args.c = c.data();
    args.tiles = tiles;
    args.a_stride_bytes = a_stride * 4;
    args.c_stride_bytes = c_stride * 4;
    args.tail_lanes = tail;
    gemm_tile(plan)(&args);
    for (size_t i = 0; i < c.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / c_stride, column = static_cast<int64_t>(i) % c_stride;
      const float before = column < columns && !plan.accumulate ? 0 : -1;
      const float taken = column < columns ? a[static_cast<size_t>(row * a_stride + column)] : 0;
      ASSERT_EQ(c[i], before + taken) << row << ' ' << column;
    }
  }
}

// max(x0 + x1 * sigmoid(x2), x3), with registers to spare or not.
GemmEpilogue alike_columns_uniform() {
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs.assign(4, DType::f32);
  const auto input = [&](int i) { return e.add({ExprOp::input, i}); };
  const int gate = e.add({ExprOp::sigmoid, input(2)});
  const int sum = e.add({ExprOp::add, input(0), e.add({ExprOp::mul, input(1), gate})});
  e.add({ExprOp::max, sum, input(3)});
  epilogue.inputs = {GemmInputAccess::alike, GemmInputAccess::columns, GemmInputAccess::uniform};
  return epilogue;
}

// Some of the matrices or none.
void complete_some(GemmTilePlan& plan, std::mt19937& random) {
  for (size_t i = 0; i < static_cast<size_t>(plan.fold_count()); ++i) {
    plan.completes[i] = plan.folds[i] != GemmFold::take && random() % 3 == 0;
    if (plan.completes[i]) plan.epilogue = alike_columns_uniform();
  }
}

TEST_P(GemmTileTest, FoldsTheProductIntoOneOrSeveralMatrices) {
  std::mt19937 random(20250102);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (int round = 0; round < 80; ++round) {
    TileCase test;
    test.plan.isa = GetParam();
    test.plan.rows = pick(1, GetParam() == Isa::avx2 ? 4 : 6);
    test.plan.vecs = pick(1, GetParam() == Isa::avx2 ? 2 : 4);
    test.plan.prefetch_lines = pick(0, 1);
    const int count = pick(1, GemmTilePlan::kMostFolds);
    for (int i = 0; i < count; ++i) {
      static constexpr GemmFold kFolds[] = {GemmFold::set, GemmFold::add, GemmFold::subtract};
      test.plan.folds[static_cast<size_t>(i)] = kFolds[pick(0, 2)];
    }
    if (pick(0, 2) == 0) test.plan.folds[0] = GemmFold::take;
    test.plan.apart = pick(0, 1);
    test.plan.b_sign = pick(-1, 1);
    test.plan.fetches_folds = pick(0, 1);
    complete_some(test.plan, random);
    test.k = pick(0, 40);
    if (pick(0, 1) == 1) {
      test.plan.a_in_chunks = true;
      test.plan.k_unroll = vector_lanes(GetParam());
      test.k = int64_t{pick(1, 3)} * vector_lanes(GetParam());
      test.plan.fetch_rows = pick(0, 3);
      test.plan.fetch_matrices = pick(1, 3);
      test.fetch_left = pick(0, 8);
      test.rows_together = pick(0, 1);
    }
    test.tiles = pick(1, 3);
    test.gap = pick(0, 1) * pick(1, 20);
    SCOPED_TRACE(::testing::PrintToString(test));
    TileBench bench(test, random());
    bench.run(gemm_tile(test.plan));
    bench.check();
    bench.check_more();
    if (HasFatalFailure()) return;
  }
}

TEST_P(GemmTileTest, HasAnEpilogueOfFoldsWhereOneCompletesAMatrixOnly) {
  GemmTilePlan plan;
  plan.isa = GetParam();
  plan.folds = {GemmFold::take, GemmFold::add};
  EXPECT_TRUE(plan.is_valid());
  plan.epilogue = alike_columns_uniform();
  EXPECT_FALSE(plan.is_valid());
  plan.completes[1] = true;
  EXPECT_TRUE(plan.is_valid());
  plan.completes[0] = true;
  EXPECT_FALSE(plan.is_valid());
  plan.completes = {false, false, true};
  EXPECT_FALSE(plan.is_valid());
  plan = GemmTilePlan();
  plan.isa = GetParam();
  plan.epilogue = alike_columns_uniform();
  EXPECT_FALSE(plan.is_valid());
}

TEST_P(GemmTileTest, RefusesPlansOverTheRegisterBudget) {
  GemmTilePlan plan;
  plan.isa = GetParam();
  plan.rows = vector_registers(GetParam());
  EXPECT_THROW(gemm_tile(plan), JitError);
  plan.rows = 0;
  EXPECT_THROW(gemm_tile(plan), JitError);
}

TEST_P(GemmTileTest, AdvancesThePrefetchPointerByItsShare) {
  TileCase test;
  test.plan.isa = GetParam();
  test.plan.rows = 4;
  test.plan.vecs = 2;
  test.plan.prefetch_lines = 2;
  std::vector<float> a(4 * 8 * 3), b(8 * 32), c(4 * 32 * 3);
  GemmTileArgs args = {};
  args.a = a.data();
  args.b = b.data();
  args.c = c.data();
  args.k = 8;
  args.tiles = 3;
  args.a_stride_bytes = 8 * 4;
  args.c_stride_bytes = 32 * 4;
  args.prefetch = b.data();
  gemm_tile(test.plan)(&args);
  EXPECT_EQ(static_cast<const char*>(args.prefetch) - reinterpret_cast<char*>(b.data()), 3 * 2 * 2 * 64);
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmTileTest, ::testing::ValuesIn(isas_here()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace lathe
