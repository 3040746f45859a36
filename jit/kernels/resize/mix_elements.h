#pragma once
// Weighted sums of single float32 elements of a row: Resize along rows. A vector of sums takes each of its terms by a
// permutation of one or two vectors of the row, where it is made of so few, else by a gather.
#include <cstdint>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "jit/kernels/resize/mix_terms.h"
#include "src/base/cpu.h"

namespace lathe {

struct MixElementsPlan {
  Isa isa = Isa::avx2;
  int terms = 1;
  bool blends = false;         // as in MixTerms
  int windows = 1;             // vectors of the row that a vector of sums is made of: 1 or 2; 0: gathered
  bool has_short_row = false;  // shorter than the windows
  bool has_few_sums = false;   // fewer than a vector has

  bool is_valid() const;
  bool operator==(const MixElementsPlan&) const = default;
};
std::string to_string(const MixElementsPlan& plan);

// What the kernel reads. The last vector ends with the row, and may share sums with the one before; or rows of the
// result have room for whole vectors.
struct MixElementsTable {
  MixElementsPlan plan;
  std::vector<int32_t> offsets;  // of each vector of sums: of its windows, bytes into the row
  std::vector<int32_t> order;    // [vectors][terms][lanes]: elements of the windows, or of the row
  std::vector<float> weights;    // as `order`; of a plan that blends [vectors][lanes]
  // [3][lanes], bits all 1 or all 0: elements that the windows have where the row is short, lanes where sums are few.
  std::vector<int32_t> masks;
  int64_t sums = 0;  // of a row, with those that fill up its last vector
};
enum class MixedRoom { sums, vectors };
// Of a row of `extent` elements. Requires: extent and terms.count() are positive and fit 31 bits as bytes.
MixElementsTable mix_elements_table(const MixTerms& terms, int64_t extent, Isa isa, MixedRoom room);

// The same sums of each of several rows. Distances are in bytes.
struct MixElementsArgs {
  const float* from;
  float* to;
  const int32_t* offsets;
  const int32_t* order;
  const float* weights;
  const int32_t* masks;
  int64_t sums;  // of the table
  int64_t rows;  // >= 1
  int64_t from_row, to_row;
};
using MixElementsFn = void(const MixElementsArgs* args);
Kernel<MixElementsFn> mix_elements_kernel(const MixElementsPlan& plan);

}  // namespace lathe
