// NonMaxSuppression: of boxes that overlap, the one with the highest score.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

void infer_non_max_suppression(InferContext& context) {
  TensorType result = ranked(DType::i64, 2);
  result.dims[1] = known_dim(3);
  context.set_output(0, std::move(result));
}

struct Box {
  float top, left, bottom, right;
  float area() const { return (bottom - top) * (right - left); }
};

Box box_of(const float* at, bool is_centered) {
  if (is_centered) return {at[1] - at[3] / 2, at[0] - at[2] / 2, at[1] + at[3] / 2, at[0] + at[2] / 2};
  return {std::min(at[0], at[2]), std::min(at[1], at[3]), std::max(at[0], at[2]), std::max(at[1], at[3])};
}

// The boxes of one class that were kept, corner by corner, so that a candidate meets a vector of them at a time, in
// strips by their left sides: those too far to its left or right are not looked at. Detectors that move each class of
// theirs aside, to suppress all at once, have ten thousands of boxes of which few are near one another.
class KeptBoxes {
 public:
  // For about `expected` boxes whose left sides lie from `low` to `high`, others may be among them.
  KeptBoxes(float low, float high, int64_t expected) : low_(low) {
    const auto strips = static_cast<size_t>(std::clamp<int64_t>(expected / kBoxesPerStrip, 1, kMostStrips));
    const float strips_per_unit = static_cast<float>(strips) / (high - low);
    const bool is_even = std::isfinite(strips_per_unit);
    strips_per_unit_ = is_even ? strips_per_unit : 0;
    strips_.resize(is_even ? strips : 1);
  }

  int64_t count() const { return count_; }

  void add(const Box& box) {
    strips_[strip_of(box.left)].add(box);
    widest_ = std::max(widest_, box.right - box.left);
    ++count_;
  }

  bool overlap(const Box& box, float threshold) const {
    if (!(box.area() > 0)) return false;
    const size_t first = strip_of(box.left - widest_), last = strip_of(box.right);
    // One more: differences are rounded.
    for (size_t strip = first - (first > 0 ? 1 : 0); strip <= last; ++strip) {
      if (strips_[strip].overlap(box, threshold)) return true;
    }
    return false;
  }

 private:
  static constexpr int64_t kBoxesPerStrip = 256, kMostStrips = 512;

  // Those behind a strip's last box are empty, and overlap nothing.
  struct Strip {
    static constexpr size_t kTogether = 16;
    std::vector<float> top, left, bottom, right, area;
    size_t count = 0;

    void add(const Box& box) {
      if (count == area.size()) {
        for (std::vector<float>* list : {&top, &left, &bottom, &right, &area}) list->resize(count + kTogether, 0.0f);
      }
      top[count] = box.top;
      left[count] = box.left;
      bottom[count] = box.bottom;
      right[count] = box.right;
      area[count++] = box.area();
    }

    [[gnu::target("avx2")]] bool overlap(const Box& box, float threshold) const {
      const float own = box.area();
      for (size_t begin = 0; begin < count; begin += kTogether) {
        int32_t found = 0;
        for (size_t i = begin; i < begin + kTogether; ++i) {
          const float height = std::min(bottom[i], box.bottom) - std::max(top[i], box.top);
          const float width = std::min(right[i], box.right) - std::max(left[i], box.left);
          const float common = height * width, all = own + area[i] - common;
          const bool meets = (height > 0) & (width > 0) & (area[i] > 0) & (all > 0);
          found |= static_cast<int32_t>(meets & (common / all > threshold));
        }
        if (found != 0) return true;
      }
      return false;
    }
  };

  // Also of what is no number.
  size_t strip_of(float left) const {
    const float strip = (left - low_) * strips_per_unit_;
    if (!(strip > 0)) return 0;
    return strip < static_cast<float>(strips_.size()) ? static_cast<size_t>(strip) : strips_.size() - 1;
  }

  float low_, strips_per_unit_;
  float widest_ = 0;
  int64_t count_ = 0;
  std::vector<Strip> strips_;
};

