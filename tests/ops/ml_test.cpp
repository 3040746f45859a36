// ai.onnx.ml: references against values computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "src/base/box.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

using Ints = std::vector<int64_t>;
using Floats = std::vector<float>;
using Texts = std::vector<std::string>;

OpTester ml(const std::string& op, int version = 5) { return OpTester(op, version, "ai.onnx.ml"); }

Tensor texts(std::initializer_list<std::string> elements) {
  return Tensor::from<std::string>({static_cast<int64_t>(elements.size())}, elements);
}

void expect_near(const Tensor& tensor, const Floats& expected) {
  ASSERT_EQ(static_cast<size_t>(tensor.size()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(tensor.data<float>()[i], expected[i], 1e-5) << i;
}

TEST(MlFeatures, AreExtractedByIndex) {
  const Tensor data = tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(list<float>(ml("ArrayFeatureExtractor").input(data).input(longs({2, 0})).result()), (Floats{3, 1, 6, 4}));
  EXPECT_EQ(ml("ArrayFeatureExtractor").input(floats({1, 2})).input(longs({1})).result().dims(), (Dims{1, 1}));
  for (const int64_t outside : {-1, 3}) {
    EXPECT_THROW(ml("ArrayFeatureExtractor").input(data).input(longs({outside})).reference(), Error) << outside;
  }
}

TEST(MlFeatures, AreScaledByFeatureOrAllAlike) {
  const Tensor data = tensor<float>({2, 2}, {1, 2, 3, 4});
  const Tensor result = ml("Scaler").with("offset", Floats{1, 2}).with("scale", Floats{10, 100}).input(data).result();
  EXPECT_EQ(list<float>(result), (Floats{0, 0, 20, 200}));
  EXPECT_THROW(ml("Scaler").with("scale", Floats{1, 2, 3}).input(data).reference(), Error);
}

TEST(MlFeatures, AreNormalizedRowByRow) {
  const Tensor data = tensor<float>({2, 2}, {3, -4, 0, 0});
  expect_near(ml("Normalizer").with("norm", "L2").input(data).result(), {0.6F, -0.8F, 0, 0});
  expect_near(ml("Normalizer").with("norm", "L1").input(data).result(), {3 / 7.F, -4 / 7.F, 0, 0});
  expect_near(ml("Normalizer").with("norm", "MAX").input(data).result(), {1, -4 / 3.F, 0, 0});
}

TEST(MlFeatures, AreImputedWhereTheyAreMissing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor data = tensor<float>({2, 2}, {nan, 2, 3, nan});
  const Tensor result =
      ml("Imputer").with("imputed_value_floats", Floats{7, 8}).with("replaced_value_float", nan).input(data).result();
  EXPECT_EQ(list<float>(result), (Floats{7, 2, 3, 8}));
  const Tensor integers = ml("Imputer")
                              .with("imputed_value_int64s", Ints{9})
                              .with("replaced_value_int64", -1)
                              .input(tensor<int64_t>({1, 2}, {-1, 5}))
                              .result();
  EXPECT_EQ(list<int64_t>(integers), (Ints{9, 5}));
}

TEST(MlFeatures, AreJoinedAtTheirDeclaredWidths) {
  const Tensor result = ml("FeatureVectorizer")
                            .with("inputdimensions", Ints{1, 3})
                            .input(tensor<float>({2, 2}, {1, 2, 3, 4}))
                            .input(tensor<int64_t>({2, 2}, {5, 6, 7, 8}))
                            .result();
  EXPECT_EQ(list<float>(result), (Floats{1, 5, 6, 0, 3, 7, 8, 0}));
}

TEST(LabelEncoder, MapsTextsAndNumbersBothWays) {
  const Tensor numbers = ml("LabelEncoder")
                             .with("keys_strings", Texts{"a", "b"})
                             .with("values_int64s", Ints{10, 20})
                             .with("default_int64", 99)
                             .input(texts({"b", "x", "a"}))
                             .result();
  EXPECT_EQ(list<int64_t>(numbers), (Ints{20, 99, 10}));
  const Tensor words = ml("LabelEncoder")
                           .with("keys_floats", Floats{1.5F, NAN})
                           .with("values_strings", Texts{"one and a half", "none"})
                           .input(floats({NAN, 1.5F, 2}))
                           .result();
  EXPECT_EQ(list<std::string>(words), (Texts{"none", "one and a half", "_Unused"}));
}

TEST(LabelEncoder, OfVersionOneCountsItsClasses) {
  const Texts classes{"cat", "dog"};
  EXPECT_EQ(list<int64_t>(ml("LabelEncoder", 1).with("classes_strings", classes).input(texts({"dog", "?"})).result()),
            (Ints{1, -1}));
  EXPECT_EQ(list<std::string>(ml("LabelEncoder", 1).with("classes_strings", classes).input(longs({0, 7})).result()),
            (Texts{"cat", "_Unused"}));
}

TEST(LabelEncoder, RejectsListsOfDifferentLengths) {
  EXPECT_THROW(ml("LabelEncoder")
                   .with("keys_strings", Texts{"a", "b"})
                   .with("values_int64s", Ints{1})
                   .input(texts({"a"}))
                   .reference(),
               Error);
}

TEST(OneHotEncoder, MarksTheCategory) {
  const Tensor result = ml("OneHotEncoder").with("cats_int64s", Ints{4, 7}).input(longs({7, 4, 1})).result();
  EXPECT_EQ(result.dims(), (Dims{3, 2}));
  EXPECT_EQ(list<float>(result), (Floats{0, 1, 1, 0, 0, 0}));
  EXPECT_THROW(ml("OneHotEncoder").with("cats_int64s", Ints{4}).with("zeros", 0).input(longs({5})).reference(), Error);
}

// ---- Maps

Tensor mapped(Tensor keys, Tensor values) { return box(AnyValue::map(std::move(keys), std::move(values))); }

Tensor run_on_map(const std::string& op, const Tensor& map, Attributes attributes) {
  Node node;
  node.op = &OpRegistry::builtin().require("ai.onnx.ml", op, 5);
  node.name = "tested";
  node.inputs = {static_cast<ValueId>(0)};
  node.outputs = {static_cast<ValueId>(1)};
  node.attributes = std::move(attributes);
  return run_reference(node, std::vector<Tensor>{map}, {})[0];
}

TEST(MlMaps, AreMadeOfRowsByZipMap) {
  const Tensor rows = tensor<float>({2, 2}, {1, 2, 3, 4});
  const AnyValue made = unbox(ml("ZipMap").with("classlabels_strings", Texts{"no", "yes"}).input(rows).result());
  ASSERT_EQ(made.items().size(), 2u);
  EXPECT_EQ(list<std::string>(made.items()[1].pairs().keys), (Texts{"no", "yes"}));
  EXPECT_EQ(list<float>(made.items()[1].pairs().values), (Floats{3, 4}));
  EXPECT_THROW(ml("ZipMap").with("classlabels_int64s", Ints{1}).input(rows).reference(), Error);
}

TEST(MlMaps, AreSpreadOverAVocabulary) {
  Attributes attributes;
  attributes.set("string_vocabulary", Texts{"a", "c", "b", "z"});
  const Tensor map = mapped(texts({"c", "a", "unknown"}), floats({8, 4, 1}));
  const Tensor result = run_on_map("DictVectorizer", map, attributes);
  EXPECT_EQ(result.dims(), (Dims{1, 4}));
  EXPECT_EQ(list<float>(result), (Floats{4, 8, 0, 0}));
}

TEST(MlMaps, AreCastInTheOrderOfTheirKeysOrAtThem) {
  const Tensor map = mapped(longs({3, 1}), texts({"2.5", "7"}));
  EXPECT_EQ(list<float>(run_on_map("CastMap", map, {})), (Floats{7, 2.5F}));
  Attributes sparse;
  sparse.set("map_form", std::string("SPARSE"));
  sparse.set("max_map", int64_t{5});
  EXPECT_EQ(list<float>(run_on_map("CastMap", map, sparse)), (Floats{0, 7, 0, 2.5F, 0}));
  sparse.set("max_map", int64_t{3});
  EXPECT_THROW(run_on_map("CastMap", map, sparse), Error);
}

// ---- Linear models

TEST(LinearRegressor, MultipliesAndAdds) {
  const Tensor data = tensor<float>({2, 2}, {1, 2, 3, 4});
  const auto regressor = [&] {
    return ml("LinearRegressor").with("coefficients", Floats{1, 10, 2, 20}).with("targets", 2).input(data);
  };
  EXPECT_EQ(list<float>(regressor().with("intercepts", Floats{100, 0}).result()), (Floats{121, 42, 143, 86}));
  EXPECT_THROW(regressor().with("intercepts", Floats{1}).reference(), Error);
  EXPECT_THROW(ml("LinearRegressor").with("coefficients", Floats{1}).input(data).reference(), Error);
}

TEST(LinearClassifier, TakesTheLargestScore) {
  const auto results = ml("LinearClassifier")
                           .with("coefficients", Floats{1, 0, 0, 1})
                           .with("intercepts", Floats{0, 0})
                           .with("classlabels_strings", Texts{"left", "right"})
                           .with("post_transform", "SOFTMAX")
                           .input(tensor<float>({2, 2}, {2, 0, 0, 1}))
                           .outputs(2)
                           .reference();
  EXPECT_EQ(list<std::string>(results[0]), (Texts{"left", "right"}));
  const float e2 = std::exp(-2.F), e1 = std::exp(-1.F);
  expect_near(results[1], {1 / (1 + e2), e2 / (1 + e2), e1 / (1 + e1), 1 / (1 + e1)});
}

TEST(LinearClassifier, HasAsManyTargetsAsIntercepts) {
  const auto classifier = [](const Floats& coefficients) {
    return ml("LinearClassifier")
        .with("coefficients", coefficients)
        .with("intercepts", Floats{0, 0})
        .with("classlabels_ints", Ints{4, 5})
        .input(tensor<float>({2, 2}, {2, 0, 0, 1}));
  };
  EXPECT_EQ(list<int64_t>(classifier({1, 0, 0, 1, 9, 9, 9, 9}).outputs(2).reference()[0]), (Ints{4, 5}));
  EXPECT_THROW(classifier({1, 0, 0}).outputs(2).reference(), Error);
}

// ---- Support vectors

TEST(SvmRegressor, SumsItsKernels) {
  const auto regressor = [](const char* kernel) {
    return ml("SVMRegressor")
        .with("kernel_type", kernel)
        .with("kernel_params", Floats{0.5F, 1, 2})
        .with("n_supports", 2)
        .with("support_vectors", Floats{1, 0, 0, 1})
        .with("coefficients", Floats{2, -1})
        .with("rho", Floats{0.25F})
        .input(tensor<float>({1, 2}, {3, 1}));
  };
  expect_near(regressor("LINEAR").result(), {2 * 3 - 1 + 0.25F});
  expect_near(regressor("POLY").result(), {2 * 2.5F * 2.5F - 1.5F * 1.5F + 0.25F});
  expect_near(regressor("RBF").result(), {2 * std::exp(-2.5F) - std::exp(-4.5F) + 0.25F});
  expect_near(regressor("SIGMOID").result(), {2 * std::tanh(2.5F) - std::tanh(1.5F) + 0.25F});
}

TEST(SvmClassifier, LetsPairsVote) {
  // Three classes with one vector each on a line; every pair is decided by which vector is nearer.
  const auto results = ml("SVMClassifier")
                           .with("kernel_type", "LINEAR")
                           .with("vectors_per_class", Ints{1, 1, 1})
                           .with("support_vectors", Floats{1, 0, 0, 1, -1, -1})
                           .with("coefficients", Floats{1, -1, -1, 1, 1, -1})
                           .with("rho", Floats{0, 0, 0})
                           .with("classlabels_ints", Ints{5, 6, 7})
                           .input(tensor<float>({3, 2}, {2, 0, 0, 2, -1, -1}))
                           .outputs(2)
                           .reference();
  EXPECT_EQ(list<int64_t>(results[0]), (Ints{5, 6, 7}));
  EXPECT_EQ(results[1].dims(), (Dims{3, 3}));
}

TEST(SvmClassifier, RejectsMissingCoefficients) {
  EXPECT_THROW(ml("SVMClassifier")
                   .with("vectors_per_class", Ints{100000, 100000})
                   .with("support_vectors", Floats{1})
                   .with("coefficients", Floats{1})
                   .with("rho", Floats{0})
                   .with("classlabels_ints", Ints{0, 1})
                   .input(tensor<float>({1, 4}, {1, 2, 3, 4}))
                   .reference(),
               Error);
}

// ---- Trees

// x0 <= 0.5 ? (x1 < 2 ? 1 : 2) : 10, and a second tree of one leaf that gives 100.
OpTester tree_model(int64_t first_child = 1, int64_t feature = 0, int64_t target = 0) {
  return ml("TreeEnsembleRegressor")
      .with("nodes_treeids", Ints{0, 0, 0, 0, 0, 1})
      .with("nodes_nodeids", Ints{0, 1, 2, 3, 4, 0})
      .with("nodes_featureids", Ints{feature, 1, 0, 0, 0, 0})
      .with("nodes_modes", Texts{"BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF", "LEAF"})
      .with("nodes_values", Floats{0.5F, 2, 0, 0, 0, 0})
      .with("nodes_truenodeids", Ints{first_child, 3, 0, 0, 0, 0})
      .with("nodes_falsenodeids", Ints{2, 4, 0, 0, 0, 0})
      .with("target_treeids", Ints{0, 0, 0, 1})
      .with("target_nodeids", Ints{3, 4, 2, 0})
      .with("target_ids", Ints{0, 0, target, 0})
      .with("target_weights", Floats{1, 2, 10, 100})
      .with("n_targets", 1);
}

OpTester two_trees(int64_t first_child = 1, int64_t feature = 0, int64_t target = 0) {
  return tree_model(first_child, feature, target).input(tensor<float>({4, 2}, {0, 1, 0.5F, 2, 1, 0, NAN, 0}));
}

TEST(TreeEnsembleRegressor, AddsTheLeavesOfItsTrees) {
  EXPECT_EQ(list<float>(two_trees().result()), (Floats{101, 102, 110, 110}));
  EXPECT_EQ(list<float>(two_trees().with("base_values", Floats{1000}).result()), (Floats{1101, 1102, 1110, 1110}));
  EXPECT_EQ(list<float>(two_trees().with("aggregate_function", "AVERAGE").result()), (Floats{50.5F, 51, 55, 55}));
  EXPECT_EQ(list<float>(two_trees().with("aggregate_function", "MIN").result()), (Floats{1, 2, 10, 10}));
  EXPECT_EQ(list<float>(two_trees().with("aggregate_function", "MAX").result()), (Floats{100, 100, 100, 100}));
}

TEST(TreeEnsembleRegressor, WalksTheSameTreesInGeneratedSteps) {
  std::mt19937 random(7);
  const Tensor rows = random_tensor({67, 2}, random, -1, 3);
  for (const int threads : {1, 2}) {
    OpTester tester = tree_model().input(rows);
    const auto lowered = tester.lowered(Isa::avx2, threads);
    ASSERT_TRUE(lowered);
    EXPECT_EQ(list<float>((*lowered)[0]), list<float>(tester.result()));
  }
}

// x <= 0.5 ? 1 : (x < 2 ? 20 : 300), so many times over, each tree with weights of its own.
TEST(TreeEnsembleRegressor, WalksTreesSideBySide) {
  for (const int64_t trees : {1, 7, 8, 9, 17}) {
    for (const int64_t missing : {0, 1}) {
      Ints tree, node, feature, if_true, if_false, tracks, target_tree, target_node, target;
      Texts mode;
      Floats value, weight;
      for (int64_t t = 0; t < trees; ++t) {
        const bool has_branches = t % 3 != 2;  // others are one leaf
        const auto nodes = static_cast<size_t>(has_branches ? 5 : 1);
        const char* modes[] = {has_branches ? "BRANCH_LEQ" : "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"};
        const float values[] = {0.5F, 0, 2, 0, 0}, weights[] = {1, 1, 0, 20, 300};
        for (size_t n = 0; n < nodes; ++n) {
          tree.push_back(t);
          node.push_back(static_cast<int64_t>(n));
          feature.push_back(0);
          mode.emplace_back(modes[n]);
          value.push_back(values[n]);
          if_true.push_back(n == 0 ? 1 : 3);
          if_false.push_back(n == 0 ? 2 : 4);
          tracks.push_back(missing);
          if (mode.back() != "LEAF") continue;
          target_tree.push_back(t);
          target_node.push_back(static_cast<int64_t>(n));
          target.push_back(0);
          weight.push_back(weights[n] * static_cast<float>(t + 1));
        }
      }
      auto tester = ml("TreeEnsembleRegressor");
      tester.with("nodes_treeids", tree).with("nodes_nodeids", node).with("nodes_featureids", feature);
      tester.with("nodes_modes", mode).with("nodes_values", value).with("nodes_truenodeids", if_true);
      tester.with("nodes_falsenodeids", if_false).with("nodes_missing_value_tracks_true", tracks);
      tester.with("target_treeids", target_tree).with("target_nodeids", target_node).with("target_ids", target);
      tester.with("target_weights", weight).with("n_targets", 1);
      Floats expected;
      const Floats x = {0.5F, 0.6F, 1.999F, 2, 3, NAN, -INFINITY, INFINITY};
      for (const float each : x) {
        float sum = 0;
        for (int64_t t = 0; t < trees; ++t) {
          const bool is_low = each <= 0.5F || (std::isnan(each) && missing == 1), is_below = each < 2;
          sum += static_cast<float>(t + 1) * (t % 3 == 2 || is_low ? 1.0F : is_below ? 20.0F : 300.0F);
        }
        expected.push_back(sum);
      }
      EXPECT_EQ(list<float>(tester.input(Tensor::from<float>({8, 1}, std::span<const float>(x))).result()), expected)
          << trees;
    }
  }
}

TEST(TreeEnsembleRegressor, SendsMissingValuesWhereTheNodeSays) {
  const Tensor result = two_trees().with("nodes_missing_value_tracks_true", Ints{1, 0, 0, 0, 0, 0}).result();
  EXPECT_EQ(result.data<float>()[3], 101);
}

TEST(TreeEnsembleRegressor, RejectsTreesThatCannotBeWalked) {
  EXPECT_THROW(two_trees(0).reference(), Error) << "a cycle";
  EXPECT_THROW(two_trees(1000000).reference(), Error) << "a missing child";
  EXPECT_THROW(two_trees(1, 10000000).reference(), Error) << "a missing feature";
  EXPECT_THROW(two_trees(1, -1).reference(), Error) << "a negative feature";
  EXPECT_THROW(two_trees(1, 0, 1).reference(), Error) << "a missing target";
  EXPECT_THROW(two_trees().with("nodes_values", Floats{1}).reference(), Error) << "lists of different lengths";
}

OpTester classifier() {
  return ml("TreeEnsembleClassifier")
      .with("nodes_treeids", Ints{0, 0, 0})
      .with("nodes_nodeids", Ints{0, 1, 2})
      .with("nodes_featureids", Ints{0, 0, 0})
      .with("nodes_modes", Texts{"BRANCH_GT", "LEAF", "LEAF"})
      .with("nodes_values", Floats{0, 0, 0})
      .with("nodes_truenodeids", Ints{1, 0, 0})
      .with("nodes_falsenodeids", Ints{2, 0, 0})
      .with("class_treeids", Ints{0, 0, 0})
      .with("class_nodeids", Ints{1, 1, 2})
      .with("class_ids", Ints{0, 2, 1})
      .with("class_weights", Floats{0.25F, 0.75F, 1});
}

TEST(TreeEnsembleClassifier, NamesTheClassOfTheLargestSum) {
  const auto results = classifier()
                           .with("classlabels_strings", Texts{"a", "b", "c"})
                           .input(tensor<float>({2, 1}, {1, -1}))
                           .outputs(2)
                           .reference();
  EXPECT_EQ(list<std::string>(results[0]), (Texts{"c", "b"}));
  EXPECT_EQ(list<float>(results[1]), (Floats{0.25F, 0, 0.75F, 0, 1, 0}));
}

TEST(TreeEnsembleClassifier, NamesTheSameClassInGeneratedSteps) {
  OpTester tester =
      classifier().with("classlabels_int64s", Ints{7, 8, 9}).input(tensor<float>({2, 1}, {1, -1})).outputs(2);
  const auto lowered = tester.lowered(Isa::avx2, 1);
  ASSERT_TRUE(lowered);
  EXPECT_EQ(list<int64_t>((*lowered)[0]), (Ints{9, 8}));
  EXPECT_EQ(list<float>((*lowered)[1]), (Floats{0.25F, 0, 0.75F, 0, 1, 0}));
}

TEST(TreeEnsemble, TestsMembershipInTheOrderOfItsNodes) {
  // Node 0: x0 in {1, 2} ? node 1 : leaf 0; node 1: x1 in {3} ? leaf 1 : leaf 2.
  const auto ensemble = [](const Ints& true_nodes) {
    return ml("TreeEnsemble")
        .with("nodes_featureids", Ints{0, 1})
        .with("nodes_modes", tensor<uint8_t>({2}, {6, 6}))
        .with("nodes_splits", floats({0, 0}))
        .with("membership_values", floats({2, 1, NAN, 3, NAN}))
        .with("nodes_truenodeids", true_nodes)
        .with("nodes_trueleafs", Ints{0, 1})
        .with("nodes_falsenodeids", Ints{0, 2})
        .with("nodes_falseleafs", Ints{1, 1})
        .with("leaf_targetids", Ints{0, 0, 1})
        .with("leaf_weights", floats({5, 6, 7}))
        .with("tree_roots", Ints{0})
        .with("n_targets", 2)
        .input(tensor<float>({3, 2}, {0, 3, 1, 3, 2, 4}));
  };
  EXPECT_EQ(list<float>(ensemble({1, 1}).result()), (Floats{5, 0, 6, 0, 0, 7}));
  EXPECT_THROW(ensemble({0, 1}).reference(), Error) << "a cycle";
  EXPECT_THROW(ensemble({2, 1}).reference(), Error) << "a missing node";
}

}  // namespace
}  // namespace lathe::testing
