#include "jit/kernels/winograd/winograd.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "jit/kernels/winograd/winograd_matrices.h"
#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;
using testing::isas_here;

constexpr WinogradForm kForms[] = {{2, 3},       {4, 3},       {6, 3},       {2, 5},       {4, 5},
                                   {2, 3, 2},    {3, 3, 2},    {4, 3, 2},    {3, 5, 2},    {4, 7, 2},
                                   {4, 3, 1, 1}, {2, 5, 1, 1}, {2, 3, 2, 1}, {4, 4, 2, 1}, {4, 5, 2}};

std::vector<double> times(const Matrix& matrix, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(matrix.rows));
  for (int row = 0; row < matrix.rows; ++row) {
    for (int column = 0; column < matrix.columns; ++column)
      y[static_cast<size_t>(row)] += matrix.at(row, column) * x[static_cast<size_t>(column)];
  }
  return y;
}

// rows * x * columns^T, for x of rows.columns x columns.columns.
std::vector<double> on_both_sides(const Matrix& rows, const Matrix& columns, const std::vector<double>& x) {
  std::vector<double> result;
  for (int i = 0; i < rows.rows; ++i) {
    for (int j = 0; j < columns.rows; ++j) {
      double sum = 0;
      for (int a = 0; a < rows.columns; ++a) {
        for (int b = 0; b < columns.columns; ++b)
          sum += rows.at(i, a) * columns.at(j, b) * x[static_cast<size_t>(a * columns.columns + b)];
      }
      result.push_back(sum);
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
    if (form.stride > 1) continue;
    const std::vector<double> all_weights = winograd_matrices(form.outputs, form.taps).weights.values;
    for (int part = 1; part <= form.outputs; ++part) {
      SCOPED_TRACE(to_string(form) + " part " + std::to_string(part));
      const WinogradMatrices matrices = winograd_matrices(form.outputs, form.taps, part);
      ASSERT_EQ(matrices.size(), part + form.taps - 1);
      EXPECT_EQ(matrices.weights.values, all_weights);
      const std::vector<bool> needs = needed_points(matrices.output);
      EXPECT_EQ(std::count(needs.begin(), needs.end(), true), matrices.size());
      std::vector<double> x(static_cast<size_t>(matrices.size())), w(static_cast<size_t>(form.taps));
      for (double& value : x) value = uniform(random);
      for (double& value : w) value = uniform(random);
      std::vector<double> products = times(matrices.input, x);
      const std::vector<double> weights = times(matrices.weights, w);
      for (size_t i = 0; i < products.size(); ++i) products[i] *= weights[i];
      const std::vector<double> got = times(matrices.output, products);
      for (int i = 0; i < part; ++i) {
        double expected = 0;
        for (int k = 0; k < form.taps; ++k) expected += x[static_cast<size_t>(i + k)] * w[static_cast<size_t>(k)];
        EXPECT_NEAR(got[static_cast<size_t>(i)], expected, 1e-12);
      }
    }
  }
}

TEST(WinogradMatrices, ConvolveALineByStepsOfTwoWithProductsOfBothPhasesAdded) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (const auto& [outputs, taps] :
       {std::pair{2, 3}, {3, 3}, {4, 3}, {2, 4}, {4, 4}, {2, 5}, {4, 5}, {3, 6}, {3, 7}, {4, 7}}) {
    for (int part = 1; part <= outputs; ++part) {
      SCOPED_TRACE(fmt::format("F({},{}) part {}", outputs, taps, part));
      std::vector<double> x(static_cast<size_t>(2 * (part - 1) + taps)), w(static_cast<size_t>(taps));
      for (double& value : x) value = uniform(random);
      for (double& value : w) value = uniform(random);
      const Matrix output = winograd_phase_matrices(outputs, taps, 0, part).output;
      const std::vector<bool> needs = needed_points(output);
      std::vector<double> sums(static_cast<size_t>(output.columns));
      for (int phase = 0; phase < 2; ++phase) {
        const WinogradMatrices matrices = winograd_phase_matrices(outputs, taps, phase, part);
        EXPECT_EQ(matrices.weights.values, winograd_phase_matrices(outputs, taps, phase).weights.values);
        std::vector<double> own_x, own_w;
        for (size_t i = static_cast<size_t>(phase); i < x.size(); i += 2) own_x.push_back(x[i]);
        for (size_t i = static_cast<size_t>(phase); i < w.size(); i += 2) own_w.push_back(w[i]);
        const std::vector<double> pixels = times(matrices.input, own_x), weights = times(matrices.weights, own_w);
        for (size_t i = 0; i < pixels.size(); ++i) {
          EXPECT_TRUE(needs[i] || pixels[i] == 0);
          sums[i] += pixels[i] * weights[i];
        }
      }
      const std::vector<double> got = times(output, sums);
      for (int i = 0; i < part; ++i) {
        double expected = 0;
        for (int k = 0; k < taps; ++k) expected += x[static_cast<size_t>(2 * i + k)] * w[static_cast<size_t>(k)];
        EXPECT_NEAR(got[static_cast<size_t>(i)], expected, 1e-12);
      }
    }
  }
}

