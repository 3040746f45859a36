// A Resize that enlarges goes behind the 1x1 convolution that reads it: fewer pixels to convolve. Where a Concat lies
// between, the convolution comes apart into a sum: W [up(a), b] = up(Wa a) + Wb b.
#include <algorithm>
#include <cmath>

#include "graph/passes/convolution_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kAddVersion = 14;
// An element that is written and read again takes as long as this many multiply-adds.
constexpr double kElementCost = 48;
constexpr double kWorthwhile = 0.1;  // of the convolution

// With what is done to each channel alike.
bool commutes(const Graph& graph, const Node& conv) {
  return is_of_pixels(graph, conv) && has_unit_strides(conv) && conv.attributes.get_int("group", 1) == 1;
}

// How many times as many pixels a Resize makes that enlarges pictures and nothing else; 0: it does something else.
double enlargement(const Graph& graph, const Node& node) {
  if (!is_op(node, "Resize") || node.epilogue || node.attributes.has("axes")) return 0;
  // The only mode whose weights do not sum up to one: what lies outside has a value of its own.
  if (node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize") return 0;
  if (node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch") return 0;
  const TensorType &x = graph.value(node.inputs[0]).type, &y = graph.value(node.outputs[0]).type;
  if (x.dtype != DType::f32 || !x.has_rank || x.rank() < 3) return 0;
  double factor = 1;
  const Tensor scales = constant_of(graph, input_or_none(node, node.op->since >= 11 ? 2 : 1));
  if (scales.dtype() == DType::f32 && scales.size() == x.rank()) {
    const float* scale = scales.data<float>();
    for (int i = 0; i < x.rank(); ++i) {
      if (!(i < 2 ? scale[i] == 1 : scale[i] >= 1)) return 0;
      factor *= static_cast<double>(scale[i]);
    }
    return std::isfinite(factor) ? factor : 0;
  }
  const auto sizes = integers_of(graph, input_or_none(node, 3));
  if (!sizes || y.rank() != x.rank() || static_cast<int>(sizes->size()) != x.rank()) return 0;
  if (!same_dim(x.dims[0], y.dims[0]) || x.dims[1].extent != (*sizes)[1]) return 0;
  for (size_t axis = 2; axis < x.dims.size(); ++axis) {
    if (x.dims[axis].extent < 1 || (*sizes)[axis] < x.dims[axis].extent) return 0;
    factor *= static_cast<double>((*sizes)[axis]) / static_cast<double>(x.dims[axis].extent);
  }
  return factor;
}

// One pixel that Expand or Tile repeats all over a picture; as above.
double repetition(const Graph& graph, const Node& node) {
  if ((!is_op(node, "Expand") && !is_op(node, "Tile")) || node.epilogue) return 0;
  const TensorType &x = graph.value(node.inputs[0]).type, &y = graph.value(node.outputs[0]).type;
  if (x.dtype != DType::f32 || x.rank() < 3 || x.rank() != y.rank() || !same_dim(x.dims[0], y.dims[0])) return 0;
  double factor = 1;
  for (size_t axis = 1; axis < x.dims.size(); ++axis) {
    if (axis == 1 ? !same_dim(x.dims[1], y.dims[1]) : x.dims[axis].extent != 1) return 0;
    // An extent that is not known is taken for two.
    if (axis > 1) factor *= y.dims[axis].known() ? static_cast<double>(y.dims[axis].extent) : 2;
  }
  return factor;
}

struct Part {
  ValueId value = ValueId::none;
  int64_t first = 0, channels = 0;  // of the convolution's inputs
  NodeId resize = NodeId::none;     // or Expand, Tile; none: stays in the convolution
};

class Sinker {
 public:
  Sinker(Rewriter& rewriter, const OpSchema& add, NodeId conv)
      : rewriter_(rewriter), graph_(rewriter.graph()), add_(add), id_(conv) {}

  void sink() {
    const Node& conv = graph_.node(id_);
    if (!is_op(conv, "Conv") || conv.epilogue || conv.outputs[0] == ValueId::none) return;
    weights_ = constant_of(graph_, conv.inputs[1]);
    if (weights_.dtype() != DType::f32 || weights_.size() == 0 || !commutes(graph_, conv) || !find_parts()) return;
    choose();
    if (std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.resize != NodeId::none; }))
      rebuild();
  }

 private:
  bool find_parts() {
    const ValueId x = graph_.node(id_).inputs[0];
    if (!graph_.value(x).type.has_rank || graph_.value(x).type.rank() != weights_.rank()) return false;
    concat_ = rewriter_.producer_if(x, "Concat");
    if (concat_ != NodeId::none &&
        (graph_.node(concat_).attributes.get_int("axis", 0) != 1 || rewriter_.only_user(x) != id_))
      concat_ = NodeId::none;
    const std::vector<ValueId> values = concat_ == NodeId::none ? std::vector{x} : graph_.node(concat_).inputs;
    int64_t first = 0;
    for (const ValueId value : values) {
      const TensorType& type = graph_.value(value).type;
      if (type.rank() < 2 || !type.dims[1].known()) return false;
      parts_.push_back({.value = value, .first = first, .channels = type.dims[1].extent});
      first += type.dims[1].extent;
    }
    return first == weights_.dims()[1];
  }

  // Those that are less to convolve before they are enlarged.
  void choose() {
    const auto outputs = static_cast<double>(weights_.dims()[0]), all = static_cast<double>(weights_.dims()[1]);
    for (Part& part : parts_) {
      const NodeId reader = concat_ == NodeId::none ? id_ : concat_;
      const NodeId resize = graph_.value(part.value).producer;
      if (resize == NodeId::none || !rewriter_.is_live(resize) || rewriter_.only_user(part.value) != reader ||
          !rewriter_.has_one_use(part.value))
        continue;
      const Node& node = graph_.node(resize);
      const double factor = std::max(enlargement(graph_, node), repetition(graph_, node)),
                   inputs = static_cast<double>(part.channels);
      if (factor < 1.5) continue;
      const double saved = inputs * outputs * (1 - 1 / factor), moved = kElementCost * (outputs - inputs);
      if (saved - moved > kWorthwhile * all * outputs) part.resize = resize;
    }
    // What is only repeated needs a picture that it spreads over.
    const auto is_repeated = [this](const Part& part) {
      return part.resize != NodeId::none && !is_op(graph_.node(part.resize), "Resize");
    };
    if (!std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
          return is_repeated(part) || (part.resize != NodeId::none && is_pixel(part));
        }))
      return;
    for (Part& part : parts_) {
      if (is_repeated(part)) part.resize = NodeId::none;
    }
  }

  // Some inputs' weights.
  ValueId slice(const std::vector<Part>& parts) {
    int64_t inputs = 0;
    for (const Part& part : parts) inputs += part.channels;
    Dims dims = weights_.dims();
    dims[1] = inputs;
    Tensor some(DType::f32, dims);
    float* to = some.mutable_data<float>();
    for (int64_t o = 0; o < dims[0]; ++o) {
      for (const Part& part : parts)
        to = std::copy_n(weights_.data<float>() + o * weights_.dims()[1] + part.first, part.channels, to);
    }
    return rewriter_.add_constant(graph_.value(graph_.node(id_).inputs[1]).name, some);
  }

  // The convolution of some of the inputs, the first one with the bias.
  ValueId convolve(ValueId x, const std::vector<Part>& parts) {
    Node conv = graph_.node(id_);
    const std::vector<ValueId> operands = conv.inputs;
    TensorType type = graph_.value(x).type;
    type.dims[1] = {weights_.dims()[0], ""};
    conv.name.clear();
    conv.inputs = {x, slice(parts)};
    if (!has_bias_ && operands.size() > 2) conv.inputs.push_back(operands[2]);
    has_bias_ = true;
    const ValueId made = rewriter_.add_value(graph_.value(result_).name, std::move(type));
    conv.outputs = {made};
    rewriter_.add(std::move(conv), id_);
    return made;
  }

  ValueId joined(const std::vector<Part>& parts) {
    if (parts.size() == 1) return parts[0].value;
    Node concat = graph_.node(concat_);
    concat.name.clear();
    concat.inputs.clear();
    TensorType type = graph_.value(graph_.node(concat_).outputs[0]).type;
    type.dims[1] = {0, ""};
    for (const Part& part : parts) {
      concat.inputs.push_back(part.value);
      type.dims[1].extent += part.channels;
    }
    const ValueId all = rewriter_.add_value(graph_.value(graph_.node(concat_).outputs[0]).name, std::move(type));
    concat.outputs = {all};
    rewriter_.add(std::move(concat), id_);
    return all;
  }

  // One pixel spreads over a picture by itself.
  bool is_pixel(const Part& part) const {
    const TensorType& type = graph_.value(graph_.node(part.resize).inputs[0]).type;
    return std::all_of(type.dims.begin() + 2, type.dims.end(), [](const Dim& dim) { return dim.extent == 1; });
  }

  ValueId enlarged(ValueId small, const Part& part) {
    Node resize = graph_.node(part.resize);
    TensorType type = graph_.value(resize.outputs[0]).type;
    if (type.has_rank) type.dims[1] = {weights_.dims()[0], ""};
    const auto sizes = integers_of(graph_, input_or_none(resize, 3));
    if (sizes && !sizes->empty()) {
      std::vector<int64_t> changed = *sizes;
      changed[1] = weights_.dims()[0];
      resize.inputs[3] = rewriter_.add_integers(graph_.value(resize.inputs[3]).name, changed);
    }
    resize.name.clear();
    resize.inputs[0] = small;
    const ValueId made = rewriter_.add_value(graph_.value(resize.outputs[0]).name, std::move(type));
    resize.outputs = {made};
    rewriter_.add(std::move(resize), id_);
    return made;
  }

  void rebuild() {
    result_ = graph_.node(id_).outputs[0];
    std::vector<Part> rest, sunk;
    for (const Part& part : parts_) (part.resize == NodeId::none ? rest : sunk).push_back(part);
    // Pixels behind pictures: there must be one that they spread over.
    std::stable_partition(sunk.begin(), sunk.end(), [this](const Part& part) { return !is_pixel(part); });
    has_bias_ = !rest.empty();
    std::vector<ValueId> summands;
    for (const Part& part : sunk) {
      const ValueId small = convolve(graph_.node(part.resize).inputs[0], {part});
      const bool spreads = is_pixel(part) && !(rest.empty() && summands.empty());
      summands.push_back(spreads ? small : enlarged(small, part));
    }
    if (!rest.empty()) {
      // Last, so that the sums ride on it.
      has_bias_ = false;
      summands.insert(summands.begin(), convolve(joined(rest), rest));
    }
    rewriter_.erase(id_);
    if (concat_ != NodeId::none) rewriter_.erase(concat_);
    for (const Part& part : sunk) rewriter_.erase(part.resize);
    add_up(summands);
  }

  void add_up(const std::vector<ValueId>& summands) {
    if (summands.size() == 1) {
      rewriter_.move_output(result_, graph_.value(summands[0]).producer);
      return;
    }
    ValueId sum = summands[0];
    for (size_t i = 1; i < summands.size(); ++i) {
      const bool is_last = i + 1 == summands.size();
      const ValueId next =
          is_last ? result_ : rewriter_.add_value(graph_.value(result_).name, graph_.value(result_).type);
      rewriter_.add({.op = &add_, .version = kAddVersion, .name = "", .inputs = {sum, summands[i]}, .outputs = {next}},
                    id_);
      sum = next;
    }
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpSchema& add_;
  NodeId id_, concat_ = NodeId::none;
  ValueId result_ = ValueId::none;
  Tensor weights_;
  std::vector<Part> parts_;
  bool has_bias_ = false;
};

}  // namespace

bool sink_upsamples(Graph& graph, const PassContext& context) {
  const OpSchema* add = context.ops.find("", "Add", kAddVersion);
  if (add == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { Sinker(rewriter, *add, id).sink(); });
}

}  // namespace lathe::passes
