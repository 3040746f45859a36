#pragma once
// Decision trees for as many rows as a vector has lanes, without a branch: each test of a tree takes those leaves away
// that a row cannot reach; of what is left the first leaf is the row's. After C. Lucchese, F. M. Nardini, S. Orlando,
// R. Perego, N. Tonellotto, R. Venturini, "Exploiting CPU SIMD extensions to speed-up document scoring with tree
// ensembles", 2016.
#include <cstdint>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

// x <= threshold, which is false of NaN.
struct LeafTest {
  float threshold;
  uint32_t feature_bytes;  // from the features to x
  uint32_t leaves;         // that a row can reach for which it is false; bit 0: the leftmost
};

// Neighbouring leaves of one tree.
struct LeafWord {
  static constexpr int kLeaves = 32;
  static constexpr uint32_t kTestsTogether = 4;
  uint32_t tests;    // a positive multiple of kTestsTogether
  uint32_t targets;  // that the leaves have weights for
  uint32_t is_next;  // 0: the tree's first word; all ones: another, for rows whose leaf is not in one before
};

struct LeafMaskArgs {
  const float* features;   // [features][lanes]
  const LeafTest* tests;   // of all words, one behind the other
  const LeafWord* words;   // from left to right
  int64_t count;           // of words, >= 1
  const float* weights;    // [LeafWord::kLeaves] for each target of each word
  const uint32_t* places;  // of each: bytes from the sums to the target's
  double* sums;            // [targets][lanes]; a row's weights are added in the order of the words
};

Kernel<void(const LeafMaskArgs*)> leaf_mask_kernel(Isa isa);

}  // namespace lathe
