// TreeEnsemble, TreeEnsembleClassifier and TreeEnsembleRegressor of ai.onnx.ml.
#include <algorithm>
#include <memory>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/lower.h"
#include "ops/ml/ml_leaf_masks.h"
#include "ops/ml/ml_trees.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

[[noreturn]] void fail(const Node& node, const std::string& what) {
  throw Error(ErrorCode::invalid_model, describe(node) + ": " + what);
}

// What an ensemble gives for rows of features: scores, and classes if it is a classifier.
class Ensemble {
 public:
  virtual ~Ensemble() = default;
  const Forest& forest() const { return forest_; }
  Aggregate aggregate() const { return aggregate_; }
  int64_t features() const { return forest_.features(); }
  int64_t targets() const { return forest_.targets(); }
  virtual int64_t columns() const = 0;  // of the scores
  // Of what the forest found for a row: the scores, with room for columns() and at least two. Returns the class.
  // Allocates nothing.
  virtual int64_t finish(std::span<const Forest::Score> found, double* scores) const = 0;
  // `found`: room for targets().
  int64_t run(std::span<const double> row, double* scores, std::span<Forest::Score> found) const {
    forest_.score(row, aggregate_, found);
    return finish(found, scores);
  }

 protected:
  Ensemble(Forest forest, Aggregate aggregate) : forest_(std::move(forest)), aggregate_(aggregate) {}

 private:
  Forest forest_;
  Aggregate aggregate_;
};

// ---- TreeEnsemble, TreeEnsembleRegressor

Aggregate aggregate_of(const Node& node) {
  const std::string name = node.attributes.get_string("aggregate_function", "SUM");
  if (name == "SUM") return Aggregate::sum;
  if (name == "AVERAGE") return Aggregate::average;
  if (name == "MIN") return Aggregate::min;
  if (name != "MAX") fail(node, "attribute aggregate_function is " + in_quotes(name));
  return Aggregate::max;
}

class Regressor : public Ensemble {
 public:
  Regressor(const Node& node, Forest forest, Aggregate aggregate, PostTransform transform)
      : Ensemble(std::move(forest), aggregate), transform_(transform), base_(reals_attribute(node, "base_values")) {
    if (base_.size() == 1) base_.resize(static_cast<size_t>(targets()), base_[0]);
    if (base_.empty()) base_.resize(static_cast<size_t>(targets()), 0);
    if (static_cast<int64_t>(base_.size()) != targets()) {
      fail(node, "has " + std::to_string(base_.size()) + " base values for " + std::to_string(targets()) + " targets");
    }
  }
  int64_t columns() const override { return targets(); }
  int64_t finish(std::span<const Forest::Score> found, double* scores) const override {
    for (size_t i = 0; i < base_.size(); ++i) scores[i] = base_[i] + found[i].value;
    transform_scores(transform_, SecondScore::absent, scores, base_.size());
    return 0;
  }

 private:
  PostTransform transform_;
  std::vector<double> base_;
};

std::unique_ptr<const Ensemble> regressor_of(const Node& node) {
  const int64_t targets = node.attributes.get_int("n_targets", 1);
  return std::make_unique<Regressor>(node, Forest::of_lists(node, "target", targets), aggregate_of(node),
                                     post_transform_of(node));
}

std::unique_ptr<const Ensemble> ensemble_of(const Node& node) {
  const int64_t aggregate = node.attributes.get_int("aggregate_function", 1);
  const int64_t transform = node.attributes.get_int("post_transform", 0);
  if (aggregate < 0 || aggregate > 3) fail(node, "attribute aggregate_function is " + std::to_string(aggregate));
  if (transform < 0 || transform > 4) fail(node, "attribute post_transform is " + std::to_string(transform));
  static constexpr Aggregate kAggregates[] = {Aggregate::average, Aggregate::sum, Aggregate::min, Aggregate::max};
  static constexpr PostTransform kTransforms[] = {PostTransform::none, PostTransform::softmax, PostTransform::logistic,
                                                  PostTransform::softmax_zero, PostTransform::probit};
  return std::make_unique<Regressor>(node, Forest::of_arrays(node), kAggregates[aggregate], kTransforms[transform]);
}

// ---- TreeEnsembleClassifier

ClassLabels labels_of_node(const Node& node) { return class_labels(node, "classlabels_int64s", "classlabels_strings"); }

int64_t class_count(const Node& node) { return static_cast<int64_t>(labels_of_node(node).size()); }

