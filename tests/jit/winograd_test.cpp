#include "jit/kernels/winograd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "jit/kernels/winograd_matrices.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;
using testing::isas_here;

constexpr WinogradForm kForms[] = {{2, 3}, {4, 3}, {6, 3}, {2, 5}, {4, 5}};

std::vector<double> times(const Matrix& matrix, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(matrix.rows));
  for (int row = 0; row < matrix.rows; ++row) {
    for (int column = 0; column < matrix.columns; ++column)
      y[static_cast<size_t>(row)] += matrix.at(row, column) * x[static_cast<size_t>(column)];
  }
  return y;
}

// matrix * x * matrix^T, for x of matrix.columns squared.
std::vector<double> on_both_sides(const Matrix& matrix, const std::vector<double>& x) {
  const int n = matrix.columns, m = matrix.rows;
  std::vector<double> result(static_cast<size_t>(m * m));
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < m; ++j) {
      double sum = 0;
      for (int a = 0; a < n; ++a) {
        for (int b = 0; b < n; ++b) sum += matrix.at(i, a) * matrix.at(j, b) * x[static_cast<size_t>(a * n + b)];
      }
      result[static_cast<size_t>(i * m + j)] = sum;
    }
  }
  return result;
}

double norm(const Matrix& matrix) {
  double most = 0;
  for (int row = 0; row < matrix.rows; ++row) {
    double sum = 0;
    for (int column = 0; column < matrix.columns; ++column) sum += std::abs(matrix.at(row, column));
    most = std::max(most, sum);
  }
  return most;
}

TEST(WinogradMatrices, ConvolveALine) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const WinogradForm& form : kForms) {
    const WinogradMatrices matrices = winograd_matrices(form.outputs, form.taps);
    std::vector<double> x(static_cast<size_t>(form.size())), w(static_cast<size_t>(form.taps));
    for (double& value : x) value = uniform(random);
    for (double& value : w) value = uniform(random);
    std::vector<double> products = times(matrices.input, x);
    const std::vector<double> weights = times(matrices.weights, w);
    for (size_t i = 0; i < products.size(); ++i) products[i] *= weights[i];
    const std::vector<double> got = times(matrices.output, products);
    for (int i = 0; i < form.outputs; ++i) {
      double expected = 0;
      for (int k = 0; k < form.taps; ++k) expected += x[static_cast<size_t>(i + k)] * w[static_cast<size_t>(k)];
      EXPECT_NEAR(got[static_cast<size_t>(i)], expected, 1e-12) << form.outputs << "," << form.taps;
    }
  }
}

TEST(WinogradMatrices, AreRefusedForUnknownSizes) { EXPECT_THROW(winograd_matrices(3, 3), JitError); }

void check_input(const WinogradInputPlan& plan, std::mt19937& random) {
  const int size = plan.form.size(), lanes = vector_lanes(plan.isa), tiles = 3, step = 2;
  SCOPED_TRACE(to_string(plan));
  // A picture of which only the pixels named by the plan may be read: three tiles, `step` pixels apart.
  const int width = (tiles - 1) * step + size;
  const bool is_whole = plan.first_column == 0 && plan.last_column == size;
  const int count = is_whole ? tiles : 1;
  GuardedFloats source(static_cast<size_t>(size * width * lanes));
  source.randomize(random, -1, 1);
  for (int y = 0; y < size; ++y) {
    for (int x = 0; x < size; ++x) {
      if (y >= plan.first_row && y < plan.last_row && x >= plan.first_column && x < plan.last_column) continue;
      for (int lane = 0; lane < lanes; ++lane)
        source[static_cast<size_t>((y * width + x) * lanes + lane)] = std::nanf("");
    }
  }
  GuardedFloats target(static_cast<size_t>(size * size * tiles * lanes));
  WinogradCall call;
  call.source = source.data();
  call.target = target.data();
  call.tiles = count;
  call.source_step_bytes = step * lanes * 4;
  call.target_step_bytes = lanes * 4;
  call.row_bytes = width * lanes * 4;
  call.frequency_bytes = tiles * lanes * 4;
  winograd_input(plan)(&call);
  const Matrix matrix = winograd_matrices(plan.form.outputs, plan.form.taps).input;
  const double tolerance = 4 * size * 6e-8 * norm(matrix) * norm(matrix);
  for (int tile = 0; tile < count; ++tile) {
    for (int lane = 0; lane < lanes; ++lane) {
      std::vector<double> pixels(static_cast<size_t>(size * size));
      for (int y = plan.first_row; y < plan.last_row; ++y) {
        for (int x = plan.first_column; x < plan.last_column; ++x)
          pixels[static_cast<size_t>(y * size + x)] =
              source[static_cast<size_t>((y * width + x + tile * step) * lanes + lane)];
      }
      const std::vector<double> expected = on_both_sides(matrix, pixels);
      for (int f = 0; f < size * size; ++f)
        ASSERT_NEAR(target[static_cast<size_t>((f * tiles + tile) * lanes + lane)], expected[static_cast<size_t>(f)],
                    tolerance)
            << "frequency " << f << " tile " << tile << " lane " << lane;
    }
  }
}

