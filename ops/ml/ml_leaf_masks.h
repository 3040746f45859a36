#pragma once
// A forest as what the kernel of leaf masks reads: many rows at once, in time that grows with the trees' leaves and not
// with their depth.
#include <cstdint>
#include <optional>
#include <vector>

#include "jit/kernels/trees/leaf_masks.h"
#include "ops/ml/ml_trees.h"

namespace lathe {

class LeafMasks {
 public:
  // nullopt: trees so large that a walk from root to leaf is faster, branches that are not plain, thresholds that are
  // NaN, or weights that are no float32.
  static std::optional<LeafMasks> of(const Forest& forest, Isa isa);

  int64_t rows() const { return lanes_; }               // at once
  int64_t fewest_rows() const { return fewest_rows_; }  // fewer are sooner walked
  int64_t feature_floats() const { return static_cast<int64_t>(columns_.size()) * lanes_; }
  int64_t sum_doubles() const { return targets_ * lanes_; }
  // Of rows [count][stride], count <= rows(): `sums` becomes [targets][rows()], the sums of the leaves' weights in the
  // order of the trees. `features`: room for feature_floats().
  void score(const float* rows, int64_t stride, int64_t count, float* features, double* sums) const noexcept;

 private:
  // A feature as tests see it: where what is missing makes them true, it is smaller than all.
  struct Column {
    int32_t feature;
    uint8_t missing_is_true;
    bool operator==(const Column&) const = default;
  };
  class Builder;

  int64_t lanes_ = 0, targets_ = 0, fewest_rows_ = 0;
  std::vector<Column> columns_;
  std::vector<LeafTest> tests_;
  std::vector<LeafWord> words_;
  std::vector<float> weights_;
  std::vector<uint32_t> places_;
  Kernel<void(const LeafMaskArgs*)> kernel_;
};

}  // namespace lathe
