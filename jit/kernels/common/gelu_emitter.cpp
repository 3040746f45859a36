#include "jit/kernels/common/gelu_emitter.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "jit/expression/interpolation.h"

namespace lathe {
namespace {

// Added to less than 2^22, it leaves a whole number, which is at the end of its bits.
constexpr float kRounder = 3 << 22;

double g(double u) { return u * std::erf(u / std::numbers::sqrt2) / 2; }

}  // namespace

GeluPieces gelu_pieces(float factor) {
  GeluPieces pieces = {};
  constexpr double kWidth = GeluPieces::kWidth;
  for (size_t piece = 0; piece + 1 < GeluPieces::kCount; ++piece) {
    const double middle = static_cast<double>(piece) * kWidth;
    // g is even: what lies below 0 is right, too.
    const std::array<double, 4> power =
        interpolate<4>([&](double distance) { return g(middle + distance); }, kWidth / 2);
    for (size_t k = 0; k < 4; ++k) {
      pieces.coefficients[k][piece] = static_cast<float>(factor * power[k] * std::pow(kWidth, k));
    }
  }
  constexpr size_t kLast = GeluPieces::kCount - 1;
  pieces.coefficients[0][kLast] = static_cast<float>(factor * static_cast<double>(kLast) * kWidth / 2);
  pieces.coefficients[1][kLast] = static_cast<float>(factor / 2 * kWidth);
  return pieces;
}

void GeluEmitter::gelu(std::span<const Vec> vecs, std::span<const Vec> temps) {
  const size_t count = vecs.size();
  const auto each = [&](auto emit) {
    for (size_t i = 0; i < count; ++i) {
      const auto zmm = [](const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); };
      const size_t first = i * kGeluTemps;
      emit(zmm(vecs[i]), zmm(temps[first]), zmm(temps[first + 1]), zmm(temps[first + 2]), zmm(temps[first + 3]));
    }
  };
  using Z = Xbyak::Zmm;
  // In pieces, so that additions do the rest: the multipliers have enough to do.
  each([&](const Z& x, const Z& distance, const Z&, const Z&, const Z&) {
    vpandd(distance, x, ptr_b[rip + numbers_.magnitude]);
  });
  each([&](const Z&, const Z& distance, const Z& piece, const Z&, const Z&) {
    vaddps(piece, distance, ptr_b[rip + numbers_.rounder]);
  });
  each([&](const Z&, const Z&, const Z& piece, const Z&, const Z&) {
    vpminud(piece, piece, ptr_b[rip + numbers_.last]);  // positive numbers compare like their bits
  });
  each([&](const Z&, const Z&, const Z& piece, const Z& number, const Z& sum) {
    vsubps(number, piece, ptr_b[rip + numbers_.rounder]);
    vpermps(sum, piece, ptr[rip + tables_[3]]);
  });
  each([&](const Z&, const Z& distance, const Z&, const Z& number, const Z&) { vsubps(distance, distance, number); });
  for (size_t power = 3; power-- > 0;) {
    each([&](const Z&, const Z& distance, const Z& piece, const Z& coefficient, const Z& sum) {
      vpermps(coefficient, piece, ptr[rip + tables_[power]]);
      vfmadd213ps(sum, distance, coefficient);
    });
  }
  each(
      [&](const Z& x, const Z&, const Z&, const Z&, const Z& sum) { vfmadd132ps(x, sum, ptr_b[rip + numbers_.half]); });
}

void GeluEmitter::emit_gelu_tables(float factor) {
  const GeluPieces pieces = gelu_pieces(factor);
  align(64);
  for (size_t power = 0; power < 4; ++power) {
    L(tables_[power]);
    for (const float coefficient : pieces.coefficients[power]) dd(std::bit_cast<uint32_t>(coefficient));
  }
  const auto number = [&](Xbyak::Label& label, uint32_t bits) {
    L(label);
    dd(bits);
  };
  number(numbers_.magnitude, 0x7fffffff);
  number(numbers_.rounder, std::bit_cast<uint32_t>(kRounder));
  number(numbers_.last, std::bit_cast<uint32_t>(kRounder + GeluPieces::kCount - 1));
  number(numbers_.half, std::bit_cast<uint32_t>(factor / 2 * GeluPieces::kWidth));
}

}  // namespace lathe
