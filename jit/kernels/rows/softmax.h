#pragma once
// Softmax and LogSoftmax of float32: over rows (the axis is contiguous, or a few rows lie element by element between
// each other), or over columns (the axis has a stride and vectors run across it).
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/common/int8_store.h"
#include "src/base/cpu.h"

namespace lathe {

struct SoftmaxPlan {
  Isa isa = Isa::avx2;
  bool is_log = false;
  bool is_strided = false;
  // Over columns: elements wait in `row`, and those of `from` are read once and those of `to` written once: they may
  // lie so that the caches have room for few of them at a time.
  bool keeps_columns = false;
  // Over rows: 2, 4 or 8 of them share a dense one, an element of each in turn. 1: they do not.
  int interleaved = 1;
  // Of bytes, for softmax over rows: it is multiplied by a factor and stored as these, and its exponentials need no
  // more than 17 bits. Else it is stored as float32.
  Int8Store store = {};
  bool operator==(const SoftmaxPlan&) const = default;
  bool stores_bytes() const { return lathe::stores_bytes(store); }
};
std::string to_string(const SoftmaxPlan& plan);

// from and to may be the same, of float32. Strided: `rows` is the extent of the axis, its elements stride_bytes apart,
// and each of the `columns` columns is normalized. Else: each of `rows` dense rows of `columns` elements is, or, of
// such rows, each of the interleaved ones; rows of bytes are stored stride_bytes apart.
constexpr int64_t kSoftmaxRowsTogether = 4;
constexpr int64_t kSoftmaxColumnsTogether = 64;
struct SoftmaxArgs {
  const float* from;
  void* to;  // float32, or the bytes that the plan stores
  int64_t rows, columns;
  int64_t stride_bytes;
  // When bytes are stored: room for kSoftmaxRowsTogether rows; where columns are kept: for `rows` elements of
  // kSoftmaxColumnsTogether of them.
  float* row = nullptr;
  float factor = 1;  // of what is stored as bytes
};
using SoftmaxFn = void(const SoftmaxArgs* args);
// Requires of a call: rows >= 1, columns >= 1.
Kernel<SoftmaxFn> softmax_kernel(const SoftmaxPlan& plan);

}  // namespace lathe
