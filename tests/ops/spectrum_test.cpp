// DFT and STFT against the sums that define them, in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>

#include "ops/fourier/fourier.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

using Complex = std::complex<double>;
using Line = std::vector<Complex>;

Line transformed(const Line& line, bool is_inverse) {
  Line result(line.size());
  const auto n = static_cast<int64_t>(line.size());
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < n; ++i) {
      const double phase = (is_inverse ? 2 : -2) * std::numbers::pi * static_cast<double>(i * k % n) / double(n);
      result[static_cast<size_t>(k)] += line[static_cast<size_t>(i)] * std::polar(1.0, phase);
    }
    if (is_inverse) result[static_cast<size_t>(k)] /= double(n);
  }
  return result;
}

Line random_line(int64_t length, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  Line line;
  for (int64_t i = 0; i < length; ++i) line.emplace_back(uniform(random), uniform(random));
  return line;
}

TEST(FourierTransform, EqualsItsDefinitionForAnyLength) {
  std::mt19937 random(3);
  for (const int64_t length : {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  12,  15,  16,  21, 29,
                               30, 31, 32, 37, 60, 64, 74, 97, 100, 121, 128, 210, 331, 400}) {
    const FourierTransform<double> transform(length);
    Line line = random_line(length, random), scratch(static_cast<size_t>(transform.scratch_elements()));
    const Line original = line, expected = transformed(line, false);
    transform.run(line.data(), scratch.data());
    for (size_t i = 0; i < line.size(); ++i) ASSERT_NEAR(std::abs(line[i] - expected[i]), 0, 1e-12 * double(length));
    transform.run_inverse(line.data(), scratch.data());
    for (size_t i = 0; i < line.size(); ++i) ASSERT_NEAR(std::abs(line[i] - original[i]), 0, 1e-13 * double(length));
  }
}

TEST(FourierTransform, KeepsThePrecisionOfFloat32) {
  std::mt19937 random(4);
  for (const int64_t length : {8, 30, 37, 400, 1009, 1024}) {
    const FourierTransform<float> transform(length);
    const Line line = random_line(length, random), expected = transformed(line, false);
    std::vector<std::complex<float>> narrow(line.begin(), line.end());
    std::vector<std::complex<float>> scratch(static_cast<size_t>(transform.scratch_elements()));
    transform.run(narrow.data(), scratch.data());
    // The root mean square of a result is sqrt(2 n / 3); each pass rounds a few times.
    const double bound = 6e-8 * 8 * std::log2(double(length)) * std::sqrt(double(length));
    for (size_t i = 0; i < line.size(); ++i) ASSERT_NEAR(std::abs(Complex(narrow[i]) - expected[i]), 0, bound);
  }
}

// A tensor of [outer, points, inner, parts].
struct Signal {
  Tensor tensor;
  Complex at(int64_t o, int64_t p, int64_t i) const {
    const Dims& dims = tensor.dims();
    const float* from = tensor.data<float>() + ((o * dims[1] + p) * dims[2] + i) * dims[3];
    return {from[0], dims[3] == 2 ? from[1] : 0};
  }
  Line line(int64_t o, int64_t i, int64_t length) const {
    Line line(static_cast<size_t>(length));
    for (int64_t p = 0; p < std::min(length, tensor.dims()[1]); ++p) line[static_cast<size_t>(p)] = at(o, p, i);
    return line;
  }
};

void expect_lines(const Signal& signal, const Tensor& result, int64_t length, bool is_inverse) {
  const Signal got{result};
  for (int64_t o = 0; o < signal.tensor.dims()[0]; ++o) {
    for (int64_t i = 0; i < signal.tensor.dims()[2]; ++i) {
      const Line expected = transformed(signal.line(o, i, length), is_inverse);
      for (int64_t p = 0; p < result.dims()[1]; ++p) {
        ASSERT_NEAR(std::abs(got.at(o, p, i) - expected[static_cast<size_t>(p)]), 0, 2e-6 * double(length))
            << o << " " << p << " " << i;
      }
    }
  }
}

TEST(Dft, TransformsAnyAxisOfRealAndComplexSignals) {
  std::mt19937 random(6);
  for (const int64_t parts : {1, 2}) {
    for (const int64_t length : {9, 12, 20}) {  // of a signal of 12: cut, kept, padded
      for (const bool is_inverse : {false, true}) {
        const Signal signal{random_tensor({3, 12, 5, parts}, random)};
        OpTester tester("DFT", 20);
        tester.with("inverse", is_inverse ? 1 : 0).input(signal.tensor);
        tester.constant(Tensor::scalar<int64_t>(length)).constant(Tensor::scalar<int64_t>(-3));
        const Tensor result = tester.result();
        ASSERT_EQ(result.dims(), (Dims{3, length, 5, 2}));
        expect_lines(signal, result, length, is_inverse);
        for (const int threads : {1, 3}) {
          const auto lowered = tester.lowered(usable_isa(), threads);
          ASSERT_TRUE(lowered.has_value());
          expect_lines(signal, (*lowered)[0], length, is_inverse);
        }
      }
    }
  }
}

