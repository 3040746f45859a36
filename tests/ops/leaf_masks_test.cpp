// Masks of leaves against walks from root to leaf.
#include "ops/ml/ml_leaf_masks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kFeatures = 5;

// The attributes of an ensemble of random trees.
class RandomForest {
 public:
  RandomForest(std::mt19937& random, int64_t targets) : random_(random), targets_(targets) {}

  // `leaves` of them, under branches that are put in place of random leaves; or, one-sided, of the newest.
  void add_tree(int64_t leaves, bool is_one_sided = false) {
    const auto first = static_cast<int64_t>(mode_.size());
    std::vector<int64_t> open{0};
    add_node();
    while (static_cast<int64_t>(open.size()) < leaves) {
      const size_t chosen = is_one_sided ? open.size() - 1 : random_() % open.size();
      const int64_t node = open[chosen];
      const auto place = static_cast<size_t>(first + node);
      const bool has_number_below = value_[place] > -INFINITY;
      mode_[place] = has_number_below && random_() % 3 == 0 ? "BRANCH_LT" : "BRANCH_LEQ";
      for (Ints* child : {&if_true_, &if_false_}) {
        (*child)[place] = static_cast<int64_t>(mode_.size()) - first;
        open.push_back(static_cast<int64_t>(mode_.size()) - first);
        add_node();
      }
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    for (const int64_t leaf : open) add_weights(leaf);
    ++trees_;
  }

  template <class Receiver>
  void describe_to(Receiver&& receive, const std::string& weights) const {
    receive("nodes_treeids", tree_);
    receive("nodes_nodeids", node_);
    receive("nodes_featureids", feature_);
    receive("nodes_modes", mode_);
    receive("nodes_values", value_);
    receive("nodes_truenodeids", if_true_);
    receive("nodes_falsenodeids", if_false_);
    receive("nodes_missing_value_tracks_true", missing_);
    receive(weights + "_treeids", weight_tree_);
    receive(weights + "_nodeids", weight_node_);
    receive(weights + "_ids", weight_target_);
    receive(weights + "_weights", weight_);
  }

  Forest forest() const {
    Node node;
    node.op = &OpRegistry::builtin().require("ai.onnx.ml", "TreeEnsembleRegressor", 3);
    describe_to([&](const std::string& name, const auto& list) { node.attributes.set(name, list); }, "target");
    return Forest::of_lists(node, "target", targets_);
  }

 private:
  void add_node() {
    std::uniform_real_distribution<float> uniform(-1, 1);
    const float rare[] = {INFINITY, -INFINITY, 0, std::numeric_limits<float>::max()};
    node_.push_back(tree_.empty() || tree_.back() != trees_ ? 0 : node_.back() + 1);
    tree_.push_back(trees_);
    feature_.push_back(static_cast<int64_t>(random_() % kFeatures));
    mode_.emplace_back("LEAF");
    value_.push_back(random_() % 10 == 0 ? rare[random_() % 4] : uniform(random_));
    if_true_.push_back(0);
    if_false_.push_back(0);
    missing_.push_back(static_cast<int64_t>(random_() % 2));
  }
  // One for each target, for a random one, or none.
  void add_weights(int64_t leaf) {
    const int64_t some = static_cast<int64_t>(random_() % static_cast<uint64_t>(targets_)), kind = random_() % 8;
    for (int64_t target = 0; target < targets_; ++target) {
      if (kind == 0 || (kind < 5 && target != some)) continue;
      weight_tree_.push_back(trees_);
      weight_node_.push_back(leaf);
      weight_target_.push_back(target);
      weight_.push_back(std::uniform_real_distribution<float>(-1, 1)(random_));
    }
  }

  std::mt19937& random_;
  int64_t targets_, trees_ = 0;
  Ints tree_, node_, feature_, if_true_, if_false_, missing_, weight_tree_, weight_node_, weight_target_;
  std::vector<std::string> mode_;
  std::vector<float> value_, weight_;
};

float random_feature(std::mt19937& random) {
  const float rare[] = {NAN, INFINITY, -INFINITY, 0};
  return random() % 8 == 0 ? rare[random() % 4] : std::uniform_real_distribution<float>(-1, 1)(random);
}

TEST(LeafMasks, FindTheSameSumsAsWalks) {
  std::mt19937 random(11);
  for (const Isa isa : isas_here()) {
    for (int round = 0; round < 60; ++round) {
      const int64_t targets = 1 + static_cast<int64_t>(random() % 3);
      RandomForest trees(random, targets);
      const auto count = 1 + random() % 12;
      for (size_t tree = 0; tree < count; ++tree)
        trees.add_tree(tree == 0 ? 12 : 1 + static_cast<int64_t>(random() % 70));
      const Forest forest = trees.forest();
      const std::optional<LeafMasks> masks = LeafMasks::of(forest, isa);
      ASSERT_TRUE(masks);
      for (const int64_t rows : {int64_t{1}, masks->rows() - 1, masks->rows()}) {
        const int64_t stride = kFeatures + static_cast<int64_t>(random() % 3);
        GuardedFloats data(static_cast<size_t>((rows - 1) * stride + kFeatures), random() % 2 == 0);
        for (size_t i = 0; i < data.size(); ++i) data[i] = random_feature(random);
        const GuardedFloats features(static_cast<size_t>(masks->feature_floats()));
        std::vector<double> sums(static_cast<size_t>(masks->sum_doubles()));
        masks->score(data.data(), stride, rows, features.data(), sums.data());
        for (int64_t row = 0; row < rows; ++row) {
          const float* at = data.data() + row * stride;
          const std::vector<double> wide(at, at + kFeatures);
          std::vector<Forest::Score> expected(static_cast<size_t>(targets));
          forest.score(wide, Aggregate::sum, expected);
          for (int64_t target = 0; target < targets; ++target)
            ASSERT_EQ(sums[static_cast<size_t>(target * masks->rows() + row)],
                      expected[static_cast<size_t>(target)].value)
                << name_of(isa) << " round " << round << " row " << row << " target " << target;
        }
      }
    }
  }
}

TEST(LeafMasks, AreNotForTreesThatAreSoonerWalked) {
  std::mt19937 random(12);
  for (const Isa isa : isas_here()) {
    RandomForest flat(random, 1), deep(random, 1);
    flat.add_tree(32);
    deep.add_tree(3000);
    EXPECT_TRUE(LeafMasks::of(flat.forest(), isa));
    EXPECT_FALSE(LeafMasks::of(deep.forest(), isa));
    RandomForest endless(random, 1);
    endless.add_tree(30000, true);
    EXPECT_FALSE(LeafMasks::of(endless.forest(), isa));
  }
}

TEST(LeafMasks, GiveAStepWhatTheReferenceGives) {
  std::mt19937 random(13);
  RandomForest trees(random, 3);
  for (int tree = 0; tree < 9; ++tree) trees.add_tree(20 + tree);
  for (const Isa isa : isas_here()) ASSERT_TRUE(LeafMasks::of(trees.forest(), isa));
  for (const int64_t rows : {1, 2, 33, 70}) {
    Tensor data(DType::f32, {rows, kFeatures});
    std::generate_n(data.mutable_data<float>(), data.size(), [&] { return random_feature(random); });
    for (const bool classifies : {false, true}) {
      OpTester tester(classifies ? "TreeEnsembleClassifier" : "TreeEnsembleRegressor", 3, "ai.onnx.ml");
      trees.describe_to([&](const std::string& name, const auto& list) { tester.with(name, list); },
                        classifies ? "class" : "target");
      tester.input(data);
      if (classifies) {
        tester.with("classlabels_int64s", Ints{4, 5, 6}).with("post_transform", "SOFTMAX").outputs(2);
      } else {
        tester.with("n_targets", 3).with("aggregate_function", "AVERAGE");
      }
      const std::vector<Tensor> expected = tester.reference();
      for (const Isa isa : isas_here()) {
        for (const int threads : {1, 2}) {
          const auto results = tester.lowered(isa, threads);
          ASSERT_TRUE(results);
          EXPECT_EQ(list<float>(results->back()), list<float>(expected.back())) << rows;
          if (classifies) {
            EXPECT_EQ(list<int64_t>((*results)[0]), list<int64_t>(expected[0])) << rows;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe::testing
