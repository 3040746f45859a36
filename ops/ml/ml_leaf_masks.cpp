#include "ops/ml/ml_leaf_masks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace lathe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// x <= the result for exactly the float32 x for which x <= value.
float largest_float_within(double value) {
  const auto nearest = static_cast<float>(value);
  return static_cast<double>(nearest) > value ? std::nextafter(nearest, -kInfinity) : nearest;
}

}  // namespace

class LeafMasks::Builder {
 public:
  Builder(const Forest& forest, Isa isa) : forest_(forest), has_masks_(has_avx512(isa)) {
    made_.lanes_ = vector_lanes(isa);
    made_.targets_ = forest.targets();
  }

  std::optional<LeafMasks> build() {
    if (forest_.plain_.empty() || forest_.roots_.empty()) return std::nullopt;
    for (const int32_t root : forest_.roots_)
      if (!list_leaves(root) || !add_words()) return std::nullopt;
    if (mask_cycles_ >= static_cast<double>(made_.lanes_) * walk_cycles_) return std::nullopt;
    made_.fewest_rows_ = static_cast<int64_t>(std::ceil(mask_cycles_ / walk_cycles_));
    return std::move(made_);
  }

 private:
  // Of one tree, from left to right; where a branch is true is left.
  struct Branch {
    int32_t number;
    int64_t begin, end;  // of the leaves on its left
  };

  bool list_leaves(int32_t root);
  bool add_words();
  void add_tests(int64_t first_leaf);
  bool add_weights(int64_t first_leaf);
  uint32_t column_of(const Forest::PlainBranch& branch);

  // On Zen 4, for a tree: rows of its depth that are walked side by side, or tests of all rows.
  static constexpr double kStepCycles = 10, kWordCycles = 25, kTargetCycles = 8, kWideTestCycles = 1.7, kTestCycles = 2;
  static constexpr size_t kMostLeaves = 4096, kMostColumns = size_t{1} << 24;

  const Forest& forest_;
  const bool has_masks_;
  LeafMasks made_;
  std::vector<size_t> leaves_;  // of forest_.leaves_
  std::vector<Branch> branches_;
  std::map<std::pair<int32_t, uint8_t>, uint32_t> columns_;
  double mask_cycles_ = 0, walk_cycles_ = 0;
};

// Without recursion: trees may be deep. What several branches share is listed for each.
bool LeafMasks::Builder::list_leaves(int32_t root) {
  struct Open {
    int32_t number;
    double share;        // of rows that come here, if every branch halves them
    int64_t begin = -1;  // of the leaves on its left, once it was entered
  };
  leaves_.clear();
  branches_.clear();
  std::vector<Open> open{{root, 1}};
  const auto border = static_cast<int32_t>(forest_.branches_.size());
  while (!open.empty()) {
    Open& here = open.back();
    const auto leaves = static_cast<int64_t>(leaves_.size());
    if (here.number >= border) {
      leaves_.push_back(static_cast<size_t>(here.number - border));
      if (leaves_.size() > kMostLeaves) return false;
      open.pop_back();
      continue;
    }
    const Forest::PlainBranch& branch = forest_.plain_[static_cast<size_t>(here.number)];
    if (std::isnan(branch.value)) return false;
    if (here.begin < 0) {
      here.begin = leaves;
      walk_cycles_ += kStepCycles * here.share;
      open.push_back({branch.children[1], here.share / 2});
    } else {
      branches_.push_back({here.number, here.begin, leaves});
      const Open right{branch.children[0], here.share / 2};
      open.back() = right;
    }
  }
  return true;
}

uint32_t LeafMasks::Builder::column_of(const Forest::PlainBranch& branch) {
  const auto [found, is_new] =
      columns_.emplace(std::pair{branch.feature, branch.missing_is_true}, static_cast<uint32_t>(made_.columns_.size()));
  if (is_new) made_.columns_.push_back({branch.feature, branch.missing_is_true});
  return found->second;
}

