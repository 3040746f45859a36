#pragma once
// Pooling on channel blocks: one call computes a strip of rows of one block, or reduces a whole plane.
#include <memory>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "jit/kernels/conv/conv_shape.h"
#include "lathe/dtype.h"
#include "src/base/cpu.h"

namespace lathe {

enum class PoolKind : uint8_t { max, average };

struct PoolShape {
  ConvShape windows;  // taps and extents; blocked input
  // Average: how many elements each output of an axis divides by (their product is the divisor). Empty for max.
  std::vector<int> y_counts, x_counts;
  DType dtype = DType::f32;  // or u8, i8: maxima only
};

struct PoolStrip {
  int entry = 0;
  int64_t source = 0, target = 0;  // bytes from the planes' beginnings
};

// Windows that slide. Throws JitError when the windows are too large to be emitted.
class PoolKernels {
 public:
  using Function = void(const void* source, void* target);
  static PoolKernels make(Isa isa, PoolKind kind, const PoolShape& shape);

  Function* entry(int i) const { return code_.entry(i); }
  const std::vector<PoolStrip>& strips() const { return strips_; }

 private:
  KernelSet<Function> code_;
  std::vector<PoolStrip> strips_;
};

// One vector of results from `pixels` vectors: their maximum, or their sum times `scale`. Requires: pixels >= 1.
using GlobalPool = void(const float* source, float* target, int64_t pixels, float scale);
Kernel<GlobalPool> make_global_pool(Isa isa, PoolKind kind);

}  // namespace lathe