TEST(WinogradInput, TransformsWhatExistsAndReadsNothingElse) {
  std::mt19937 random(2);
  for (const Isa isa : isas_here()) {
    for (const WinogradForm& form : kForms) {
      const int size = form.size();
      check_input({isa, form, 0, size, 0, size}, random);
      for (int i = 0; i < 6; ++i) {
        const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
        const int row = pick(0, size), column = pick(0, size);
        check_input({isa, form, row, pick(row, size), column, pick(column, size)}, random);
      }
    }
  }
}

// max(x, 0) + operand
ConvEpilogue rectified_sum() {
  ConvEpilogue epilogue;
  Expression e;
  e.inputs = {DType::f32, DType::f32};
  const int x = e.add({ExprOp::input, 0}), zero = e.add({ExprOp::constant, -1, -1, -1, 0.0f});
  const int positive = e.add({ExprOp::max, x, zero}), other = e.add({ExprOp::input, 1});
  e.add({ExprOp::add, positive, other});
  epilogue.expression = e;
  epilogue.operands = {ConvOperand::full};
  return epilogue;
}

void check_output(const WinogradOutputPlan& plan, std::mt19937& random) {
  SCOPED_TRACE(to_string(plan));
  const int size = plan.form.size(), lanes = vector_lanes(plan.isa), tiles = 2;
  const int width = (tiles - 1) * plan.form.outputs + plan.columns;
  GuardedFloats source(static_cast<size_t>(size * size * tiles * lanes)), bias(static_cast<size_t>(lanes));
  GuardedFloats target(static_cast<size_t>(plan.rows * width * lanes)), operand(target.size());
  for (GuardedFloats* floats : {&source, &bias, &operand}) floats->randomize(random, -1, 1);
  WinogradCall call;
  call.source = source.data();
  call.target = target.data();
  call.tiles = plan.columns == plan.form.outputs ? tiles : 1;
  call.source_step_bytes = lanes * 4;
  call.target_step_bytes = plan.form.outputs * lanes * 4;
  call.row_bytes = width * lanes * 4;
  call.frequency_bytes = tiles * lanes * 4;
  call.bias = bias.data();
  call.operands[0] = operand.data();
  const int64_t count = call.tiles;
  winograd_output(plan)(&call);
  const Matrix matrix = winograd_matrices(plan.form.outputs, plan.form.taps).output;
  const double tolerance = 4 * size * 6e-8 * norm(matrix) * norm(matrix);
  for (int tile = 0; tile < count; ++tile) {
    for (int lane = 0; lane < lanes; ++lane) {
      std::vector<double> values(static_cast<size_t>(size * size));
      for (int f = 0; f < size * size; ++f)
        values[static_cast<size_t>(f)] = source[static_cast<size_t>((f * tiles + tile) * lanes + lane)];
      const std::vector<double> sums = on_both_sides(matrix, values);
      for (int y = 0; y < plan.rows; ++y) {
        for (int x = 0; x < plan.columns; ++x) {
          const auto at = static_cast<size_t>((y * width + x + tile * plan.form.outputs) * lanes + lane);
          double expected = sums[static_cast<size_t>(y * plan.form.outputs + x)];
          if (plan.has_bias) expected += static_cast<double>(bias[static_cast<size_t>(lane)]);
          if (plan.epilogue.expression) expected = std::max(expected, 0.0) + static_cast<double>(operand[at]);
          ASSERT_NEAR(target[at], expected, tolerance) << "tile " << tile << " y " << y << " x " << x;
        }
      }
    }
  }
}

TEST(WinogradOutput, StoresOnlyThePixelsThatExist) {
  std::mt19937 random(3);
  for (const Isa isa : isas_here()) {
    for (const WinogradForm& form : kForms) {
      for (int rows = 1; rows <= form.outputs; ++rows) {
        const int columns = std::uniform_int_distribution<int>(1, form.outputs)(random);
        check_output({isa, form, rows, columns, rows % 2 == 0, {}}, random);
        check_output({isa, form, rows, form.outputs, true, rectified_sum()}, random);
      }
    }
  }
}

}  // namespace
}  // namespace lathe
