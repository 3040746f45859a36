#include "ops/ml/ml_trees.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/numbers.h"

namespace lathe {

class Forest::Builder {
 public:
  explicit Builder(const Node& node) : node_(node) {}

  void read_lists(const std::string& prefix, int64_t targets);
  void read_arrays();
  Forest take() {
    check_acyclic();
    forest_.list_plain_branches();
    return std::move(forest_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::invalid_model, describe(node_) + ": " + what);
  }

  std::vector<int64_t> integers(const std::string& name) const { return node_.attributes.get_ints(name); }

  template <class List>
  void require_size(const std::string& name, const List& list, size_t size) const {
    if (list.size() == size) return;
    fail("attribute '" + name + "' has " + std::to_string(list.size()) + " elements, expected " + std::to_string(size));
  }

  // An absent list stands for zeros.
  std::vector<int64_t> flags(const std::string& name, size_t size) const {
    std::vector<int64_t> list = integers(name);
    if (list.empty()) list.resize(size, 0);
    require_size(name, list, size);
    return list;
  }

  void set_feature(Branch& branch, int64_t feature) {
    if (feature < 0 || feature > kMostFeatures) fail("feature " + std::to_string(feature) + " is out of range");
    branch.feature = static_cast<int32_t>(feature);
    forest_.features_ = std::max(forest_.features_, feature + 1);
  }

  void set_targets(int64_t targets) {
    if (targets < 1 || targets > kMostTargets) fail("has " + std::to_string(targets) + " targets");
    forest_.targets_ = targets;
  }

  void add_weight(int64_t target, double value) {
    if (target < 0 || target >= forest_.targets_) {
      fail("target " + std::to_string(target) + " is out of range for " + std::to_string(forest_.targets_));
    }
    forest_.weights_.push_back({target, value});
  }

  // ---- of lists
  using Key = std::pair<int64_t, int64_t>;  // tree, node
  void read_branches();
  void read_weights(const std::string& prefix);
  int32_t child(int64_t tree, int64_t number) const {
    const auto found = places_.find({tree, number});
    if (found == places_.end()) {
      fail("node " + std::to_string(number) + " of tree " + std::to_string(tree) + " does not exist");
    }
    return found->second;
  }

  // ---- of arrays
  void read_sets(const std::vector<int64_t>& modes);
  int32_t child(int64_t number, bool is_leaf) const {
    const size_t count = is_leaf ? forest_.leaves_.size() : forest_.branches_.size();
    if (number < 0 || number >= static_cast<int64_t>(count)) {
      fail(std::string(is_leaf ? "leaf " : "node ") + std::to_string(number) + " does not exist");
    }
    return static_cast<int32_t>(is_leaf ? number + static_cast<int64_t>(forest_.branches_.size()) : number);
  }

  void check_acyclic() const;

  static constexpr int64_t kMostFeatures = int64_t{1} << 30;
  static constexpr int64_t kMostTargets = int64_t{1} << 24;

