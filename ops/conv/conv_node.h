#pragma once
// What the convolution operators read from a node, checked against the shapes. Shared by inference and references.
#include <optional>
#include <stdexcept>

#include "graph/op_schema.h"
#include "ops/conv/conv_reference.h"

namespace lathe {

// Calls body(); what it finds wrong becomes an error that names the node.
template <class Context, class Body>
auto named(const Context& context, Body body) {
  try {
    return body();
  } catch (const std::invalid_argument& wrong) {
    context.fail(wrong.what());
  }
}

// Of Conv in all its kinds; `more`: what one kind has besides.
std::vector<AttributeSpec> conv_attributes(std::vector<AttributeSpec> more = {});

struct ConvNode {
  ConvSizes sizes;
  Window window;
};
// From static extents of input and weights ([out][in / groups][window]). Throws std::invalid_argument.
ConvNode read_conv(const Node& node, const Dims& in, const Dims& weights);
// Weights are [in][out / groups][window]. The window's strides are those of the output. Batch and spatial extents of
// the input may be -1, unknown.
ConvNode read_conv_transpose(const Node& node, const Dims& in, const Dims& weights);

// nullopt: more of the shapes is unknown than the number of images, which is then 1, or something is wrong.
std::optional<ConvNode> known_conv_transpose(const Node& node, const TensorType& in, const TensorType& weights);

// Shape inference of Conv, ConvInteger and QLinearConv; `weights_slot` is the input with the weights.
std::vector<Dim> infer_conv_dims(const Node& node, const TensorType& in, const TensorType& weights);

}  // namespace lathe
