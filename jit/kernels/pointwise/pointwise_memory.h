#pragma once
// Loads of any element type as float32 lanes and the stores back, with asmjit's Compiler.
#include "jit/expression/compiled_expression.h"
#include "lathe/dtype.h"

namespace lathe {

// How much of a vector is there.
struct Lanes {
  enum class Kind : uint8_t { all, masked, one } kind = Kind::all;
  asmjit::x86::KReg opmask;      // masked, AVX-512
  asmjit::x86::Ymm vector_mask;  // masked, AVX2: 4-byte elements only
};

int element_bytes(DType dtype);
bool can_load(DType dtype);
bool can_store(DType dtype);

class VectorMemory {
 public:
  using Vec = asmjit::x86::Vec;
  using Mem = asmjit::x86::Mem;
  VectorMemory(asmjit::x86::Compiler& compiler, Isa isa) : cc_(compiler), isa_(isa) {}

  void load(DType dtype, const Vec& into, const Mem& at, const Lanes& lanes);
  void load_scalar(DType dtype, const Vec& into, const Mem& at);  // to all lanes
  // Clobbers `value`, which must hold integral values in range for integer types, 0 or 1 for bool.
  void store(DType dtype, const Mem& at, const Vec& value, const Lanes& lanes);

 private:
  bool has_masks() const { return has_avx512(isa_); }
  asmjit::x86::Compiler& masked(const Lanes& lanes);
  void load_int64(const Vec& into, const Mem& at, const Lanes& lanes);
  void store_bytes(DType dtype, const Mem& at, const Vec& integers, const Lanes& lanes);
  void store_words(DType dtype, const Mem& at, const Vec& integers, const Lanes& lanes);
  void store_half(const Mem& at, const Vec& value, const Lanes& lanes);
  void store_one(DType dtype, const Mem& at, const Vec& value);

  asmjit::x86::Compiler& cc_;
  Isa isa_;
};

}  // namespace lathe
