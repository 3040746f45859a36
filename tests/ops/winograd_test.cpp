#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "ops/winograd/winograd_program.h"
#include "ops/winograd/winograd_stem.h"
#include "tests/conv_axis.h"
#include "tests/isas_here.h"
#include "tests/ops/one_node.h"
#include "tests/ops/step_memory.h"
#include "tests/ops/winograd_problem.h"

namespace lathe {
namespace {

using testing::axis;
using testing::GuardedMemory;
using testing::isas_here;
using testing::problem_of;
using testing::random_tensor;

double expected_at(const ConvProblem& problem, const Tensor& in, const Tensor& weights, int64_t image, int64_t out,
                   int64_t y, int64_t x) {
  const ConvShape& shape = problem.phases[0];
  double sum = 0;
  const int64_t each = problem.in_channels_each(), first = out / problem.out_channels_each() * each;
  for (int64_t c = 0; c < each; ++c) {
    for (const ConvTap& ty : shape.y.taps) {
      for (const ConvTap& tx : shape.x.taps) {
        const int64_t iy = y * shape.y.stride + ty.offset, ix = x * shape.x.stride + tx.offset;
        if (iy < 0 || iy >= shape.y.in || ix < 0 || ix >= shape.x.in) continue;
        const int64_t pixel = ((image * problem.in_channels + first + c) * shape.y.in + iy) * shape.x.in + ix;
        const int64_t tap = ((out * each + c) * problem.window_y + ty.kernel) * problem.window_x + tx.kernel;
        sum += static_cast<double>(in.data<float>()[pixel]) * static_cast<double>(weights.data<float>()[tap]);
      }
    }
  }
  return sum;
}

// The largest error and the largest output.
template <class Program = WinogradProgram>
std::pair<double, double> run_and_compare(const ConvProblem& problem, const WinogradPlan& plan, int threads,
                                          std::mt19937& random) {
  const ConvShape& shape = problem.phases[0];
  const Program program(problem, plan, threads);
  const Tensor in = random_tensor({problem.batch, problem.in_channels, shape.y.in, shape.x.in}, random);
  const Tensor weights =
      random_tensor({problem.out_channels, problem.in_channels_each(), problem.window_y, problem.window_x}, random);
  const Tensor bias = random_tensor({problem.out_blocks() * problem.lanes}, random);
  TensorType in_type = TensorType::of(DType::f32, in.dims());
  TensorType out_type = TensorType::of(DType::f32, {problem.batch, problem.out_channels, shape.y.out, shape.x.out});
  in_type.layout.channel_block = problem.in_lanes() == 1 ? 0 : problem.lanes;
  out_type.layout.channel_block = problem.lanes;
  const GuardedMemory source(in_type.storage_bytes()), target(out_type.storage_bytes());
  const GuardedMemory packed(static_cast<size_t>(program.packed_size()) * 4);
  const GuardedMemory shared(static_cast<size_t>(program.shared_scratch()) * 4);
  const GuardedMemory own(static_cast<size_t>(program.own_scratch() * threads) * 4);
  const ConvScratch scratch{static_cast<float*>(shared.data()), static_cast<float*>(own.data()), program.own_scratch()};
  testing::write_value(source.data(), in_type, in);
  program.pack(weights.data<float>(), static_cast<float*>(packed.data()));
  ConvArguments arguments;
  arguments.source = static_cast<const float*>(source.data());
  arguments.weights = static_cast<const float*>(packed.data());
  arguments.target = static_cast<float*>(target.data());
  arguments.bias = bias.data<float>();
  const auto run = [&](bool are_far) {
    arguments.are_far = are_far;
    for (int part = 0; part < program.parts(); ++part) {
      for (int share = program.shares(part); share-- > 0;)
        program.run_part(part, arguments, scratch, share, share % threads);
    }
    return testing::read_value(target.data(), out_type);
  };
  const Tensor far = run(true), got = run(false);
  EXPECT_EQ(std::memcmp(far.raw(), got.raw(), got.bytes()), 0) << "depends on where threads are";
  double error = 0, largest = 0;
  int64_t i = 0;
  for (int64_t image = 0; image < problem.batch; ++image) {
    for (int64_t out = 0; out < problem.out_channels; ++out) {
      for (int64_t y = 0; y < shape.y.out; ++y) {
        for (int64_t x = 0; x < shape.x.out; ++x, ++i) {
          const double expected =
              expected_at(problem, in, weights, image, out, y, x) + static_cast<double>(bias.data<float>()[out]);
          const double wrong = std::abs(expected - static_cast<double>(got.data<float>()[i]));
          error = std::max(error, std::isnan(wrong) ? 1e30 : wrong);
          largest = std::max(largest, std::abs(expected));
        }
      }
    }
  }
  return {error, largest};
}

// Half of the weights are of 24 bits, where they can be.
WinogradPlan with_some_narrow(WinogradPlan plan, const ConvProblem& problem, std::mt19937& random) {
  plan.narrow = can_be_narrow(problem) && random() % 2 == 0;
  return plan;
}

TEST(Winograd, AgreesWithPlainLoopsOverRandomShapes) {
  std::mt19937 random(1);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    const int taps = pick(0, 4) == 0 ? 5 : 3;
    const int outputs = static_cast<int>(2 * pick(1, taps == 5 ? 2 : 3));
    const ConvAxis y = axis(pick(taps, 17), taps, pick(0, taps - 1), pick(0, taps - 1));
    const ConvAxis x = axis(pick(taps, 17), taps, pick(0, taps - 1), pick(0, taps - 1));
    const int threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      const ConvProblem problem = problem_of(pick(1, 2), pick(1, 40), pick(1, 40), taps, y, x, isa);
      const WinogradPlan plan =
          with_some_narrow({isa, {outputs, taps}, static_cast<int>(pick(0, 12))}, problem, random);
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      // Pixels and weights within [-1, 1]: a bound on the sum, times the growth within the transforms.
      const double terms = static_cast<double>(problem.in_channels) * taps * taps;
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (outputs + taps <= 5 ? 8 : outputs + taps == 7 ? 40 : 300));
    }
  }
}

