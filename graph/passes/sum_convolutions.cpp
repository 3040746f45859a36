// Convolutions of one value whose results are added up are one convolution with the sum of their weights, smaller
// windows among zeros. The value itself, perhaps times a constant per channel, goes on the diagonal.
#include <algorithm>

#include "graph/passes/affine.h"
#include "graph/passes/linear_map.h"
#include "graph/passes/passes.h"

namespace lathe::passes {
namespace {

constexpr int kAddVersion = 14;
// Of one sum, and of the nodes that add them up: a longer chain is taken in parts.
constexpr size_t kMostTerms = 24, kMostSums = 2 * kMostTerms;
using Numbers = std::vector<double>;

// One summand: `whole` times `outer`, where `whole` is an affine function of `core`.
struct Term {
  ValueId whole = ValueId::none, core = ValueId::none;
  Numbers outer;
  Affine affine;
  std::vector<NodeId> chain;     // of the affine function
  NodeId conv = NodeId::none;    // that made the core
  ValueId x = ValueId::none;     // what the convolution reads; without one: the core
  std::optional<LinearMap> map;  // of the convolution
};

// Terms over one value as one map.
struct Cluster {
  LinearMap map;
  std::vector<size_t> terms;
};

class Summer {
 public:
  Summer(Rewriter& rewriter, const PassContext& context, NodeId root)
      : rewriter_(rewriter), graph_(rewriter.graph()), context_(context), root_(root) {}

  bool sum() {
    if (!is_sum(graph_.node(root_))) return false;
    result_ = graph_.node(root_).outputs[0];
    const TensorType& type = graph_.value(result_).type;
    if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 3 || type.dims[1].extent < 1) return false;
    axis_ = {static_cast<size_t>(type.dims[1].extent), type.rank(), 1};
    shift_.assign(axis_.channels, 0);
    collect_operands(root_, Numbers(axis_.channels, 1));
    if (terms_.size() < 2 || terms_.size() > kMostTerms) return false;
    find_convolutions();
    join();
    return can_rebuild() && rebuild();
  }

 private:
  bool is_sum(const Node& node) const {
    return (is_op(node, "Add") || is_op(node, "Sub") || is_op(node, "Sum")) && node.version >= 7 && !node.epilogue &&
           node.outputs[0] != ValueId::none && std::none_of(node.inputs.begin(), node.inputs.end(), [this](ValueId id) {
             return graph_.value(id).is_constant();
           });
  }

  void collect_operands(NodeId sum, const Numbers& outer) {
    sums_.push_back(sum);
    const std::vector<ValueId> operands = graph_.node(sum).inputs;
    for (size_t i = 0; i < operands.size(); ++i) {
      Numbers factors = outer;
      if (i == 1 && is_op(graph_.node(sum), "Sub")) {
        for (double& factor : factors) factor = -factor;
      }
      collect(operands[i], sum, factors);
    }
  }

  // What makes this value, if nobody but `reader` wants it.
  NodeId own_maker(ValueId value, NodeId reader) const {
    const NodeId maker = graph_.value(value).producer;
    const bool is_own = maker != NodeId::none && rewriter_.is_live(maker) && rewriter_.only_user(value) == reader &&
                        rewriter_.has_one_use(value);
    return is_own && !graph_.node(maker).epilogue ? maker : NodeId::none;
  }

  void collect(ValueId value, NodeId reader, const Numbers& outer) {
    Term term{.whole = value, .core = value, .outer = outer, .affine = Affine::none(axis_.channels), .chain = {}};
    NodeId maker = own_maker(term.core, reader);
    while (maker != NodeId::none && strip(term, maker)) maker = own_maker(term.core, maker);
    const bool has_room = terms_.size() < kMostTerms && sums_.size() < kMostSums;
    if (maker != NodeId::none && is_sum(graph_.node(maker)) && has_room) {
      Numbers factors = outer;
      for (size_t c = 0; c < axis_.channels; ++c) {
        shift_[c] += outer[c] * term.affine.shift[c];
        factors[c] *= term.affine.scale[c];
      }
      sums_.insert(sums_.end(), term.chain.begin(), term.chain.end());
      collect_operands(maker, factors);
      return;
    }
    if (maker != NodeId::none && is_op(graph_.node(maker), "Conv")) term.conv = maker;
    terms_.push_back(std::move(term));
  }