class Classifier : public Ensemble {
 public:
  explicit Classifier(const Node& node)
      : Ensemble(Forest::of_lists(node, "class", std::max<int64_t>(class_count(node), 1)), Aggregate::sum),
        classes_(static_cast<size_t>(class_count(node))),
        transform_(post_transform_of(node)),
        base_(reals_attribute(node, "base_values")) {
    if (classes_ == 0) fail(node, "has no labels");
    const std::vector<int64_t> ids = node.attributes.get_ints("class_ids");
    const bool has_one_id = std::all_of(ids.begin(), ids.end(), [&](int64_t id) { return id == ids[0]; });
    is_binary_ = classes_ <= 2 && has_one_id;
    weighted_ = is_binary_ && !ids.empty() ? static_cast<size_t>(ids[0]) : 0;
    const std::vector<double> weights = reals_attribute(node, "class_weights");
    are_probabilities_ = std::all_of(weights.begin(), weights.end(), [](double weight) { return weight >= 0; });
    if (!base_.empty() && base_.size() != classes_ && !(is_binary_ && base_.size() <= 2)) {
      fail(node, "has " + std::to_string(base_.size()) + " base values for " + std::to_string(classes_) + " classes");
    }
  }
  int64_t columns() const override {
    if (!is_binary_) return static_cast<int64_t>(classes_);
    return transform_ == PostTransform::probit ? 1 : 2;
  }
  int64_t finish(std::span<const Forest::Score> found, double* scores) const override {
    const SecondScore second = are_probabilities_ ? SecondScore::complement : SecondScore::negation;
    if (is_binary_) {
      scores[0] = found[weighted_].value + (base_.empty() ? 0 : base_.back());
      const int64_t best = scores[0] > (are_probabilities_ ? 0.5 : 0) ? 1 : 0;
      transform_scores(transform_, second, scores, 1);
      return best;
    }
    for (size_t i = 0; i < found.size(); ++i) scores[i] = found[i].value + (base_.empty() ? 0 : base_[i]);
    const int64_t best = std::max_element(scores, scores + found.size()) - scores;
    transform_scores(transform_, SecondScore::absent, scores, found.size());
    return best;
  }

 private:
  size_t classes_;
  PostTransform transform_;
  std::vector<double> base_;
  bool is_binary_ = false;  // one weight per leaf, of the second of two classes
  size_t weighted_ = 0;     // the class that has the weights
  bool are_probabilities_ = false;
};

std::unique_ptr<const Ensemble> classifier_of(const Node& node) { return std::make_unique<Classifier>(node); }

// One label of its own stands for the positive class; the negative one has no name but 0.
ClassLabels named(ClassLabels labels) {
  if (labels.size() != 1) return labels;
  if (labels.are_texts()) labels.texts.insert(labels.texts.begin(), "0");
  if (!labels.are_texts()) labels.integers.insert(labels.integers.begin(), 0);
  return labels;
}

// ---- All of them

using Make = std::unique_ptr<const Ensemble>(const Node&);

template <Make kMake>
void infer_scores(InferContext& context) {
  // Tells a malformed ensemble at load.
  const auto ensemble = kMake(context.node);
  const bool is_tree_ensemble = context.node.op->name == "TreeEnsemble";
  const DType dtype = is_tree_ensemble ? context.input(0).dtype : DType::f32;
  context.set_output(0, scores_type(context, dtype, {ensemble->columns(), ""}));
}

void infer_classifier(InferContext& context) {
  const auto ensemble = classifier_of(context.node);
  context.set_output(0, labels_type(context, labels_of_node(context.node)));
  context.set_output(1, scores_type(context, DType::f32, {ensemble->columns(), ""}));
}

void require_features(const Node& node, const Ensemble& ensemble, int64_t columns) {
  if (ensemble.features() <= columns) return;
  throw Error(ErrorCode::invalid_argument, describe(node) + ": reads feature " +
                                               std::to_string(ensemble.features() - 1) + " of rows of " +
                                               std::to_string(columns));
}