TEST(Winograd, AgreesWithPlainLoopsForGroups) {
  std::mt19937 random(21);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 40; ++i) {
    const int outputs = static_cast<int>(2 * pick(1, 2)), threads = static_cast<int>(pick(1, 3));
    const int taps = outputs == 2 && pick(0, 2) == 0 ? 5 : 3;
    const ConvAxis y = axis(pick(taps, 17), taps, pick(0, 2), pick(0, 2));
    const ConvAxis x = axis(pick(taps, 17), taps, pick(0, 2), pick(0, 2));
    const int64_t groups = pick(2, 5), in = pick(1, 4), out = pick(1, 5), batch = pick(1, 2);
    const WinogradPlan of_isa{Isa::avx2, {outputs, taps}, static_cast<int>(pick(0, 12))};
    for (const Isa isa : isas_here()) {
      const int64_t each = groups * vector_lanes(isa);
      ConvProblem problem = problem_of(batch, in * each, out * each, taps, y, x, isa);
      problem.groups = groups;
      WinogradPlan plan = of_isa;
      plan.isa = isa;
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      std::mt19937 again = random;  // the same elements
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      const double terms = static_cast<double>(problem.in_channels_each()) * taps * taps;
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (outputs + taps == 5 ? 8 : 40));
      plan.narrow = true;
      const double rounded = run_and_compare(problem, plan, threads, again).first;
      ASSERT_LE(rounded, std::sqrt(terms) * 6e-8 * (outputs + taps == 5 ? 10 : 40)) << "of 24 bits";
    }
  }
}

TEST(Winograd, AgreesWithPlainLoopsForStepsOfTwo) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    const auto taps = static_cast<int>(pick(0, 1) == 0 ? 3 : pick(4, 7));
    const auto outputs = static_cast<int>(pick(2, 4));
    const ConvAxis y = axis(pick(taps, 23), taps, pick(0, taps - 1), pick(0, taps - 1), 2);
    const ConvAxis x = axis(pick(taps, 23), taps, pick(0, taps - 1), pick(0, taps - 1), 2);
    const auto threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      const ConvProblem problem = problem_of(pick(1, 2), pick(1, 3) * vector_lanes(isa), pick(1, 40), taps, y, x, isa);
      const WinogradPlan plan =
          with_some_narrow({isa, {outputs, taps}, static_cast<int>(pick(0, 1) * pick(1, 12))}, problem, random);
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      ASSERT_TRUE(is_winograd(problem, outputs));
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      const double terms = static_cast<double>(problem.in_channels) * taps * taps;
      const int points = winograd_form(problem, outputs).size();
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (points <= 4 ? 20 : points <= 6 ? 80 : 240));
    }
  }
}

