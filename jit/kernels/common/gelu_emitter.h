#pragma once
// factor * y * Phi(y) of float32 lanes x on AVX-512, y = x * Int8Store::kGeluUnit, by tables in place of a division:
// cubics over |x|.
#include <array>
#include <span>

#include "jit/kernels/common/int8_lanes.h"

namespace lathe {

// x * Phi(x) = x / 2 + g(|x|); g by pieces, the last of which is the line |x| / 2 that it tends to.
struct GeluPieces {
  static constexpr int kCount = 16;  // what one vector holds
  static constexpr float kWidth =
      Int8Store::kGeluUnit;  // where the error at the line's begin is that of the first cubic
  std::array<std::array<float, kCount>, 4>
      coefficients;  // [power of the distance from the piece's middle, in widths][piece]
};
// Of factor * g.
GeluPieces gelu_pieces(float factor);

class GeluEmitter : public Int8Emitter {
 protected:
  using Int8Emitter::Int8Emitter;
  static constexpr int kGeluTemps = 4;  // for each vector

  // Every lane of `vecs`; operation by operation, so that one vector's latency hides behind the others.
  void gelu(std::span<const Vec> vecs, std::span<const Vec> temps);
  // What gelu() addresses by rip. Call once, behind the code's last instruction.
  void emit_gelu_tables(float factor);

 private:
  struct Numbers {
    Xbyak::Label magnitude, rounder, last, half;
  };
  Numbers numbers_;
  std::array<Xbyak::Label, 4> tables_;
};

}  // namespace lathe
