// Operators that com.microsoft had before ai.onnx did, or has with other defaults.
#include "ops/expansion.h"

namespace lathe::ops {
namespace {

template <const char* Op>
bool expand_same(ExpandContext& context) {
  context.set_output(0, context.add(Op, context.node.inputs, Attributes(context.node.attributes)));
  return true;
}

constexpr char kTrilu[] = "Trilu", kGatherNd[] = "GatherND", kPad[] = "Pad";

// Inputs: start, limit, delta (1 when absent).
bool expand_range(ExpandContext& context) {
  const ValueId delta = context.has_input(2) ? context.input(2) : add_scalar(context, context.input_type(0).dtype, 1);
  context.set_output(0, context.add("Range", {context.input(0), context.input(1), delta}));
  return true;
}

// Inputs: x, axis.
bool expand_dims(ExpandContext& context) {
  const ValueId axis = context.add("Cast", {context.input(1)}, {{"to", static_cast<int64_t>(DType::i64)}});
  context.set_output(0,
                     context.add("Unsqueeze", {context.input(0), context.add("Reshape", {axis, context.longs({1})})}));
  return true;
}

// Outputs: the elements in order of their first appearance, where each one is among them, and how often it came.
bool expand_unique(ExpandContext& context) {
  Attributes attributes;
  attributes.set("sorted", int64_t{0});
  const std::vector<ValueId> all = context.add_many("Unique", {context.input(0)}, 4, std::move(attributes));
  context.set_output(0, all[0]);
  context.set_output(1, all[2]);
  context.set_output(2, all[3]);
  return true;
}

bool expand_grid_sample(ExpandContext& context) {
  Attributes attributes = copied_attributes(context.node, {"align_corners", "padding_mode"});
  const std::string mode = context.node.attributes.get_string("mode", "bilinear");
  attributes.set("mode", mode == "bilinear" ? std::string("linear") : mode == "bicubic" ? "cubic" : mode);
  context.set_output(0, context.add("GridSample", context.node.inputs, std::move(attributes)));
  return true;
}

}  // namespace

std::vector<OpDef> contrib_standard_ops() {
  using Kind = AttributeSpec::Kind;
  OpDef unique = composite("Unique", 1, 1, expand_unique);
  unique.schema.max_outputs = 3;
  return {composite("Trilu", 1, 2, expand_same<kTrilu>, {{"upper", Kind::integer}}),
          composite("GatherND", 2, 2, expand_same<kGatherNd>, {{"batch_dims", Kind::integer}}),
          composite("Pad", 2, 3, expand_same<kPad>, {{"mode", Kind::string}}),
          composite("Range", 2, 3, expand_range),
          composite("ExpandDims", 2, 2, expand_dims),
          std::move(unique),
          composite("GridSample", 2, 2, expand_grid_sample,
                    {{"align_corners", Kind::integer}, {"mode", Kind::string}, {"padding_mode", Kind::string}})};
}

}  // namespace lathe::ops