template <Make kMake>
void run_trees(ReferenceContext& context) {
  const RowShape shape = row_shape(context, context.inputs[0]);
  const auto ensemble = kMake(context.node);
  require_features(context.node, *ensemble, shape.columns);
  const std::vector<double> input = reals_of(context.inputs[0]);
  const auto columns = static_cast<size_t>(ensemble->columns());
  std::vector<double> scores, one(columns + 1);
  std::vector<Forest::Score> found(static_cast<size_t>(ensemble->targets()));
  std::vector<int64_t> classes;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const std::span<const double> features(input.data() + row * shape.columns, static_cast<size_t>(shape.columns));
    classes.push_back(ensemble->run(features, one.data(), found));
    scores.insert(scores.end(), one.begin(), one.begin() + static_cast<std::ptrdiff_t>(columns));
  }
  const bool is_classifier = context.node.op->name == "TreeEnsembleClassifier";
  const DType dtype = context.node.op->name == "TreeEnsemble" ? context.inputs[0].dtype() : DType::f32;
  if (is_classifier) context.outputs[0] = labels_of(named(labels_of_node(context.node)), classes);
  const size_t output = is_classifier ? 1 : 0;
  if (output < context.outputs.size()) {
    context.outputs[output] = tensor_of_reals(context, dtype, {shape.rows, ensemble->columns()}, scores);
  }
}

// ---- Lowering: the trees are built once; each thread takes a share of the rows.

struct TreeStep {
  std::shared_ptr<const Ensemble> ensemble;
  std::shared_ptr<const LeafMasks> masks;  // null: rows are walked one by one
  std::vector<int64_t> labels;             // of a classifier's classes
  size_t rows, columns;
  BufferId input, classes = BufferId::none, scores = BufferId::none, scratch = BufferId::none;

  // Of one thread: a row's scores; what the forest found for it; then a row, or what several at once need.
  size_t width() const { return static_cast<size_t>(ensemble->columns()) + 1; }
  size_t found_count() const { return static_cast<size_t>(ensemble->targets()); }
  size_t scratch_bytes() const {
    size_t bytes = columns * sizeof(double);
    if (masks != nullptr) {
      bytes = std::max(bytes, static_cast<size_t>(masks->sum_doubles()) * sizeof(double) +
                                  static_cast<size_t>(masks->feature_floats()) * sizeof(float));
    }
    return bytes + width() * sizeof(double) + found_count() * sizeof(Forest::Score);
  }

  void run(const StepArgs& args) const {
    auto* made = args.own<double>(scratch);
    const std::span<Forest::Score> found(reinterpret_cast<Forest::Score*>(made + width()), found_count());
    auto* room = reinterpret_cast<double*>(found.data() + found.size());
    const Range mine = split_evenly(static_cast<long>(rows), args.share, args.shares);
    for (long row = mine.begin; row < mine.end;) {
      const float* features = args.at<const float>(input) + static_cast<size_t>(row) * columns;
      const long count = masks != nullptr ? std::min<long>(mine.end - row, masks->rows()) : 1;
      if (masks != nullptr && count >= masks->fewest_rows()) {
        auto* by_feature = reinterpret_cast<float*>(room + masks->sum_doubles());
        masks->score(features, static_cast<int64_t>(columns), count, by_feature, room);
        for (long i = 0; i < count; ++i) {
          take_sums(room + i, found);
          put(args, row + i, ensemble->finish(found, made), made);
        }
        row += count;
        continue;
      }
      std::copy_n(features, columns, room);
      put(args, row, ensemble->run({room, columns}, made, found), made);
      ++row;
    }
  }

  void take_sums(const double* sums, std::span<Forest::Score> found) const {
    const bool is_average = ensemble->aggregate() == Aggregate::average;
    const double parts = is_average ? static_cast<double>(ensemble->forest().trees()) : 1;
    for (size_t i = 0; i < found.size(); ++i) found[i] = {sums[static_cast<int64_t>(i) * masks->rows()] / parts, true};
  }

  void put(const StepArgs& args, long row, int64_t best, const double* made) const {
    const size_t r = static_cast<size_t>(row), count = width() - 1;
    if (classes != BufferId::none) args.at<int64_t>(classes)[r] = labels[static_cast<size_t>(best)];
    if (scores == BufferId::none) return;
    for (size_t i = 0; i < count; ++i) args.at<float>(scores)[r * count + i] = static_cast<float>(made[i]);
  }
};

// Minima and maxima are walked for; one row always is.
std::shared_ptr<const LeafMasks> masks_of(const Ensemble& ensemble, size_t rows, Isa isa) {
  if (rows < 2 || (ensemble.aggregate() != Aggregate::sum && ensemble.aggregate() != Aggregate::average))
    return nullptr;
  std::optional<LeafMasks> masks = LeafMasks::of(ensemble.forest(), isa);
  return masks ? std::make_shared<const LeafMasks>(*std::move(masks)) : nullptr;
}