TEST(WinogradMatrices, HaveTheSameWeightAtAllPointsOfASingleTap) {
  for (const int outputs : {2, 3, 4}) {
    for (const double weight : winograd_phase_matrices(outputs, 3, 1).weights.values) EXPECT_EQ(weight, 1);
  }
}

TEST(WinogradMatrices, AreRefusedForUnknownSizes) {
  EXPECT_THROW(winograd_matrices(3, 3), JitError);
  EXPECT_THROW(winograd_phase_matrices(6, 7, 0), JitError);
}

constexpr std::array kFetches{FrequencyFetch::none, FrequencyFetch::lines, FrequencyFetch::tiles};

void check_input(const WinogradInputPlan& plan, std::mt19937& random) {
  const int lanes = vector_lanes(plan.isa), tiles = 3, step = 2, stride = plan.form.stride;
  const Matrix down = row_matrices(plan.form, plan.row_phase, plan.part_rows).input;
  const Matrix across = column_matrices(plan.form, plan.column_phase, plan.part_columns).input;
  const int rows = down.columns, columns = across.columns;
  SCOPED_TRACE(to_string(plan));
  // A picture of which only the pixels named by the plan may be read: three tiles, `step` pixels apart.
  const int width = (tiles - 1) * step + (columns - 1) * stride + 1;
  const bool is_whole = plan.first_column == 0 && plan.last_column == columns;
  const int count = is_whole ? tiles : 1;
  GuardedFloats source(static_cast<size_t>(rows * width * lanes));
  source.randomize(random, -1, 1);
  const auto exists = [&](int y, int column) {
    return y >= plan.first_row && y < plan.last_row && column >= plan.first_column && column < plan.last_column;
  };
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < width; ++x) {
      bool is_read = false;
      for (int tile = 0; tile < count; ++tile) {
        const int from_corner = x - tile * step;
        is_read |= from_corner % stride == 0 && exists(y, from_corner / stride);
      }
      if (is_read) continue;
      for (int lane = 0; lane < lanes; ++lane)
        source[static_cast<size_t>((y * width + x) * lanes + lane)] = std::nanf("");
    }
  }
  const int size = plan.form.size();
  constexpr float kUntouched = 12345;
  GuardedFloats target(static_cast<size_t>(plan.form.frequencies() * tiles * lanes));
  std::fill_n(target.data(), target.size(), kUntouched);
  WinogradCall call;
  call.source = source.data();
  call.target = target.data();
  call.tiles = count;
  call.source_step_bytes = step * lanes * 4;
  call.target_step_bytes = lanes * 4;
  call.row_bytes = width * lanes * 4;
  call.frequency_bytes = tiles * lanes * 4;
  winograd_input(plan)(&call);
  const std::vector<bool> needs_row = needed_points(row_matrices(plan.form, 0, plan.part_rows).output);
  const std::vector<bool> needs_column = needed_points(column_matrices(plan.form, 0, plan.part_columns).output);
  const double tolerance = 4 * size * 6e-8 * norm(down) * norm(across);
  for (int tile = 0; tile < count; ++tile) {
    for (int lane = 0; lane < lanes; ++lane) {
      std::vector<double> pixels(static_cast<size_t>(rows * columns));
      for (int y = plan.first_row; y < plan.last_row; ++y) {
        for (int x = plan.first_column; x < plan.last_column; ++x)
          pixels[static_cast<size_t>(y * columns + x)] =
              source[static_cast<size_t>((y * width + x * stride + tile * step) * lanes + lane)];
      }
      const std::vector<double> expected = on_both_sides(down, across, pixels);
      for (int i = 0; i < down.rows * across.rows; ++i) {
        const int row = i / across.rows, column = i % across.rows, f = row * size + column;
        const bool is_needed = needs_row[static_cast<size_t>(row)] && needs_column[static_cast<size_t>(column)];
        if (!is_needed) {
          ASSERT_EQ(target[static_cast<size_t>((f * tiles + tile) * lanes + lane)], kUntouched);
          continue;
        }
        ASSERT_NEAR(target[static_cast<size_t>((f * tiles + tile) * lanes + lane)], expected[static_cast<size_t>(i)],
                    tolerance)
            << "frequency " << f << " tile " << tile << " lane " << lane;
      }
    }
  }
}