  // An affine node, with which the term begins one node earlier.
  bool strip(Term& term, NodeId maker) {
    const Node& node = graph_.node(maker);
    if (node.inputs.size() != 2) return false;
    for (const ValueId operand : node.inputs) {
      if (operand == ValueId::none || graph_.value(operand).is_constant()) continue;
      std::optional<Affine> affine = affine_of_arithmetic(graph_, node, operand, axis_);
      if (!affine) continue;
      affine->then(term.affine);
      term.affine = std::move(*affine);
      term.chain.push_back(maker);
      term.core = operand;
      return true;
    }
    return false;
  }

  // Maps of the terms that are over the same value as another one, if there is a convolution among them.
  void find_convolutions() {
    for (Term& term : terms_) term.x = term.conv == NodeId::none ? term.core : graph_.node(term.conv).inputs[0];
    for (size_t i = 0; i < terms_.size(); ++i) {
      Term& term = terms_[i];
      const auto is_other = [&](const Term& each) { return &each != &term && each.x == term.x; };
      if (term.conv == NodeId::none || std::none_of(terms_.begin(), terms_.end(), is_other)) continue;
      term.map = linear_map_of(graph_, graph_.node(term.conv));
      if (term.map && term.map->outputs != static_cast<int64_t>(axis_.channels)) term.map.reset();
      if (term.map) place_between(term, *term.map);
    }
    for (Term& term : terms_) {
      if (term.conv != NodeId::none) continue;
      const auto conv = std::find_if(terms_.begin(), terms_.end(), [&](const Term& each) {
        return each.conv != NodeId::none && each.map && each.x == term.x;
      });
      const TensorType& type = graph_.value(term.x).type;
      if (conv == terms_.end() || type.rank() != axis_.rank) continue;
      if (type.dims[1].extent != static_cast<int64_t>(axis_.channels)) continue;
      term.map = identity_map(type.dims[1].extent, *conv->map);
      place_between(term, *term.map);
    }
  }

  static void place_between(const Term& term, LinearMap& map) {
    Numbers factors = term.outer;
    for (size_t c = 0; c < factors.size(); ++c) factors[c] *= term.affine.scale[c];
    map.scale(factors);
    for (size_t c = 0; c < factors.size(); ++c) map.bias[c] += term.outer[c] * term.affine.shift[c];
  }

  // Two at a time, as long as the sum is no more to compute than both.
  void join() {
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (terms_[i].map) clusters_.push_back({std::move(*terms_[i].map), {i}});
    }
    for (size_t i = 0; i < clusters_.size(); ++i) {
      for (size_t j = i + 1; j < clusters_.size(); ++j) {
        if (terms_[clusters_[i].terms[0]].x != terms_[clusters_[j].terms[0]].x) continue;
        std::optional<LinearMap> sum = sum_of(clusters_[i].map, clusters_[j].map);
        if (!sum) continue;
        clusters_[i].map = std::move(*sum);
        clusters_[i].terms.insert(clusters_[i].terms.end(), clusters_[j].terms.begin(), clusters_[j].terms.end());
        clusters_.erase(clusters_.begin() + static_cast<std::ptrdiff_t>(j));
        j = i;  // a wider window may hold what did not fit before
      }
    }
    std::erase_if(clusters_, [this](const Cluster& cluster) {
      return cluster.terms.size() < 2 || std::none_of(cluster.terms.begin(), cluster.terms.end(), [this](size_t term) {
               return terms_[term].conv != NodeId::none;
             });
    });
  }

  bool is_joined(size_t term) const {
    return std::any_of(clusters_.begin(), clusters_.end(), [term](const Cluster& cluster) {
      return std::find(cluster.terms.begin(), cluster.terms.end(), term) != cluster.terms.end();
    });
  }

  // What stays a summand is added or subtracted as it is.
  bool can_rebuild() const {
    if (clusters_.empty()) return false;
    for (size_t i = 0; i < terms_.size(); ++i) {
      const Numbers& outer = terms_[i].outer;
      const bool is_plain = std::abs(outer[0]) == 1 &&
                            std::all_of(outer.begin(), outer.end(), [&](double factor) { return factor == outer[0]; });
      if (!is_joined(i) && !is_plain) return false;
    }
    return true;
  }

