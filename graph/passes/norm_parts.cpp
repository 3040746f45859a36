#include "graph/passes/norm_parts.h"

#include <algorithm>

namespace lathe {
namespace {

class Matcher {
 public:
  Matcher(const Rewriter& rewriter, const Graph& graph) : rewriter_(rewriter), graph_(graph) {}

  std::optional<NormParts> match(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.epilogue || node.inputs.size() != 2 || node.outputs[0] == ValueId::none) return std::nullopt;
    parts_.result = node.outputs[0];
    bool fits = false;
    if (is_op(node, "Div")) fits = has_deviation(node.inputs[0]) && is_root(producer(node.inputs[1], "Sqrt"));
    if (is_op(node, "Mul"))
      fits = is_product(node.inputs[0], node.inputs[1]) || is_product(node.inputs[1], node.inputs[0]);
    if (is_op(node, "Add"))
      fits = is_affine(node.inputs[0], node.inputs[1]) || is_affine(node.inputs[1], node.inputs[0]);
    return fits ? std::optional(parts_) : std::nullopt;
  }

 private:
  NodeId producer(ValueId id, std::string_view op) const { return rewriter_.producer_if(id, op); }
  const std::vector<ValueId>& inputs(NodeId id) const { return graph_.node(id).inputs; }

  // The axes of a ReduceMean that keeps them; nullopt: not known, or all.
  std::optional<std::vector<int64_t>> axes_of(NodeId mean) const {
    const Node& node = graph_.node(mean);
    const TensorType& type = graph_.value(node.inputs[0]).type;
    if (node.attributes.get_int("keepdims", 1) == 0 || !type.has_rank) return std::nullopt;
    std::vector<int64_t> axes = node.attributes.get_ints("axes");
    if (input_or_none(node, 1) != ValueId::none) {
      const auto given = integers_of(graph_, node.inputs[1]);
      if (!given) return std::nullopt;
      axes = *given;
    }
    if (axes.empty()) return std::nullopt;
    for (int64_t& axis : axes) axis += axis < 0 ? type.rank() : 0;
    std::sort(axes.begin(), axes.end());
    return axes;
  }

  // A mean of `of` (none: of anything) over the axes of all means here; the first one sets them.
  bool is_mean(NodeId mean, ValueId of) {
    if (mean == NodeId::none || (of != ValueId::none && inputs(mean)[0] != of)) return false;
    const auto axes = axes_of(mean);
    if (!axes) return false;
    if (parts_.axes.empty()) parts_.axes = *axes;
    return parts_.axes == *axes;
  }

  // x - mean(x); `x` is what it must be, none: anything.
  bool is_deviation(ValueId d, ValueId& x) {
    const NodeId sub = producer(d, "Sub");
    if (sub == NodeId::none || (x != ValueId::none && inputs(sub)[0] != x)) return false;
    x = inputs(sub)[0];
    return is_mean(producer(inputs(sub)[1], "ReduceMean"), x);
  }
  bool has_deviation(ValueId d) { return is_deviation(d, parts_.x); }

  // The value that is squared: Pow(d, 2) or Mul(d, d).
  ValueId squared(ValueId id) const {
    if (const NodeId power = producer(id, "Pow"); power != NodeId::none) {
      const ValueId exponent = inputs(power)[1];
      const auto integer = integers_of(graph_, exponent);
      const bool is_two = scalar_of(graph_, exponent) == 2.f || (integer && *integer == std::vector<int64_t>{2});
      return is_two ? inputs(power)[0] : ValueId::none;
    }
    const NodeId product = producer(id, "Mul");
    return product != NodeId::none && inputs(product)[0] == inputs(product)[1] ? inputs(product)[0] : ValueId::none;
  }

  // Sqrt(mean(d * d) + epsilon)
  bool is_root(NodeId root) {
    const NodeId sum = root == NodeId::none ? root : producer(inputs(root)[0], "Add");
    if (sum == NodeId::none) return false;
    const size_t slot = scalar_of(graph_, inputs(sum)[1]) ? 0 : 1;
    const std::optional<float> epsilon = scalar_of(graph_, inputs(sum)[1 - slot]);
    const NodeId variance = producer(inputs(sum)[slot], "ReduceMean");
    if (!epsilon || !is_mean(variance, ValueId::none)) return false;
    parts_.epsilon = *epsilon;
    const ValueId d = squared(inputs(variance)[0]);
    return d != ValueId::none && has_deviation(d);
  }

  // d * Reciprocal(Sqrt(...))
  bool is_product(ValueId d, ValueId factor) {
    const NodeId reciprocal = producer(factor, "Reciprocal");
    parts_.x = ValueId::none;
    parts_.axes.clear();
    return reciprocal != NodeId::none && has_deviation(d) && is_root(producer(inputs(reciprocal)[0], "Sqrt"));
  }

  // x * m + (bias - mean * m)
  bool is_affine(ValueId scaled, ValueId shift) {
    const NodeId times = producer(scaled, "Mul"), sub = producer(shift, "Sub");
    if (times == NodeId::none || sub == NodeId::none) return false;
    const NodeId moved = producer(inputs(sub)[1], "Mul");
    if (moved == NodeId::none) return false;
    for (size_t slot = 0; slot < 2; ++slot) {
      const ValueId x = inputs(times)[slot], m = inputs(times)[1 - slot];
      const auto& both = inputs(moved);
      if (both[0] != m && both[1] != m) continue;
      const ValueId mean = both[0] == m ? both[1] : both[0];
      parts_.axes.clear();
      parts_.x = x;
      if (!is_mean(producer(mean, "ReduceMean"), x) || !is_factor(m)) continue;
      parts_.bias = inputs(sub)[0];
      parts_.has_affine = true;
      return true;
    }
    return false;
  }

  // Reciprocal(Sqrt(...)) * gain
  bool is_factor(ValueId m) {
    const NodeId product = producer(m, "Mul");
    if (product == NodeId::none) return false;
    for (size_t slot = 0; slot < 2; ++slot) {
      const NodeId reciprocal = producer(inputs(product)[slot], "Reciprocal");
      if (reciprocal == NodeId::none || !is_root(producer(inputs(reciprocal)[0], "Sqrt"))) continue;
      parts_.gain = inputs(product)[1 - slot];
      return true;
    }
    return false;
  }

  const Rewriter& rewriter_;
  const Graph& graph_;
  NormParts parts_;
};

}  // namespace

std::optional<NormParts> norm_parts(const Rewriter& rewriter, const Graph& graph, NodeId id) {
  return Matcher(rewriter, graph).match(id);
}

}  // namespace lathe