constexpr size_t kRowsPerThread = 16;

template <Make kMake>
bool lower_trees(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  if (type.dtype != DType::f32 || type.rank() < 1 || type.rank() > 2) return false;
  TreeStep trees{kMake(context.node), nullptr, {}, 0, 0, context.buffer(context.input(0))};
  const Dims dims = type.extents();
  trees.rows = dims.size() == 2 ? static_cast<size_t>(dims[0]) : 1;
  trees.columns = static_cast<size_t>(dims.back());
  require_features(context.node, *trees.ensemble, dims.back());
  trees.masks = masks_of(*trees.ensemble, trees.rows, context.target.isa);
  Step step;
  const bool is_classifier = context.node.op->name == "TreeEnsembleClassifier";
  if (is_classifier && context.has_output(0)) {
    const ClassLabels labels = named(labels_of_node(context.node));
    if (labels.are_texts()) return false;
    trees.labels = labels.integers;
    trees.classes = context.buffer(context.output(0));
    step.writes.push_back(trees.classes);
  }
  const int output = is_classifier ? 1 : 0;
  if (context.has_output(output)) {
    trees.scores = context.buffer(context.output(output));
    step.writes.push_back(trees.scores);
  }
  step.threads = static_cast<int>(std::clamp<size_t>(trees.rows / kRowsPerThread, 1, context.target.threads));
  trees.scratch = context.thread_scratch(trees.scratch_bytes());
  step.kernel = trees.masks != nullptr ? "trees by masks of leaves" : "trees";
  step.reads = {trees.input, trees.scratch};
  step.writes.push_back(trees.scratch);
  step.run = [trees = std::move(trees)](const StepArgs& args) { trees.run(args); };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> ml_tree_ensembles_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> nodes = {{"aggregate_function"},
                                            {"base_values", Kind::reals},
                                            {"base_values_as_tensor", Kind::tensor},
                                            {"nodes_featureids", Kind::integers},
                                            {"nodes_falsenodeids", Kind::integers},
                                            {"nodes_nodeids", Kind::integers},
                                            {"nodes_treeids", Kind::integers},
                                            {"nodes_truenodeids", Kind::integers},
                                            {"nodes_modes", Kind::strings},
                                            {"nodes_values", Kind::reals},
                                            {"nodes_values_as_tensor", Kind::tensor},
                                            {"nodes_missing_value_tracks_true", Kind::integers},
                                            {"post_transform", Kind::string}};
  return {{.schema = {.name = "TreeEnsembleRegressor",
                      .domain = "ai.onnx.ml",
                      .attributes = nodes,
                      .infer = infer_scores<regressor_of>,
                      .reference = run_trees<regressor_of>},
           .lower = lower_trees<regressor_of>},
          {.schema = {.name = "TreeEnsembleClassifier",
                      .domain = "ai.onnx.ml",
                      .max_outputs = 2,
                      .attributes = nodes,
                      .infer = infer_classifier,
                      .reference = run_trees<classifier_of>},
           .lower = lower_trees<classifier_of>},
          {.schema = {.name = "TreeEnsemble",
                      .domain = "ai.onnx.ml",
                      .since = 5,
                      .attributes = {{"aggregate_function", Kind::integer},
                                     {"leaf_targetids", Kind::integers, true},
                                     {"leaf_weights", Kind::tensor, true},
                                     {"membership_values", Kind::tensor},
                                     {"n_targets", Kind::integer},
                                     {"nodes_falseleafs", Kind::integers, true},
                                     {"nodes_falsenodeids", Kind::integers, true},
                                     {"nodes_featureids", Kind::integers, true},
                                     {"nodes_missing_value_tracks_true", Kind::integers},
                                     {"nodes_modes", Kind::tensor, true},
                                     {"nodes_splits", Kind::tensor, true},
                                     {"nodes_trueleafs", Kind::integers, true},
                                     {"nodes_truenodeids", Kind::integers, true},
                                     {"post_transform", Kind::integer},
                                     {"tree_roots", Kind::integers, true}},
                      .infer = infer_scores<ensemble_of>,
                      .reference = run_trees<ensemble_of>},
           .lower = lower_trees<ensemble_of>}};
}

}  // namespace lathe::ops