TEST(WinogradInput, TransformsWhatExistsAndReadsNothingElse) {
  std::mt19937 random(2);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  for (const Isa isa : isas_here()) {
    for (const WinogradForm& form : kForms) {
      for (int phase = 0; phase < form.row_phases() * form.column_phases(); ++phase) {
        const int y = phase / form.column_phases(), x = phase % form.column_phases();
        check_input({isa, form, 0, form.rows(y), 0, form.size(x), y, x}, random);
        for (int i = 0; i < 6; ++i) {
          const int part_rows = pick(0, form.out_rows()), part_columns = pick(0, form.outputs);
          const int rows = row_matrices(form, y, part_rows).size(),
                    columns = column_matrices(form, x, part_columns).size();
          const int row = pick(0, rows), column = pick(0, columns);
          const bool fetches_ahead = i % 2 == 1;
          check_input({isa, form, row, pick(row, rows), column, pick(column, columns), y, x, part_rows, part_columns,
                       fetches_ahead, kFetches[static_cast<size_t>(i) % kFetches.size()]},
                      random);
        }
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
  const int size = plan.form.frequencies(), lanes = vector_lanes(plan.isa), tiles = 2;
  const int width = (tiles - 1) * plan.form.outputs + plan.columns;
  GuardedFloats source(static_cast<size_t>(size * tiles * lanes)), bias(static_cast<size_t>(lanes));
  GuardedFloats target(static_cast<size_t>(plan.rows * width * lanes)), operand(target.size());
  for (GuardedFloats* floats : {&source, &bias, &operand}) floats->randomize(random, -1, 1);
  const Matrix down = row_matrices(plan.form, 0, plan.is_part ? plan.rows : 0).output;
  const Matrix across = column_matrices(plan.form, 0, plan.is_part ? plan.columns : 0).output;
  const std::vector<bool> needs_row = needed_points(down), needs_column = needed_points(across);
  const auto is_needed = [&](int f) {
    return needs_row[static_cast<size_t>(f / plan.form.size())] &&
           needs_column[static_cast<size_t>(f % plan.form.size())];
  };
  for (int f = 0; f < size; ++f) {
    if (!is_needed(f)) std::fill_n(source.data() + f * tiles * lanes, tiles * lanes, std::nanf(""));
  }
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
  const double tolerance = 4 * plan.form.size() * 6e-8 * norm(down) * norm(across);
  for (int tile = 0; tile < count; ++tile) {
    for (int lane = 0; lane < lanes; ++lane) {
      std::vector<double> values(static_cast<size_t>(size));
      for (int f = 0; f < size; ++f) {
        if (is_needed(f))
          values[static_cast<size_t>(f)] = source[static_cast<size_t>((f * tiles + tile) * lanes + lane)];
      }
      const std::vector<double> sums = on_both_sides(down, across, values);
      for (int y = 0; y < plan.rows; ++y) {
        for (int x = 0; x < plan.columns; ++x) {
          const auto at = static_cast<size_t>((y * width + x + tile * plan.form.outputs) * lanes + lane);
          double expected = sums[static_cast<size_t>(y * across.rows + x)];
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
      for (int rows = 1; rows <= form.out_rows(); ++rows) {
        const int columns = std::uniform_int_distribution<int>(1, form.outputs)(random);
        for (const FrequencyFetch fetch : kFetches) {
          check_output({isa, form, rows, columns, rows % 2 == 0, {}, false, false, fetch}, random);
          check_output({isa, form, rows, columns, rows % 2 == 0, {}, true, false, fetch}, random);
          check_output({isa, form, rows, form.outputs, true, rectified_sum(), false, false, fetch}, random);
          check_output({isa, form, rows, form.outputs, true, rectified_sum(), false, true, fetch}, random);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