  const Node& node_;
  Forest forest_;
  std::map<Key, int32_t> places_;  // of each node, in the numbering of Branch
};

// A walk that meets a branch again before it has left it would never end. Depth first, without recursion: trees may be
// deep.
void Forest::Builder::check_acyclic() const {
  enum class State : uint8_t { fresh, open, done };
  const auto count = static_cast<int32_t>(forest_.branches_.size());
  std::vector<State> states(forest_.branches_.size(), State::fresh);
  std::vector<int32_t> path;
  for (int32_t root = 0; root < count; ++root) {
    if (states[static_cast<size_t>(root)] != State::fresh) continue;
    path.push_back(root);
    while (!path.empty()) {
      const auto at = static_cast<size_t>(path.back());
      if (states[at] != State::fresh) {
        states[at] = State::done;
        path.pop_back();
        continue;
      }
      states[at] = State::open;
      for (const int32_t next : {forest_.branches_[at].if_true, forest_.branches_[at].if_false}) {
        if (next >= count) continue;
        if (states[static_cast<size_t>(next)] == State::open) fail("its trees have a cycle");
        if (states[static_cast<size_t>(next)] == State::fresh) path.push_back(next);
      }
    }
  }
}

// ---- TreeEnsembleClassifier, TreeEnsembleRegressor

void Forest::Builder::read_branches() {
  const std::vector<int64_t> trees = integers("nodes_treeids"), numbers = integers("nodes_nodeids");
  const std::vector<std::string> modes = node_.attributes.get_strings("nodes_modes");
  const size_t count = numbers.size();
  if (count > size_t{1} << 30) fail("has too many nodes");
  require_size("nodes_treeids", trees, count);
  require_size("nodes_modes", modes, count);
  const std::vector<int64_t> features = integers("nodes_featureids"), if_true = integers("nodes_truenodeids"),
                             if_false = integers("nodes_falsenodeids"),
                             missing = flags("nodes_missing_value_tracks_true", count);
  const std::vector<double> values = reals_attribute(node_, "nodes_values");
  require_size("nodes_featureids", features, count);
  require_size("nodes_truenodeids", if_true, count);
  require_size("nodes_falsenodeids", if_false, count);
  require_size("nodes_values", values, count);

  static const std::map<std::string, Mode> kModes{{"BRANCH_LEQ", Mode::leq}, {"BRANCH_LT", Mode::lt},
                                                  {"BRANCH_GTE", Mode::gte}, {"BRANCH_GT", Mode::gt},
                                                  {"BRANCH_EQ", Mode::eq},   {"BRANCH_NEQ", Mode::neq}};
  std::vector<size_t> branches, leaves;
  for (size_t i = 0; i < count; ++i) (modes[i] == "LEAF" ? leaves : branches).push_back(i);
  for (size_t i = 0; i < branches.size(); ++i)
    places_[{trees[branches[i]], numbers[branches[i]]}] = static_cast<int32_t>(i);
  for (size_t i = 0; i < leaves.size(); ++i) {
    places_[{trees[leaves[i]], numbers[leaves[i]]}] = static_cast<int32_t>(branches.size() + i);
  }
  if (places_.size() != count) fail("a node is defined twice");
  forest_.leaves_.resize(leaves.size());
  for (const size_t i : branches) {
    const auto mode = kModes.find(modes[i]);
    if (mode == kModes.end()) fail("node mode " + in_quotes(modes[i]) + " is unknown");
    Branch branch{.mode = mode->second, .missing_is_true = missing[i] != 0, .value = values[i]};
    set_feature(branch, features[i]);
    branch.if_true = child(trees[i], if_true[i]);
    branch.if_false = child(trees[i], if_false[i]);
    forest_.branches_.push_back(branch);
  }
  // The first node of each tree is its root.
  std::map<int64_t, int32_t> roots;
  for (size_t i = 0; i < count; ++i) roots.emplace(trees[i], places_[{trees[i], numbers[i]}]);
  for (const auto& [tree, root] : roots) forest_.roots_.push_back(root);
}

void Forest::Builder::read_weights(const std::string& prefix) {
  const std::vector<int64_t> trees = integers(prefix + "_treeids"), numbers = integers(prefix + "_nodeids"),
                             targets = integers(prefix + "_ids");
  const std::vector<double> values = reals_attribute(node_, prefix + "_weights");
  require_size(prefix + "_treeids", trees, values.size());
  require_size(prefix + "_nodeids", numbers, values.size());
  require_size(prefix + "_ids", targets, values.size());
  std::vector<std::pair<int32_t, size_t>> by_leaf;
  const auto first_leaf = static_cast<int32_t>(forest_.branches_.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const int32_t place = child(trees[i], numbers[i]);
    if (place >= first_leaf) by_leaf.emplace_back(place - first_leaf, i);
    if (targets[i] < 0 || targets[i] >= forest_.targets_) {
      fail("target " + std::to_string(targets[i]) + " is out of range for " + std::to_string(forest_.targets_));
    }
  }
  std::stable_sort(by_leaf.begin(), by_leaf.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [leaf, i] : by_leaf) {
    Leaf& filled = forest_.leaves_[static_cast<size_t>(leaf)];
    if (filled.begin == filled.end) filled.begin = forest_.weights_.size();
    add_weight(targets[i], values[i]);
    filled.end = forest_.weights_.size();
  }
}

void Forest::Builder::read_lists(const std::string& prefix, int64_t targets) {
  set_targets(targets);
  read_branches();
  read_weights(prefix);
}

// ---- TreeEnsemble

// The members of each node of mode 6, in the order of the nodes, each list ended by NaN.
void Forest::Builder::read_sets(const std::vector<int64_t>& modes) {
  const Tensor tensor = node_.attributes.get_tensor("membership_values");
  const std::vector<double> members = tensor.defined() ? reals_of(tensor) : std::vector<double>();
  auto at = members.begin();
  for (const int64_t mode : modes) {
    if (mode != static_cast<int64_t>(Mode::member)) continue;
    const auto end = std::find_if(at, members.end(), [](double member) { return std::isnan(member); });
    if (end == members.end()) fail("attribute 'membership_values' has too few lists");
    forest_.sets_.emplace_back(at, end);
    std::sort(forest_.sets_.back().begin(), forest_.sets_.back().end());
    at = end + 1;
  }
  if (at != members.end()) fail("attribute 'membership_values' has too many lists");
}

void Forest::Builder::read_arrays() {
  set_targets(node_.attributes.get_int("n_targets", 1));
  const std::vector<int64_t> features = integers("nodes_featureids"), if_true = integers("nodes_truenodeids"),
                             if_false = integers("nodes_falsenodeids"), roots = integers("tree_roots"),
                             targets = integers("leaf_targetids");
  const size_t count = features.size();
  const std::vector<int64_t> true_leafs = integers("nodes_trueleafs"), false_leafs = integers("nodes_falseleafs"),
                             modes = integers_of_any(node_.attributes.get_tensor("nodes_modes")),
                             missing = flags("nodes_missing_value_tracks_true", count);
  const std::vector<double> splits = reals_of(node_.attributes.get_tensor("nodes_splits")),
                            values = reals_of(node_.attributes.get_tensor("leaf_weights"));
  require_size("nodes_truenodeids", if_true, count);
  require_size("nodes_falsenodeids", if_false, count);
  require_size("nodes_trueleafs", true_leafs, count);
  require_size("nodes_falseleafs", false_leafs, count);
  require_size("nodes_modes", modes, count);
  require_size("nodes_splits", splits, count);
  require_size("leaf_targetids", targets, values.size());
  read_sets(modes);
  for (size_t i = 0; i < values.size(); ++i) {
    add_weight(targets[i], values[i]);
    forest_.leaves_.push_back({i, i + 1});
  }
  forest_.branches_.resize(count);
  double set = 0;
  for (size_t i = 0; i < count; ++i) {
    Branch& branch = forest_.branches_[i];
    if (modes[i] < 0 || modes[i] > static_cast<int64_t>(Mode::member)) fail("node mode " + std::to_string(modes[i]));
    branch = {.mode = static_cast<Mode>(modes[i]), .missing_is_true = missing[i] != 0, .value = splits[i]};
    if (branch.mode == Mode::member) branch.value = set++;
    set_feature(branch, features[i]);
    branch.if_true = child(if_true[i], true_leafs[i] != 0);
    branch.if_false = child(if_false[i], false_leafs[i] != 0);
  }
  for (const int64_t root : roots) forest_.roots_.push_back(child(root, false));
}

Forest Forest::of_lists(const Node& node, const std::string& weights, int64_t targets) {
  Builder builder(node);
  builder.read_lists(weights, targets);
  return builder.take();
}

Forest Forest::of_arrays(const Node& node) {
  Builder builder(node);
  builder.read_arrays();
  return builder.take();
}

// ---- Walking

bool Forest::takes_true(const Branch& branch, double x) const {
  if (std::isnan(x) && branch.missing_is_true) return true;
  switch (branch.mode) {
    case Mode::leq:
      return x <= branch.value;
    case Mode::lt:
      return x < branch.value;
    case Mode::gte:
      return x >= branch.value;
    case Mode::gt:
      return x > branch.value;
    case Mode::eq:
      return x == branch.value;
    case Mode::neq:
      return x != branch.value;
    case Mode::member: {
      const std::vector<double>& set = sets_[static_cast<size_t>(branch.value)];
      return !std::isnan(x) && std::binary_search(set.begin(), set.end(), x);
    }
  }
  return false;
}

int32_t Forest::leaf_of(int32_t root, std::span<const double> row) const {
  const auto branches = static_cast<int32_t>(branches_.size());
  int32_t at = root;
  while (at < branches) {
    const Branch& branch = branches_[static_cast<size_t>(at)];
    at = takes_true(branch, row[static_cast<size_t>(branch.feature)]) ? branch.if_true : branch.if_false;
  }
  return at;
}

void Forest::list_plain_branches() {
  const bool are_plain = std::all_of(branches_.begin(), branches_.end(), [](const Branch& branch) {
    return branch.mode == Mode::leq || (branch.mode == Mode::lt && branch.value > -HUGE_VAL);
  });
  if (!are_plain || features_ < 1) return;
  for (const Branch& branch : branches_) {
    const double value = branch.mode == Mode::lt ? std::nextafter(branch.value, -HUGE_VAL) : branch.value;
    plain_.push_back(
        {value, branch.feature, {branch.if_false, branch.if_true}, static_cast<uint8_t>(branch.missing_is_true)});
  }
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const auto self = static_cast<int32_t>(plain_.size());
    plain_.push_back({0, 0, {self, self}, 0});
  }
}

