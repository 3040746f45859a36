#pragma once
// Base of the emitters of windows that slide: a function for each kind of row, cut into tiles of outputs.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "jit/emitter.h"
#include "jit/kernels/conv/conv_tiling.h"
#include "jit/kernels/pool/pool.h"

namespace lathe {

// Windows are alike where the same taps are inside, and so many elements count.
inline std::string pool_signature(const ConvAxis& axis, const std::vector<int>& counts, int64_t begin, int64_t size) {
  std::string signature = valid_taps(axis, {begin, size});
  if (counts.empty()) return signature;
  for (int64_t i = begin; i < begin + size; ++i) signature += "/" + std::to_string(counts[static_cast<size_t>(i)]);
  return signature;
}

class PoolRowsEmitter : public Emitter {
 protected:
  PoolRowsEmitter(Isa isa, const PoolShape& shape) : Emitter(isa), shape_(shape) {}

  void emit_rows(const std::vector<int64_t>& rows) {
    for (const int64_t row : rows) {
      begin_entry();
      emit_row(row);
    }
  }

  // Outputs of the tile that begins at this column.
  virtual int64_t tile_size(int64_t col) const = 0;
  // What its code depends on, the row aside.
  virtual std::string tile_key(int64_t col, int64_t size) const {
    return pool_signature(shape_.windows.x, shape_.x_counts, col, size);
  }
  // source_ is at the pixel of the row and column times their strides, target_ at the first output.
  virtual void emit_tile(int64_t row, int64_t col, int64_t size) = 0;
  virtual int pixel_bytes() const = 0;

  // What the windows of a tile are made of: visit(number of the pixel in the tile, where from source_ on, is it the
  // first of its window).
  template <class Visit>
  void for_each_element(int64_t row, int64_t col, int64_t size, Visit visit) {
    const ConvAxis &y = shape_.windows.y, &x = shape_.windows.x;
    std::vector<bool> is_started(static_cast<size_t>(size), false);
    for (const ConvTap& ty : y.taps) {
      if (!y.is_inside(row, ty)) continue;
      for (const ConvTap& tx : x.taps) {
        for (int64_t i = 0; i < size; ++i) {
          if (!x.is_inside(col + i, tx)) continue;
          const auto pixel = static_cast<size_t>(i);
          visit(pixel, source_ + source_offset(ty, i * x.stride + tx.offset), !is_started[pixel]);
          is_started[pixel] = true;
        }
      }
    }
    // A window that lies in the padding has no elements; the reference knows what that means.
    if (std::find(is_started.begin(), is_started.end(), false) != is_started.end())
      throw JitError("a pooling window is empty");
  }

  // Of the input at such a tap and pixel, from source_.
  int source_offset(const ConvTap& ty, int64_t pixel) {
    constexpr int kMostLoads = 60'000;  // in all tiles that are emitted
    const int64_t bytes = (ty.offset * shape_.windows.x.in + pixel) * pixel_bytes();
    if (std::abs(bytes) > INT32_MAX / 2) throw JitError("pooling rows are too far apart");
    if (++loads_ > kMostLoads) throw JitError("pooling windows are too large");
    return static_cast<int>(bytes);
  }

  const PoolShape& shape_;
  const Gpr source_ = argument(0), target_ = argument(1), left_ = claim_gpr("left");

 private:
  void emit_row(int64_t row) {
    begin();
    const ConvAxis& x = shape_.windows.x;
    for (int64_t col = 0; col < x.out;) {
      const int64_t size = std::min<int64_t>(tile_size(col), x.out - col);
      const std::string key = tile_key(col, size);
      int64_t repeats = 1;
      while (col + (repeats + 1) * size <= x.out && tile_key(col + repeats * size, size) == key) ++repeats;
      const auto emit_one = [&] {
        emit_tile(row, col, size);
        add(source_, static_cast<uint32_t>(size * x.stride * pixel_bytes()));
        add(target_, static_cast<uint32_t>(size * pixel_bytes()));
      };
      if (repeats == 1) {
        emit_one();
      } else {
        mov(left_, repeats);
        loop_down(left_, emit_one);
      }
      col += repeats * size;
    }
    end();
  }

  int loads_ = 0;
};

// The code of maxima of bytes.
std::shared_ptr<const CodePages> emit_byte_pool(Isa isa, const PoolShape& shape, const std::vector<int64_t>& rows,
                                                const std::string& name);

}  // namespace lathe