bool LeafMasks::Builder::add_words() {
  const auto count = static_cast<int64_t>(leaves_.size());
  for (int64_t first = 0; first < count; first += LeafWord::kLeaves) {
    made_.words_.push_back({0, 0, first == 0 ? 0 : ~uint32_t{0}});
    add_tests(first);
    if (!add_weights(first)) return false;
    const LeafWord& word = made_.words_.back();
    mask_cycles_ +=
        kWordCycles + kTargetCycles * word.targets + (has_masks_ ? kWideTestCycles : kTestCycles) * word.tests;
  }
  // Branches and leaves that several trees share are listed for each: not without end.
  return made_.columns_.size() <= kMostColumns && made_.tests_.size() <= 16 * forest_.plain_.size() + kMostLeaves &&
         made_.weights_.size() <= LeafWord::kLeaves * forest_.weights_.size() + kMostLeaves;
}

void LeafMasks::Builder::add_tests(int64_t first_leaf) {
  const size_t before = made_.tests_.size();
  for (const Branch& branch : branches_) {
    const int64_t begin = std::max<int64_t>(branch.begin - first_leaf, 0),
                  end = std::min<int64_t>(branch.end - first_leaf, LeafWord::kLeaves);
    if (begin >= end) continue;
    const uint64_t taken = (uint64_t{1} << end) - (uint64_t{1} << begin);
    const Forest::PlainBranch& plain = forest_.plain_[static_cast<size_t>(branch.number)];
    made_.tests_.push_back({largest_float_within(plain.value),
                            column_of(plain) * static_cast<uint32_t>(made_.lanes_ * 4), ~static_cast<uint32_t>(taken)});
  }
  // Tests that take nothing away fill the last group. They read the first column, which a tree of one leaf may lack.
  if (made_.columns_.empty()) column_of({});
  do {
    if (made_.tests_.size() > before && (made_.tests_.size() - before) % LeafWord::kTestsTogether == 0) break;
    made_.tests_.push_back({kInfinity, 0, ~uint32_t{0}});
  } while (true);
  made_.words_.back().tests = static_cast<uint32_t>(made_.tests_.size() - before);
}

bool LeafMasks::Builder::add_weights(int64_t first_leaf) {
  std::map<int64_t, std::vector<float>> tables;  // by target
  const int64_t end = std::min<int64_t>(first_leaf + LeafWord::kLeaves, static_cast<int64_t>(leaves_.size()));
  for (int64_t i = first_leaf; i < end; ++i) {
    const Forest::Leaf& leaf = forest_.leaves_[leaves_[static_cast<size_t>(i)]];
    for (size_t w = leaf.begin; w < leaf.end; ++w) {
      const Forest::Weight& weight = forest_.weights_[w];
      const auto value = static_cast<float>(weight.value);
      std::vector<float>& table = tables[weight.target];
      table.resize(LeafWord::kLeaves);
      float& place = table[static_cast<size_t>(i - first_leaf)];
      // Two weights of one leaf for one target: their sum would be rounded once more.
      if (static_cast<double>(value) != weight.value || place != 0) return false;
      place = value;
    }
  }
  // A word has at least one target, so that the kernel need not ask.
  if (tables.empty()) tables[0].resize(LeafWord::kLeaves);
  for (const auto& [target, table] : tables) {
    const int64_t bytes = target * made_.lanes_ * static_cast<int64_t>(sizeof(double));
    if (bytes > std::numeric_limits<uint32_t>::max()) return false;
    made_.places_.push_back(static_cast<uint32_t>(bytes));
    made_.weights_.insert(made_.weights_.end(), table.begin(), table.end());
  }
  made_.words_.back().targets = static_cast<uint32_t>(tables.size());
  return true;
}

std::optional<LeafMasks> LeafMasks::of(const Forest& forest, Isa isa) {
  std::optional<LeafMasks> made = Builder(forest, isa).build();
  if (made) made->kernel_ = leaf_mask_kernel(isa);
  return made;
}

void LeafMasks::score(const float* rows, int64_t stride, int64_t count, float* features, double* sums) const noexcept {
  for (const Column& column : columns_) {
    for (int64_t row = 0; row < count; ++row) {
      const float x = rows[row * stride + column.feature];
      features[row] = column.missing_is_true != 0 && std::isnan(x) ? -kInfinity : x;
    }
    std::fill(features + count, features + lanes_, 0.0F);
    features += lanes_;
  }
  std::fill_n(sums, sum_doubles(), 0.0);
  LeafMaskArgs args{};
  args.features = features - feature_floats();
  args.tests = tests_.data();
  args.words = words_.data();
  args.count = static_cast<int64_t>(words_.size());
  args.weights = weights_.data();
  args.places = places_.data();
  args.sums = sums;
  kernel_(&args);
}

}  // namespace lathe
