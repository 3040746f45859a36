// TensorScatter: rows of an update into a cache of keys or values, at a place for each batch entry.
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) { context.set_output(0, context.input(0)); }

void run_tensor_scatter(ReferenceContext& context) {
  if (context.inputs[1].dtype() != context.inputs[0].dtype()) {
    context.fail("update is " + std::string(name_of(context.inputs[1].dtype())) + ", past_cache " +
                 std::string(name_of(context.inputs[0].dtype())));
  }
  const Tensor cache = spread_elements(context.inputs[0]), update = spread_elements(context.inputs[1]);
  if (cache.rank() < 2 || cache.rank() != update.rank()) {
    context.fail("past_cache is " + to_string(cache.dims()) + ", update " + to_string(update.dims()));
  }
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", -2), cache.rank());
  if (axis == 0) context.fail("axis 0 is the batch");
  const std::string mode = context.node.attributes.get_string("mode", "linear");
  if (mode != "linear" && mode != "circular") context.fail("attribute 'mode' is '" + mode + "'");
  const AxisSplit whole = split_at(cache.dims(), axis), part = split_at(update.dims(), axis);
  Dims expected = cache.dims();
  expected[static_cast<size_t>(axis)] = part.extent;
  if (update.dims() != expected || part.extent > whole.extent) {
    context.fail("update is " + to_string(update.dims()) + ", the cache " + to_string(cache.dims()));
  }
  const int64_t batch = cache.dims()[0];
  std::vector<int64_t> begins(static_cast<size_t>(batch), 0);
  if (context.has_input(2)) begins = integers_of_any(context.inputs[2]);
  if (static_cast<int64_t>(begins.size()) != batch) context.fail("write_indices has another batch");
  Tensor result = make_output(context, cache.dtype(), cache.dims());
  const ElementCopy copy(cache.dtype());
  copy(cache, 0, result, 0, cache.size());
  for (int64_t outer = 0; outer < whole.outer && whole.inner > 0; ++outer) {
    const int64_t begin = begins[static_cast<size_t>(outer / (whole.outer / batch))];
    if (begin < 0 || begin > whole.extent || (mode == "linear" && begin + part.extent > whole.extent)) {
      context.fail("write index " + std::to_string(begin) + " is out of range");
    }
    for (int64_t i = 0; i < part.extent; ++i) {
      const int64_t row = (begin + i) % whole.extent;
      copy(update, (outer * part.extent + i) * whole.inner, result, (outer * whole.extent + row) * whole.inner,
           whole.inner);
    }
  }
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

}  // namespace

std::vector<OpDef> tensor_scatter_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "TensorScatter",
                      .since = 24,
                      .min_inputs = 2,
                      .max_inputs = 3,
                      .attributes = {{"axis", Kind::integer}, {"mode", Kind::string}},
                      .infer = infer,
                      .reference = run_tensor_scatter}}};
}

}  // namespace lathe::ops