// Phases of one tap have their weights once, and the products of all phases are added up.
TEST(Winograd, AgreesWithPlainLoopsForStepsOfTwoOfManyChannels) {
  constexpr int kChannels = 256;
  std::mt19937 random(10);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 24; ++i) {
    const auto outputs = static_cast<int>(pick(2, 4)), threads = static_cast<int>(pick(1, 3));
    const bool is_line = pick(0, 3) == 0;
    const ConvAxis x = axis(pick(3, 14), 3, pick(0, 2), pick(0, 2), 2);
    const ConvAxis y = is_line ? axis(pick(1, 3), 1, 0, 0) : axis(pick(3, 14), 3, pick(0, 2), pick(0, 2), 2);
    for (const Isa isa : isas_here()) {
      ConvProblem problem = problem_of(1, kChannels, threads * 32, 3, y, x, isa);
      if (is_line) problem.window_y = 1;
      const WinogradPlan plan{isa, {outputs, 3}, static_cast<int>(pick(0, 1) * pick(1, 12))};
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      const WinogradForm form = winograd_form(problem, outputs);
      ASSERT_TRUE(shares_weights(problem, form, threads, plan.tile_group == 0));
      const int64_t matrices = is_line ? form.size() + 1 : (form.size() + 1) * (form.size() + 1);
      EXPECT_EQ(WinogradProgram(problem, plan, threads).packed_size(), matrices * kChannels * problem.out_channels);
      const auto [error, largest] = run_and_compare(problem, with_some_narrow(plan, problem, random), threads, random);
      const double terms = kChannels * 3 * (is_line ? 1 : 3);
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (form.size() <= 4 ? 20 : 80));
    }
  }
}

// Pictures of all sizes share packed weights.
TEST(Winograd, PacksWeightsAlikeWhateverTheLastTilesTake) {
  for (const Isa isa : isas_here()) {
    std::set<std::string> packings;
    for (const bool narrow : {false, true}) {
      WinogradPlan plan{isa, {4, 3}, 0};
      plan.narrow = narrow;
      for (const int64_t size : {40, 41, 42, 43}) {
        const ConvAxis both = axis(size, 3, 1, 1);
        packings.insert(WinogradProgram(problem_of(1, 16, 48, 3, both, both, isa), plan, 1).packing());
      }
    }
    EXPECT_EQ(packings.size(), 2u) << "one of each format";
  }
}

TEST(WinogradStem, AgreesWithPlainLoopsOverRandomShapes) {
  std::mt19937 random(6);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    const auto taps = static_cast<int>(pick(5, 7)), outputs = static_cast<int>(pick(2, 4));
    const ConvAxis y = axis(pick(taps, 40), taps, pick(0, taps - 1), pick(0, taps - 1), 2);
    const ConvAxis x = axis(pick(taps, 130), taps, pick(0, taps - 1), pick(0, taps - 1), 2);
    const auto threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      ConvProblem problem = problem_of(pick(1, 2), pick(1, 4), pick(1, 100), taps, y, x, isa);
      problem.phases[0].lanes = 1;
      const WinogradPlan plan{isa, {outputs, taps}, 0};
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      ASSERT_TRUE(is_winograd_stem(problem, outputs));
      const auto [error, largest] = run_and_compare<WinogradStem>(problem, plan, threads, random);
      const double terms = static_cast<double>(problem.in_channels) * taps * taps;
      const int points = winograd_form(problem, outputs).size();
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (points <= 4 ? 20 : points <= 6 ? 80 : 240));
    }
  }
}

TEST(WinogradStem, KeepsTheErrorBoundOfTheDefaultLevel) {
  std::mt19937 random(7);
  for (const Isa isa : isas_here()) {
    const ConvAxis both = axis(64, 7, 3, 3, 2);
    ConvProblem problem = problem_of(1, 3, 64, 7, both, both, isa);
    problem.phases[0].lanes = 1;
    const auto [error, largest] = run_and_compare<WinogradStem>(problem, {isa, {4, 7}, 0}, 1, random);
    EXPECT_LE(error, 5e-6 * largest) << name_of(isa);
    EXPECT_EQ(choose_conv_plan(problem, isa, 1).winograd, 4);
    problem.most_winograd = 2;
    EXPECT_LE(choose_conv_plan(problem, isa, 1).winograd, 2);
  }
}

