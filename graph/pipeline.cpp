#include "graph/pipeline.h"

#include <algorithm>
#include <chrono>

#include "graph/infer.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "graph/verify.h"
#include "lathe/error.h"

namespace lathe {
namespace {

// Passes feed one another, but a graph settles after two or three rounds; the bound is for graphs made to never settle.
constexpr int kRounds = 8;

class PassRunner {
 public:
  PassRunner(const std::vector<Pass>& passes, const PassContext& context, int level,
             const std::vector<std::string>& disabled, PassScript* script)
      : context_(context), script_(script) {
    for (size_t number = 0; number < passes.size(); ++number) {
      const Pass& pass = passes[number];
      const bool is_disabled = std::find(disabled.begin(), disabled.end(), pass.name) != disabled.end();
      if (pass.level > level || is_disabled) continue;
      passes_.push_back(pass);
      numbers_.push_back(number);
      reports_.push_back({.name = pass.name});
    }
    settled_at_.assign(passes_.size(), 0);
  }

  // Simple passes settle before the fusing ones begin: a fusion hides the parts that it is made of.
  void settle(Graph& graph) {
    ++version_;  // a body is another graph
    repeat(graph, 1);
    repeat(graph, 99);
  }

  void settle_with_bodies(Graph& graph) {
    settle(graph);
    settle_bodies(graph);
  }

  void once(Graph& graph) { round(graph, 99); }

  std::vector<PassReport> reports() const { return reports_; }

 private:
  void repeat(Graph& graph, int level) {
    for (int i = 0; i < kRounds && round(graph, level); ++i) {
      version_ += infer_types(graph, context_.limits);
      note(PassScript::kInferTypes);
    }
  }

  bool round(Graph& graph, int level) {
    bool changed = false;
    for (size_t i = 0; i < passes_.size(); ++i) {
      if (passes_[i].level <= level) changed = run(graph, i) || changed;
    }
    return changed;
  }

  void note(size_t step) {
    if (script_ != nullptr) script_->steps.push_back(step);
  }

  bool run(Graph& graph, size_t i) {
    // It has seen this very graph, and left it.
    if (settled_at_[i] == version_) return false;
    PassReport& report = reports_[i];
    const size_t before = graph.order().size();
    const auto begin = std::chrono::steady_clock::now();
    const bool changed = passes_[i].run(graph, context_);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    report.milliseconds += took.count();
    // From the first time that it fired to the last.
    if (report.fired == 0) report.nodes_before = report.nodes_after = before;
    if (changed) report.nodes_after = graph.order().size();
    report.nodes_saved += static_cast<int>(before) - static_cast<int>(graph.order().size());
    report.fired += changed;
    if (changed) {
      ++version_;
    } else {
      settled_at_[i] = version_;
    }
    if (changed) note(numbers_[i]);
    if (changed && context_.fired != nullptr) context_.fired->insert(report.name);
#ifndef NDEBUG
    if (changed) verify(graph);
#endif
    return changed;
  }

  void settle_bodies(Graph& graph) {
    for (const NodeId id : graph.order()) {
      if (!has_bodies(graph.node(id))) continue;
      Node& node = graph.node(id);
      std::vector<std::pair<std::string, Attribute>> settled;
      for (const auto& [name, attribute] : node.attributes) {
        if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&attribute)) {
          settled.emplace_back(name, settled_body(graph, node, **body));
        } else if (const auto* bodies = std::get_if<std::vector<std::shared_ptr<const Graph>>>(&attribute)) {
          std::vector<std::shared_ptr<const Graph>> all;
          for (const auto& each : *bodies) all.push_back(settled_body(graph, node, *each));
          settled.emplace_back(name, std::move(all));
        }
      }
      for (auto& [name, attribute] : settled) node.attributes.set(name, std::move(attribute));
    }
  }

  std::shared_ptr<const Graph> settled_body(const Graph& outer, const Node& node, const Graph& body) {
    auto copy = std::make_shared<Graph>(body);
    const size_t captures = static_cast<size_t>(node.captures), formal = copy->inputs.size() - captures;
    // What a body is declared to take is only a claim, and a loop may hand it another shape each time.
    for (size_t i = 0; i < formal; ++i) {
      TensorType& type = copy->value(copy->inputs[i]).type;
      type = type.without_shape();
    }
    for (size_t i = 0; i < captures; ++i) {
      const TensorType& type = outer.value(node.inputs[node.own_input_count() + i]).type;
      copy->value(copy->inputs[formal + i]).type = without_inferred_symbols(type);
    }
    try {
      infer_types(*copy, context_.limits);
      settle_with_bodies(*copy);
    } catch (const Error&) {
      // A branch that is never taken may contradict itself; a run that takes it will say so.
      return std::make_shared<Graph>(body);
    }
    return copy;
  }

  const PassContext& context_;
  PassScript* script_;  // or null
  std::vector<Pass> passes_;
  std::vector<size_t> numbers_;  // of these among all
  std::vector<PassReport> reports_;
  int version_ = 1;              // of the graph: counts its changes
  std::vector<int> settled_at_;  // by pass: the last version that it left as it was; 0: none
};

}  // namespace