  bool rebuild() {
    for (size_t c = 0; c < shift_.size(); ++c) clusters_[0].map.bias[c] += shift_[c];
    std::vector<Tensor> weights, biases;
    for (const Cluster& cluster : clusters_) {
      Dims dims{cluster.map.outputs, cluster.map.inputs};
      for (const LinearMap::Axis& axis : cluster.map.axes) dims.push_back(axis.window);
      weights.push_back(as_reals(cluster.map.weights, dims));
      biases.push_back(as_reals(cluster.map.bias, {cluster.map.outputs}));
      if (!is_finite(weights.back()) || !is_finite(biases.back())) return false;
    }
    const OpSchema *add = context_.ops.find("", "Add", kAddVersion), *sub = context_.ops.find("", "Sub", kAddVersion);
    if (add == nullptr || sub == nullptr) return false;

    are_even_ = std::all_of(terms_.begin(), terms_.end(), [this](const Term& term) {
      return same_shape(graph_.value(term.whole).type, graph_.value(result_).type);
    });
    std::vector<Node> convolutions;
    for (size_t i = 0; i < clusters_.size(); ++i) convolutions.push_back(merged(clusters_[i], weights[i], biases[i]));
    for (const NodeId id : sums_) rewriter_.erase(id);
    for (const Cluster& cluster : clusters_) {
      for (const size_t term : cluster.terms) erase(terms_[term]);
    }
    size_t left = clusters_.size() - 1;  // values to add
    for (size_t i = 0; i < terms_.size(); ++i) left += !is_joined(i);
    ValueId sum = ValueId::none;
    for (Node& conv : convolutions) {
      const ValueId made = left == 0 ? result_ : fresh();
      conv.outputs = {made};
      rewriter_.add(std::move(conv), root_);
      sum = sum == ValueId::none ? made : combined(*add, sum, made, left);
    }
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (!is_joined(i)) sum = combined(terms_[i].outer[0] < 0 ? *sub : *add, sum, terms_[i].whole, left);
    }
    return true;
  }

  // Another summand may spread them over more than their own pixels.
  ValueId fresh() {
    const TensorType& type = graph_.value(result_).type;
    return rewriter_.add_value(graph_.value(result_).name, are_even_ ? type : type.without_shape());
  }

  ValueId combined(const OpSchema& op, ValueId a, ValueId b, size_t& left) {
    const ValueId made = --left == 0 ? result_ : fresh();
    rewriter_.add({.op = &op, .version = kAddVersion, .name = "", .inputs = {a, b}, .outputs = {made}}, root_);
    return made;
  }

  void erase(const Term& term) {
    for (const NodeId id : term.chain) rewriter_.erase(id);
    if (term.conv != NodeId::none) rewriter_.erase(term.conv);
  }

  Node merged(const Cluster& cluster, const Tensor& weights, const Tensor& bias) {
    std::string made_of;
    NodeId first = NodeId::none;
    for (const size_t term : cluster.terms) {
      const NodeId conv = terms_[term].conv;
      made_of += (made_of.empty() ? "" : "+") + std::string(conv == NodeId::none ? "Identity" : "Conv");
      if (first == NodeId::none) first = conv;
    }
    Node node = graph_.node(first);
    const std::string name = node.name;
    node.name = name + "~sum";
    node.inputs = {terms_[cluster.terms[0]].x, rewriter_.add_constant(name + "/weights", weights),
                   rewriter_.add_constant(name + "/bias", bias)};
    node.fused_from = made_of;
    std::vector<int64_t> window, dilations, pads, behind;
    for (const LinearMap::Axis& axis : cluster.map.axes) {
      window.push_back(axis.window);
      dilations.push_back(axis.dilation);
      pads.push_back(-axis.begin);
      behind.push_back(axis.slack + (axis.window - 1) * axis.dilation + axis.begin);
    }
    pads.insert(pads.end(), behind.begin(), behind.end());
    node.attributes.set("kernel_shape", window);
    node.attributes.set("dilations", dilations);
    node.attributes.set("pads", pads);
    node.attributes.set("group", cluster.map.groups);
    node.attributes.erase("auto_pad");
    return node;
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const PassContext& context_;
  NodeId root_;
  ValueId result_ = ValueId::none;
  ChannelAxis axis_;
  std::vector<NodeId> sums_;  // and what is affine between them
  Numbers shift_;             // of all that is between them
  std::vector<Term> terms_;
  std::vector<Cluster> clusters_;
  bool are_even_ = false;
};

}  // namespace

bool sum_convolutions(Graph& graph, const PassContext& context) {
  Rewriter rewriter(graph);
  std::vector<NodeId> order = graph.order();
  // From the back: whole sums before their parts.
  std::reverse(order.begin(), order.end());
  for (const NodeId id : order) {
    if (rewriter.is_live(id)) Summer(rewriter, context, id).sum();
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