TEST(Winograd, AgreesWithPlainLoopsAlongALine) {
  std::mt19937 random(4);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 40; ++i) {
    const auto stride = static_cast<int>(pick(1, 2)), taps = stride == 2 ? static_cast<int>(pick(3, 7)) : 3;
    const auto outputs = static_cast<int>(stride == 2 ? pick(2, 4) : 2 * pick(1, 3));
    const ConvAxis y = axis(pick(1, 3), 1, 0, 0);
    const ConvAxis x = axis(pick(taps, 40), taps, pick(0, taps - 1), pick(0, taps - 1), stride);
    const auto threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      ConvProblem problem = problem_of(pick(1, 2), pick(1, 3) * vector_lanes(isa), pick(1, 40), taps, y, x, isa);
      problem.window_y = 1;
      const WinogradPlan plan =
          with_some_narrow({isa, {outputs, taps}, static_cast<int>(pick(0, 1) * pick(1, 12))}, problem, random);
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      ASSERT_TRUE(is_winograd(problem, outputs));
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      const double terms = static_cast<double>(problem.in_channels) * taps;
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (outputs == 6 ? 100 : 30));
    }
  }
}

TEST(Winograd, CutsLargeWindowsIntoPieces) {
  std::mt19937 random(8);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 30; ++i) {
    const auto taps = static_cast<int>(pick(6, 14));
    const auto outputs = static_cast<int>(pick(2, 4));
    const bool is_line = pick(0, 2) == 0;
    const ConvAxis x = axis(pick(taps, 23), taps, pick(0, taps - 1), pick(0, taps - 1));
    const ConvAxis y = is_line ? axis(pick(1, 3), 1, 0, 0) : axis(pick(taps, 23), taps, pick(0, taps - 1), taps / 2);
    const auto threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      ConvProblem problem = problem_of(pick(1, 2), pick(1, 2) * vector_lanes(isa), pick(1, 20), taps, y, x, isa);
      if (is_line) problem.window_y = 1;
      const WinogradPlan plan =
          with_some_narrow({isa, {outputs, taps}, static_cast<int>(pick(0, 1) * pick(1, 12))}, problem, random);
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      ASSERT_TRUE(is_winograd(problem, outputs));
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      const double terms = static_cast<double>(problem.in_channels) * taps * (is_line ? 1 : taps);
      const int points = winograd_form(problem, outputs).size();
      ASSERT_LE(error, std::sqrt(terms) * 6e-8 * (points <= 6 ? 80 : 300));
    }
  }
}

TEST(Winograd, KeepsTheErrorBoundOfItsLevelForLargeWindows) {
  std::mt19937 random(9);
  for (const Isa isa : isas_here()) {
    for (const int taps : {5, 7, 9, 11}) {
      const ConvAxis both = axis(16, taps, taps / 2, taps / 2);
      const ConvProblem problem = problem_of(1, 128, 16, taps, both, both, isa);
      for (const auto& [outputs, bound] : {std::pair{2, 3e-6}, {3, 6e-6}, {4, 6e-6}}) {
        if (!is_winograd(problem, outputs) || winograd_form(problem, outputs).size() > 6) continue;
        const auto [error, largest] = run_and_compare(problem, {isa, {outputs, taps}, 0}, 1, random);
        EXPECT_LE(error, bound * largest) << outputs << " " << taps << " " << name_of(isa);
      }
    }
  }
}

TEST(Winograd, AgreesWithPlainLoopsByFewerProducts) {
  std::mt19937 random(20261126);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int odd = 0, even = 0;
  for (int i = 0; i < 24; ++i) {
    const int taps = pick(0, 4) == 0 ? 7 : 3, outputs = static_cast<int>(2 * pick(1, 2));
    const ConvAxis y = axis(pick(8, 21), taps, pick(0, 2), pick(0, 2)), x = axis(pick(8, 21), taps, pick(0, 2), 1);
    const int threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      const int lanes = vector_lanes(isa);
      // Some of the last block's channels do not exist.
      const ConvProblem problem =
          problem_of(pick(1, 2), 2 * lanes * pick(1, 2), 4 * lanes * pick(1, 2) - pick(0, 5), taps, y, x, isa);
      WinogradPlan plan{isa, {outputs, taps}, static_cast<int>(pick(0, 1) * pick(4, 12))};
      plan.strassen = true;
      if (!can_multiply_fewer(problem, isa, outputs)) continue;
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      EXPECT_LE(error, 8e-6 * std::max(1.0, largest));
      if (HasFailure()) return;
      const int64_t tiles = divide_up(y.out, outputs) * divide_up(x.out, outputs) * problem.batch;
      ++(tiles % 2 == 0 ? even : odd);
    }
  }
  EXPECT_GE(even, 3);
  EXPECT_GE(odd, 3);
}