// By decreasing score; of equal ones the first comes first.
struct Candidate {
  float score;
  int32_t box;
  bool operator<(const Candidate& other) const { return score != other.score ? score > other.score : box < other.box; }
};

void find_candidates(const float* scores, int64_t count, float threshold, std::vector<Candidate>& found) {
  found.clear();
  constexpr int64_t kTogether = 32;
  for (int64_t begin = 0; begin < count; begin += kTogether) {
    const int64_t end = std::min(count, begin + kTogether);
    int32_t any = 0;
    for (int64_t i = begin; i < end; ++i) any |= scores[i] > threshold ? 1 : 0;
    if (any == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (scores[i] > threshold) found.push_back({scores[i], static_cast<int32_t>(i)});
    }
  }
}

void run_non_max_suppression(ReferenceContext& context) {
  const Tensor &boxes = context.inputs[0], &scores = context.inputs[1];
  if (boxes.rank() != 3 || scores.rank() != 3 || boxes.dims()[2] != 4 || scores.dims()[0] != boxes.dims()[0] ||
      scores.dims()[2] != boxes.dims()[1] || boxes.dtype() != DType::f32 || scores.dtype() != DType::f32) {
    context.fail("boxes are " + to_string(boxes.dims()) + ", scores " + to_string(scores.dims()));
  }
  const int64_t count = boxes.dims()[1], classes = scores.dims()[1];
  if (count > INT32_MAX) context.fail("has more than 2^31 boxes");
  const int64_t most = context.has_input(2) ? integer_scalar(context, context.inputs[2], "input 2") : 0;
  const auto threshold = [&](size_t i, float absent) {
    return context.has_input(i) ? static_cast<float>(real_scalar(context, context.inputs[i], "a threshold")) : absent;
  };
  const float iou = threshold(3, 0);
  const bool is_centered = context.node.attributes.get_int("center_point_box", 0) != 0;
  // Without a threshold all that can be compared take part, the least score too.
  const bool has_least = context.has_input(4);
  const float least = threshold(4, -std::numeric_limits<float>::infinity());
  std::vector<int64_t> selected;
  std::vector<Candidate> candidates;
  for (int64_t item = 0; item < boxes.dims()[0] * classes && most > 0; ++item) {
    const float* score = scores.data<float>() + item * count;
    const float* box = boxes.data<float>() + item / classes * count * 4;
    find_candidates(score, count, least, candidates);
    for (int64_t i = 0; i < count && !has_least; ++i) {
      if (score[i] == least) candidates.push_back({least, static_cast<int32_t>(i)});
    }
    const auto box_at = [&](const Candidate& candidate) {
      return box_of(box + int64_t{candidate.box} * 4, is_centered);
    };
    float low = std::numeric_limits<float>::infinity(), high = -low;
    for (const Candidate& candidate : candidates) {
      const float left = box_at(candidate).left;
      low = std::min(low, left);
      high = std::max(high, left);
    }
    KeptBoxes kept(low, high, std::min(static_cast<int64_t>(candidates.size()), most));
    // As a heap: often far fewer are looked at than there are.
    const auto comes_later = [](const Candidate& a, const Candidate& b) { return b < a; };
    std::make_heap(candidates.begin(), candidates.end(), comes_later);
    while (!candidates.empty() && kept.count() < most) {
      std::pop_heap(candidates.begin(), candidates.end(), comes_later);
      const Candidate candidate = candidates.back();
      candidates.pop_back();
      const Box own = box_at(candidate);
      if (kept.overlap(own, iou)) continue;
      kept.add(own);
      selected.insert(selected.end(), {item / classes, item % classes, candidate.box});
    }
  }
  context.outputs[0] =
      Tensor::from<int64_t>({static_cast<int64_t>(selected.size()) / 3, 3}, std::span<const int64_t>(selected));
}

}  // namespace

std::vector<OpDef> non_max_suppression_ops() {
  return {{.schema = {.name = "NonMaxSuppression",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 5,
                      .attributes = {{"center_point_box", AttributeSpec::Kind::integer}},
                      .infer = infer_non_max_suppression,
                      .reference = run_non_max_suppression}}};
}

}  // namespace lathe::ops
