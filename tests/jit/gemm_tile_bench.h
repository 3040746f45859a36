#pragma once
// A register tile of a float32 product on operands that end at guard pages, and the product by plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "jit/kernels/gemm/gemm.h"
#include "tests/jit/guarded_floats.h"

namespace lathe::testing {

struct TileCase {
  GemmTilePlan plan;
  int64_t k = 0, tiles = 1, tail_lanes = 0, gap = 0;  // gap: elements between rows
  int64_t fetch_left = 0;
  bool rows_together = false;  // A's chunks are of all tiles' rows
};

inline std::ostream& operator<<(std::ostream& out, const TileCase& test) {
  return out << test.plan.key() << " k=" << test.k << " tiles=" << test.tiles << " tail=" << test.tail_lanes
             << " gap=" << test.gap << (test.rows_together ? " rows together" : "");
}

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
    // Columns that a shared register or half a vector has no lanes for are zeros, whatever B holds there.
    const int parts = test_.plan.half_last ? 2 : test_.plan.last_share;
    if (column >= (test_.plan.vecs - 1) * lanes_ + lanes_ / parts) return {sum, magnitude};
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

}  // namespace lathe::testing