// So many weights that AVX2's transforms take each frequency from its first line to its last.
TEST(Winograd, AgreesWithPlainLoopsWhereFrequenciesComeFromMemory) {
  std::mt19937 random(20261127);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 6; ++i) {
    const int stride = i % 3 == 2 ? 2 : 1;
    const ConvAxis y = axis(pick(5, 10), 3, pick(0, 2), 1, stride), x = axis(pick(5, 10), 3, pick(0, 2), 1, stride);
    const int threads = static_cast<int>(pick(1, 3));
    for (const Isa isa : isas_here()) {
      const ConvProblem problem = problem_of(pick(1, 2), 160, 192 - pick(0, 5), 3, y, x, isa);
      WinogradPlan plan{isa, {4, 3}, 0};
      plan.strassen = i % 3 == 1;
      SCOPED_TRACE(to_string(problem) + " " + to_string(plan) + " threads " + std::to_string(threads));
      ASSERT_GE(WinogradProgram(problem, plan, threads).packed_size(), 1 << 20);
      const auto [error, largest] = run_and_compare(problem, plan, threads, random);
      ASSERT_LE(error, 8e-6 * largest);
    }
  }
}

// The bound that the default accuracy level promises for one layer: 1e-5 of the largest output.
TEST(Winograd, KeepsTheErrorBoundOfItsLevel) {
  std::mt19937 random(2);
  for (const Isa isa : isas_here()) {
    for (const auto& [outputs, bound] : {std::pair{2, 1e-6}, {4, 4e-6}, {6, 3e-5}}) {
      const ConvAxis both = axis(12, 3, 1, 1);
      const ConvProblem problem = problem_of(1, 256, 16, 3, both, both, isa);
      const auto [error, largest] = run_and_compare(problem, {isa, {outputs, 3}, 0}, 1, random);
      EXPECT_LE(error, bound * largest) << outputs << " " << name_of(isa);
    }
  }
}

// Those of more than six points, by short sums.
TEST(Winograd, KeepsTheErrorBoundOfTheDefaultLevelByLargeForms) {
  constexpr int kChannels = 512;
  std::mt19937 random(12);
  const auto check = [&](int taps, int outputs, const ConvAxis& y, const ConvAxis& x) {
    for (const Isa isa : isas_here()) {
      ConvProblem problem = problem_of(1, kChannels, 16, taps, y, x, isa);
      problem.longest_winograd_sum = ConvProblem().longest_winograd_sum;
      problem.window_y = static_cast<int64_t>(y.taps.size());
      for (const bool narrow : {false, true}) {
        WinogradPlan plan{isa, {outputs, taps}, 0};
        plan.narrow = narrow;
        SCOPED_TRACE(to_string(problem) + " " + to_string(plan));
        ASSERT_GT(winograd_form(problem, outputs).size(), 6);
        const auto [error, largest] = run_and_compare(problem, plan, 1, random);
        EXPECT_LE(error, 1e-5 * largest);
      }
    }
  };
  for (const int taps : {3, 5, 7}) {
    const ConvAxis both = axis(18, taps, taps / 2, taps / 2);
    check(taps, taps == 5 ? 4 : 6, both, both);
    check(taps, taps == 5 ? 4 : 6, axis(20, 1, 0, 0), both);
  }
  const ConvAxis step = axis(24, 7, 3, 3, 2);
  check(7, 4, step, step);
}

TEST(Winograd, KeepsTheErrorBoundOfItsLevelByFewerProducts) {
  std::mt19937 random(8);
  for (const Isa isa : isas_here()) {
    for (const auto& [outputs, bound] : {std::pair{2, 2e-6}, {4, 8e-6}}) {
      const ConvAxis both = axis(12, 3, 1, 1);
      const ConvProblem problem = problem_of(1, 512, 64, 3, both, both, isa);
      WinogradPlan plan{isa, {outputs, 3}, 0};
      plan.strassen = true;
      const auto [error, largest] = run_and_compare(problem, plan, 1, random);
      EXPECT_LE(error, bound * largest) << outputs << " " << name_of(isa);
    }
  }
}

TEST(Winograd, KeepsTheErrorBoundOfItsLevelForStepsOfTwo) {
  std::mt19937 random(5);
  for (const Isa isa : isas_here()) {
    for (const auto& [outputs, bound] : {std::pair{2, 3e-6}, {3, 3e-6}, {4, 6e-6}}) {
      const ConvAxis both = axis(24, 3, 1, 1, 2);
      const ConvProblem problem = problem_of(1, 256, 16, 3, both, both, isa);
      const auto [error, largest] = run_and_compare(problem, {isa, {outputs, 3}, 0}, 1, random);
      EXPECT_LE(error, bound * largest) << outputs << " " << name_of(isa);
    }
  }
}

}  // namespace
}  // namespace lathe
