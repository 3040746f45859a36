#pragma once
// Every pass, each in the file of its name. True: the graph changed. Their order and its reasons are in pipeline.cpp.
#include "graph/pipeline.h"

namespace lathe::passes {

bool absorb_dequantize(Graph& graph, const PassContext& context);
bool absorb_reorders(Graph& graph, const PassContext& context);
bool absorb_transposes(Graph& graph, const PassContext& context);
bool assign_slices(Graph& graph, const PassContext& context);
bool bypass_expand(Graph& graph, const PassContext& context);
bool choose_layouts(Graph& graph, const PassContext& context);
bool convolve_pixels(Graph& graph, const PassContext& context);
bool expand_composites(Graph& graph, const PassContext& context);
bool expand_einsum(Graph& graph, const PassContext& context);
bool expand_gradients(Graph& graph, const PassContext& context);
bool fold_affine(Graph& graph, const PassContext& context);
bool fold_batch_norm(Graph& graph, const PassContext& context);
bool fold_constants(Graph& graph, const PassContext& context);
bool fold_if(Graph& graph, const PassContext& context);
bool fold_norms(Graph& graph, const PassContext& context);
bool fold_pads(Graph& graph, const PassContext& context);
bool fold_slices(Graph& graph, const PassContext& context);
bool fuse_attention(Graph& graph, const PassContext& context);
bool fuse_epilogue(Graph& graph, const PassContext& context);
bool fuse_group_norm(Graph& graph, const PassContext& context);
bool fuse_instance_norm(Graph& graph, const PassContext& context);
bool fuse_layer_norm(Graph& graph, const PassContext& context);
bool fuse_pointwise(Graph& graph, const PassContext& context);
bool fuse_quantize(Graph& graph, const PassContext& context);
bool fuse_rms_norm(Graph& graph, const PassContext& context);
bool fuse_rotary(Graph& graph, const PassContext& context);
bool fuse_shuffle(Graph& graph, const PassContext& context);
bool fuse_softmax(Graph& graph, const PassContext& context);
bool fuse_space_to_depth(Graph& graph, const PassContext& context);
bool fuse_upsample(Graph& graph, const PassContext& context);
bool gather_biases(Graph& graph, const PassContext& context);
bool group_convolutions(Graph& graph, const PassContext& context);
bool hoist_pools(Graph& graph, const PassContext& context);
bool hoist_quantize(Graph& graph, const PassContext& context);
bool hoist_slices(Graph& graph, const PassContext& context);
bool join_convolutions(Graph& graph, const PassContext& context);
bool join_parts(Graph& graph, const PassContext& context);
bool keep_bits(Graph& graph, const PassContext& context);
bool merge_common(Graph& graph, const PassContext& context);
bool merge_convolutions(Graph& graph, const PassContext& context);
bool merge_products(Graph& graph, const PassContext& context);
bool merge_reductions(Graph& graph, const PassContext& context);
bool order_for_memory(Graph& graph, const PassContext& context);
bool order_products(Graph& graph, const PassContext& context);
bool pool_means(Graph& graph, const PassContext& context);
bool pull_strides(Graph& graph, const PassContext& context);
bool reassociate(Graph& graph, const PassContext& context);
bool reduce_first(Graph& graph, const PassContext& context);
bool remove_dead(Graph& graph, const PassContext& context);
bool remove_identities(Graph& graph, const PassContext& context);
bool share_heads(Graph& graph, const PassContext& context);
bool sink_constants(Graph& graph, const PassContext& context);
bool sink_cuts(Graph& graph, const PassContext& context);
bool sink_dequantize(Graph& graph, const PassContext& context);
bool sink_reshapes(Graph& graph, const PassContext& context);
bool sink_scales(Graph& graph, const PassContext& context);
bool sink_shuffles(Graph& graph, const PassContext& context);
bool sink_transposes(Graph& graph, const PassContext& context);
bool split_einsum(Graph& graph, const PassContext& context);
bool split_slices(Graph& graph, const PassContext& context);
bool sink_upsamples(Graph& graph, const PassContext& context);
bool sum_convolutions(Graph& graph, const PassContext& context);
bool trim_columns(Graph& graph, const PassContext& context);
bool trim_windows(Graph& graph, const PassContext& context);
bool turn_weights(Graph& graph, const PassContext& context);
bool unpack_heads(Graph& graph, const PassContext& context);
bool unroll_loops(Graph& graph, const PassContext& context);
bool use_integers(Graph& graph, const PassContext& context);
bool use_integers_conv(Graph& graph, const PassContext& context);
bool use_integers_dynamic(Graph& graph, const PassContext& context);
bool use_unsigned(Graph& graph, const PassContext& context);
bool widen_halves(Graph& graph, const PassContext& context);

// No pass: may this node's values lie as they do, plain or in blocks of channels? By the rules of choose_layouts and of
// absorb_reorders. Requires: static types.
bool has_fitting_layouts(const Graph& graph, NodeId id, int block);
// No pass: may this node have a QuantizeLinear in it, as fuse_quantize makes them?
bool takes_quantization(const Graph& graph, const Node& node);

}  // namespace lathe::passes
