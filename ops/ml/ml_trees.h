#pragma once
// Decision trees of ai.onnx.ml, built once from attributes that were checked, then walked row by row.
#include <cstdint>
#include <span>
#include <vector>

#include "graph/op_schema.h"
#include "ops/ml/ml_scores.h"

namespace lathe {

enum class Aggregate { sum, average, min, max };

class Forest {
 public:
  // TreeEnsembleClassifier and TreeEnsembleRegressor: nodes and leaf weights by (tree, node) numbers. `weights`:
  // "class" or "target", the prefix of the attributes with the weights. TreeEnsemble (5): see of_arrays. Throw
  // Error(invalid_model) on lists of different lengths, missing children, cycles and targets >= `targets`.
  static Forest of_lists(const Node& node, const std::string& weights, int64_t targets);
  static Forest of_arrays(const Node& node);

  int64_t features() const { return features_; }  // columns that a row must have at least
  int64_t targets() const { return targets_; }
  size_t trees() const { return roots_.size(); }

  struct Score {
    double value = 0;
    bool is_set = false;  // some leaf gave a weight
  };
  // Writes one score per target.
  void score(std::span<const double> row, Aggregate aggregate, std::span<Score> scores) const;

 private:
  friend class LeafMasks;
  enum class Mode : uint8_t { leq, lt, gte, gt, eq, neq, member };
  // Where a branch leads: a node, or past them a leaf.
  struct Branch {
    Mode mode = Mode::leq;
    bool missing_is_true = false;
    int32_t feature = 0;
    double value = 0;  // of Mode::member: the number of its set
    int32_t if_true = 0, if_false = 0;
  };
  struct Weight {
    int64_t target;
    double value;
  };
  struct Leaf {
    size_t begin = 0, end = 0;  // in weights_
  };
  class Builder;

  // Where every branch is "x <= value", or "x < value" of the number above it: the choice as an index. Leaves follow,
  // each its own child, so that several trees walk side by side without asking who has arrived.
  struct PlainBranch {
    double value = 0;
    int32_t feature = 0;
    int32_t children[2] = {};  // [is true]
    uint8_t missing_is_true = 0;
  };
  static constexpr size_t kTogether = 8;

  bool takes_true(const Branch& branch, double x) const;
  void list_plain_branches();
  int32_t leaf_of(int32_t root, std::span<const double> row) const;
  // Of kTogether trees: from their roots to their leaves.
  void find_leaves(std::span<const double> row, int32_t* at) const;
  void add_leaf(const Leaf& leaf, Aggregate aggregate, std::span<Score> scores) const;

  // A number below branches_.size() is a branch, the rest are leaves.
  std::vector<Branch> branches_;
  std::vector<PlainBranch> plain_;  // empty: not all are plain
  std::vector<Leaf> leaves_;
  std::vector<Weight> weights_;
  std::vector<int32_t> roots_;
  std::vector<std::vector<double>> sets_;  // sorted
  int64_t features_ = 0, targets_ = 0;
};

}  // namespace lathe