void Forest::find_leaves(std::span<const double> row, int32_t* at) const {
  constexpr int kSteps = 4;  // between two looks at who is still on the way
  const auto branches = static_cast<int32_t>(branches_.size());
  const PlainBranch* plain = plain_.data();
  while (*std::min_element(at, at + kTogether) < branches) {
    for (int step = 0; step < kSteps; ++step) {
      for (size_t k = 0; k < kTogether; ++k) {
        const PlainBranch& branch = plain[at[k]];
        const double x = row[static_cast<size_t>(branch.feature)];
        const int is_true = static_cast<int>(x <= branch.value) | (static_cast<int>(x != x) & branch.missing_is_true);
        at[k] = branch.children[is_true];
      }
    }
  }
}

void Forest::add_leaf(const Leaf& leaf, Aggregate aggregate, std::span<Score> scores) const {
  for (size_t i = leaf.begin; i < leaf.end; ++i) {
    const Weight& weight = weights_[i];
    Score& score = scores[static_cast<size_t>(weight.target)];
    if (!score.is_set) {
      score = {weight.value, true};
    } else if (aggregate == Aggregate::min) {
      score.value = std::min(score.value, weight.value);
    } else if (aggregate == Aggregate::max) {
      score.value = std::max(score.value, weight.value);
    } else {
      score.value += weight.value;
    }
  }
}

void Forest::score(std::span<const double> row, Aggregate aggregate, std::span<Score> scores) const {
  std::fill(scores.begin(), scores.end(), Score());
  size_t tree = 0;
  for (; !plain_.empty() && tree + kTogether <= roots_.size(); tree += kTogether) {
    int32_t at[kTogether];
    std::copy_n(roots_.begin() + static_cast<std::ptrdiff_t>(tree), kTogether, at);
    find_leaves(row, at);
    for (const int32_t leaf : at) add_leaf(leaves_[static_cast<size_t>(leaf) - branches_.size()], aggregate, scores);
  }
  for (; tree < roots_.size(); ++tree) {
    add_leaf(leaves_[static_cast<size_t>(leaf_of(roots_[tree], row)) - branches_.size()], aggregate, scores);
  }
  if (aggregate != Aggregate::average || roots_.empty()) return;
  for (Score& score : scores) score.value /= static_cast<double>(roots_.size());
}

}  // namespace lathe