TEST(Dft, GivesHalfOfTheSpectrumOfARealSignalAndTakesItBack) {
  std::mt19937 random(7);
  for (const int64_t length : {1, 2, 7, 12}) {
    const Signal signal{random_tensor({2, length, 3, 1}, random)};
    const Tensor half = OpTester("DFT", 17).with("onesided", 1).input(signal.tensor).result();
    ASSERT_EQ(half.dims(), (Dims{2, length / 2 + 1, 3, 2}));
    expect_lines(signal, half, length, false);
    OpTester back("DFT", 17);
    back.with("onesided", 1).with("inverse", 1).input(half).constant(Tensor::scalar<int64_t>(length));
    const auto lowered = back.lowered(usable_isa(), 1);
    ASSERT_TRUE(lowered.has_value());
    for (const Tensor& result : {back.result(), (*lowered)[0]}) {
      ASSERT_EQ(result.dims(), signal.tensor.dims());
      for (int64_t i = 0; i < result.size(); ++i) {
        EXPECT_NEAR(result.data<float>()[i], signal.tensor.data<float>()[i], 1e-6);
      }
    }
  }
}

TEST(Dft, RefusesAnAxisThatItLacksAndLengthsOfNothing) {
  const Tensor signal(DType::f32, {2, 4, 1}), no_parts(DType::f32, {2, 4, 3});
  const auto scalar = [](int64_t value) { return Tensor::scalar<int64_t>(value); };
  EXPECT_THROW(OpTester("DFT", 20).input(signal).absent().input(scalar(2)).result(), Error);
  EXPECT_THROW(OpTester("DFT", 20).input(signal).absent().input(scalar(-4)).result(), Error);
  EXPECT_THROW(OpTester("DFT", 20).input(signal).input(scalar(0)).result(), Error);
  EXPECT_THROW(OpTester("DFT", 20).input(signal).input(scalar(int64_t{1} << 62)).result(), Error);
  EXPECT_THROW(OpTester("DFT", 20).input(no_parts).result(), Error);
}

TEST(Stft, TransformsWindowedFrames) {
  std::mt19937 random(8);
  for (const int64_t parts : {1, 2}) {
    for (const bool is_onesided : {true, false}) {
      const int64_t length = 37, frame = 10, step = 4, frames = (length - frame) / step + 1;
      const Tensor signal = random_tensor({3, length, parts}, random), window = random_tensor({frame}, random);
      OpTester tester("STFT", 17);
      tester.with("onesided", is_onesided ? 1 : 0).input(signal).constant(Tensor::scalar<int64_t>(step)).input(window);
      std::vector<Tensor> results{tester.result()};
      for (const int threads : {1, 2}) results.push_back((*tester.lowered(usable_isa(), threads))[0]);
      for (const Tensor& result : results) {
        ASSERT_EQ(result.dims(), (Dims{3, frames, is_onesided ? frame / 2 + 1 : frame, 2}));
        const Signal got{result};
        for (int64_t b = 0; b < 3; ++b) {
          for (int64_t f = 0; f < frames; ++f) {
            Line line;
            for (int64_t i = 0; i < frame; ++i) {
              const float* from = signal.data<float>() + (b * length + f * step + i) * parts;
              line.push_back(Complex(from[0], parts == 2 ? from[1] : 0) * double{window.data<float>()[i]});
            }
            const Line expected = transformed(line, false);
            for (int64_t k = 0; k < result.dims()[2]; ++k) {
              ASSERT_NEAR(std::abs(got.at(b, f, k) - expected[static_cast<size_t>(k)]), 0, 1e-5);
            }
          }
        }
      }
    }
  }
}

TEST(Stft, RefusesFramesThatDoNotFit) {
  const Tensor signal(DType::f32, {1, 8, 1}), window(DType::f32, {4});
  const auto scalar = [](int64_t value) { return Tensor::scalar<int64_t>(value); };
  EXPECT_THROW(OpTester("STFT", 17).input(signal).input(scalar(0)).result(), Error);
  EXPECT_THROW(OpTester("STFT", 17).input(signal).input(scalar(2)).absent().input(scalar(9)).result(), Error);
  EXPECT_THROW(OpTester("STFT", 17).input(signal).input(scalar(2)).input(window).input(scalar(5)).result(), Error);
}

}  // namespace
}  // namespace lathe::testing