const std::vector<Pass>& load_passes() {
  static const std::vector<Pass> kPasses = {
      // By names of values, which nothing has changed yet. A reference sees no names.
      {"expand-gradients", passes::expand_gradients, 0},
      // What everything below knows is float32.
      {"widen-halves", passes::widen_halves, 1},
      // Composites give way to their parts, which everything below knows.
      {"expand-composites", passes::expand_composites, 1},
      // While signed bytes are read by DequantizeLinear alone.
      {"use-unsigned", passes::use_unsigned, 1},
      // Before constants are folded: quantized weights stay bytes.
      {"hoist-quantize", passes::hoist_quantize, 1},
      {"sink-dequantize", passes::sink_dequantize, 1},
      {"use-integers", passes::use_integers, 1},
      {"use-integers-conv", passes::use_integers_conv, 1},
      {"use-integers-dynamic", passes::use_integers_dynamic, 1},
      // What these left is float32 times weights of few bits, which folding would make float32.
      {"keep-bits", passes::keep_bits, 1},
      // Then what brings constants into sight and opens up control flow.
      {"sink-constants", passes::sink_constants, 1},
      {"fold-if", passes::fold_if, 1},
      {"unroll-loops", passes::unroll_loops, 1},
      {"fold-constants", passes::fold_constants, 1},
      // Patterns below are written without identities in between, and count readers: dead ones must be gone.
      {"remove-identities", passes::remove_identities, 1},
      {"sink-reshapes", passes::sink_reshapes, 1},
      {"sink-cuts", passes::sink_cuts, 1},
      // Masks and statistics come to their readers as small as they are.
      {"bypass-expand", passes::bypass_expand, 1},
      {"assign-slices", passes::assign_slices, 1},
      {"split-slices", passes::split_slices, 1},
      {"join-parts", passes::join_parts, 1},
      {"fold-pads", passes::fold_pads, 1},
      {"fold-slices", passes::fold_slices, 1},
      {"merge-common", passes::merge_common, 1},
      {"remove-dead", passes::remove_dead, 1},
      // Before any fusion: what goes into weights costs nothing at all.
      {"fold-batch-norm", passes::fold_batch_norm, 1},
      // Before epilogues, which would swallow their parts.
      {"fuse-layer-norm", passes::fuse_layer_norm, 2},
      {"fuse-rms-norm", passes::fuse_rms_norm, 2},
      {"fuse-group-norm", passes::fuse_group_norm, 2},
      {"fuse-instance-norm", passes::fuse_instance_norm, 2},
      {"fold-norms", passes::fold_norms, 2},
      {"fuse-softmax", passes::fuse_softmax, 2},
      {"fuse-upsample", passes::fuse_upsample, 2},
      // Before Transposes sink, which then pass it.
      {"fuse-rotary", passes::fuse_rotary, 2},
      // Behind norms and Softmax, which rows pass as one node each; before products become what is not seen through.
      {"hoist-slices", passes::hoist_slices, 2},
      // Behind the norms, whose gains and offsets they would swallow.
      {"fold-affine", passes::fold_affine, 2},
      // Before what asks how large a window is.
      {"trim-windows", passes::trim_windows, 2},
      // Before what takes convolutions or the sums behind them one by one.
      {"sum-convolutions", passes::sum_convolutions, 2},
      {"group-convolutions", passes::group_convolutions, 2},
      // While Transposes and what they feed lie where the model has them; for the two passes below.
      {"convolve-pixels", passes::convolve_pixels, 2},
      {"sink-upsamples", passes::sink_upsamples, 2},
      {"join-convolutions", passes::join_convolutions, 2},
      {"pull-strides", passes::pull_strides, 2},
      {"order-products", passes::order_products, 2},
      {"reassociate", passes::reassociate, 2},
      {"merge-reductions", passes::merge_reductions, 2},
      // Before layouts are chosen: pools take blocked channels, reductions do not.
      {"pool-means", passes::pool_means, 2},
      // Behind it, for its pools.
      {"hoist-pools", passes::hoist_pools, 2},
      // Before what would fuse the factor with what made it.
      {"reduce-first", passes::reduce_first, 2},
      // Before products take in what has come down to them.
      {"sink-transposes", passes::sink_transposes, 2},
      {"turn-weights", passes::turn_weights, 2},
      {"fuse-shuffle", passes::fuse_shuffle, 2},
      {"sink-shuffles", passes::sink_shuffles, 2},
      {"fuse-space-to-depth", passes::fuse_space_to_depth, 2},
      // Before what looks for Transposes next to products.
      {"sink-scales", passes::sink_scales, 2},
      // Before epilogues: a product that ends in one keeps its order of axes.
      {"absorb-transposes", passes::absorb_transposes, 2},
      // Before epilogues, which would take the biases one by one.
      {"gather-biases", passes::gather_biases, 2},
      // What rides on a product or convolution saves a whole pass over memory. The pointwise fusion of what is left
      // waits for the extents: it would hide the parts of patterns that cannot be told without them.
      {"fuse-epilogue", passes::fuse_epilogue, 2},
      // Behind it, for what it has put there.
      {"absorb-dequantize", passes::absorb_dequantize, 2},
      // Behind epilogues, which bring scale and masks of the scores, however spelled, into one form.
      {"fuse-attention", passes::fuse_attention, 2},
      // Behind attention, which is what reads the parts of a wide product where they lie.
      {"unpack-heads", passes::unpack_heads, 2},
      {"merge-products", passes::merge_products, 2},
  };
  return kPasses;
}

