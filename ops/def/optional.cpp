// Optionals. One that has an element is that element itself; one that has none is nothing (lathe/value.h).
#include "ops/op_def.h"
#include "src/base/box.h"

namespace lathe::ops {
namespace {

bool is_nothing(const Tensor& value) { return !value.defined() || (is_boxed(value) && unbox(value).is_nothing()); }

void infer_optional(InferContext& context) {
  if (context.has_input(0)) return context.set_output(0, context.input(0));
  const Attribute* type = context.node.attributes.find("type");
  if (type == nullptr || !std::holds_alternative<TensorType>(*type)) {
    context.fail("has neither an input nor the attribute 'type'");
  }
  context.set_output(0, TensorType::optional_of(std::get<TensorType>(*type)));
}

void run_optional(ReferenceContext& context) {
  context.outputs[0] = context.has_input(0) ? context.inputs[0] : box(AnyValue());
}

void infer_has_element(InferContext& context) { context.set_output(0, TensorType::of(DType::boolean, {})); }

void run_has_element(ReferenceContext& context) {
  context.outputs[0] = Tensor::scalar(!context.inputs.empty() && !is_nothing(context.inputs[0]));
}

void infer_get_element(InferContext& context) {
  const TensorType& type = context.input(0);
  const bool is_optional = type.container && type.container->kind == ContainerType::Kind::optional;
  if (is_optional) return context.set_output(0, type.container->element.without_shape());
  // What is not known may be a tensor as well.
  context.set_output(0, type.is_object() && !type.container ? TensorType() : type);
}

void run_get_element(ReferenceContext& context) {
  if (is_nothing(context.inputs[0])) context.fail("the optional is empty");
  context.outputs[0] = context.inputs[0];
}

}  // namespace

std::vector<OpDef> optional_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) {
    schema.takes_objects = true;
    defs.push_back({.schema = std::move(schema)});
  };
  add({.name = "Optional",
       .since = 15,
       .min_inputs = 0,
       .attributes = {{"type", Kind::type}},
       .infer = infer_optional,
       .reference = run_optional});
  add({.name = "OptionalHasElement",
       .since = 15,
       .until = 17,
       .infer = infer_has_element,
       .reference = run_has_element});
  add({.name = "OptionalHasElement",
       .since = 18,
       .min_inputs = 0,
       .infer = infer_has_element,
       .reference = run_has_element});
  add({.name = "OptionalGetElement", .since = 15, .infer = infer_get_element, .reference = run_get_element});
  return defs;
}

}  // namespace lathe::ops