const std::vector<Pass>& bind_passes() {
  static const std::vector<Pass> kPasses = {
      // With the extents known, shape arithmetic is constant, and what it fed may be too: a branch is decided, and what
      // it holds has extents in turn.
      {"fold-if", passes::fold_if, 1},
      // A count of iterations that was an extent is a number now.
      {"unroll-loops", passes::unroll_loops, 1},
      // Those whose parts depend on an extent.
      {"expand-composites", passes::expand_composites, 1},
      {"split-einsum", passes::split_einsum, 1},
      {"expand-einsum", passes::expand_einsum, 1},
      {"remove-identities", passes::remove_identities, 1},
      // Of as many pictures as there are known to be now.
      {"sink-cuts", passes::sink_cuts, 1},
      // A mask that was spread to extents known only now, and what was assigned to its first columns: before constants
      // are folded, for indices are many times as large as what is assigned by them.
      {"bypass-expand", passes::bypass_expand, 1},
      {"assign-slices", passes::assign_slices, 1},
      {"join-parts", passes::join_parts, 1},
      // Of masks for all lengths, too large to be folded, few rows are read.
      {"hoist-slices", passes::hoist_slices, 2},
      // Every layer has the same masks and rows of tables.
      {"merge-common", passes::merge_common, 1},
      {"remove-dead", passes::remove_dead, 1},
      {"fold-constants", passes::fold_constants, 1},
      // By places that are known now.
      {"trim-columns", passes::trim_columns, 2},
      // Of composites that were expanded, and which rotate in parts.
      {"fuse-rotary", passes::fuse_rotary, 2},
      // What an order costs depends on all three extents.
      {"order-products", passes::order_products, 2},
      {"remove-dead", passes::remove_dead, 1},
  };
  return kPasses;
}

const std::vector<Pass>& specialize_passes() {
  static const std::vector<Pass> kPasses = {
      // Again: shapes that could not be compared by symbol can be compared now.
      {"fuse-layer-norm", passes::fuse_layer_norm, 2},
      {"fuse-shuffle", passes::fuse_shuffle, 2},
      {"sink-shuffles", passes::sink_shuffles, 2},
      {"remove-dead", passes::remove_dead, 1},
      {"sink-scales", passes::sink_scales, 2},
      {"absorb-transposes", passes::absorb_transposes, 2},
      {"gather-biases", passes::gather_biases, 2},
      {"fuse-epilogue", passes::fuse_epilogue, 2},
      {"absorb-dequantize", passes::absorb_dequantize, 2},
      // Before pointwise fusion, which takes QuantizeLinear for its own.
      {"fuse-quantize", passes::fuse_quantize, 2},
      {"fuse-attention", passes::fuse_attention, 2},
      {"unpack-heads", passes::unpack_heads, 2},
      // Behind attention, which keys and values then come to as they are.
      {"share-heads", passes::share_heads, 2},
      {"merge-products", passes::merge_products, 2},
      {"remove-dead", passes::remove_dead, 1},
      // Pictures may turn out smaller than their windows.
      {"trim-windows", passes::trim_windows, 2},
      // Behind epilogues, which must be alike.
      {"merge-convolutions", passes::merge_convolutions, 3},
      {"fuse-pointwise", passes::fuse_pointwise, 2},
      // Last of those that change nodes: the passes above neither know nor keep layouts.
      {"choose-layouts", passes::choose_layouts, 3},
      {"absorb-reorders", passes::absorb_reorders, 3},
      {"order-for-memory", passes::order_for_memory, 3},
  };
  return kPasses;
}

std::vector<PassReport> run_passes(Graph& graph, const std::vector<Pass>& passes, const PassContext& context, int level,
                                   const std::vector<std::string>& disabled, PassScript* script) {
  PassRunner runner(passes, context, level, disabled, script);
  // With shapes bound, whoever runs a body gives it those that it has then: it stays the one body that all
  // specializations of the graph share.
  if (&passes == &specialize_passes()) {
    runner.once(graph);
  } else if (&passes == &bind_passes()) {
    runner.settle(graph);
  } else {
    runner.settle_with_bodies(graph);
  }
  return runner.reports();
}

void replay_passes(Graph& graph, const std::vector<Pass>& passes, const PassContext& context,
                   const PassScript& script) {
  for (const size_t step : script.steps) {
    if (step == PassScript::kInferTypes)
      infer_types(graph, context.limits);
    else
      passes[step].run(graph, context);
  }
}

}  // namespace lathe
