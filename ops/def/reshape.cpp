// Operators that keep the elements in their order and change the extents: Reshape, Flatten, Squeeze, Unsqueeze,
// Identity.
#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

// The target of a Reshape: an attribute up to version 4, then input 1.
template <class Context>
std::vector<int64_t> target_of(const Context& context, const Tensor& shape) {
  if (context.node.op->since < 5) return context.node.attributes.get_ints("shape");
  return integers_of(context, shape, "input 1 (shape)");
}

// With allowzero an extent of 0 leaves nothing to find a -1 by.
template <class Context>
void require_definite(const Context& context, const std::vector<int64_t>& target, bool allow_zero) {
  const auto has = [&](int64_t extent) { return std::find(target.begin(), target.end(), extent) != target.end(); };
  if (allow_zero && has(0) && has(-1)) context.fail("allowzero is set and the target has both 0 and -1");
}

// Fills the extent of the -1 at `slot`, when the known extents and symbols allow it.
void infer_remaining(InferContext& context, const TensorType& data, TensorType& result, size_t slot) {
  std::vector<Dim> open;  // input extents that no output extent of the same symbol cancels
  std::optional<int64_t> have = 1, want = 1;
  std::vector<Dim> rest;
  for (size_t i = 0; i < result.dims.size(); ++i) {
    if (i == slot) continue;
    if (result.dims[i].known()) {
      want = product_of(want.value_or(-1), result.dims[i].extent);
    } else {
      rest.push_back(result.dims[i]);
    }
  }
  for (const Dim& dim : data.dims) {
    if (dim.known()) {
      have = product_of(have.value_or(-1), dim.extent);
      continue;
    }
    const auto same =
        std::find_if(rest.begin(), rest.end(), [&](const Dim& other) { return !dim.symbol.empty() && other == dim; });
    if (same == rest.end()) {
      open.push_back(dim);
    } else {
      rest.erase(same);
    }
  }
  if (!rest.empty() || !have || !want) return;
  if (open.size() == 1 && *have == *want && *have > 0) result.dims[slot] = open.front();
  if (!open.empty()) return;
  if (*want == 0 ? *have != 0 : *have % *want != 0) {
    context.fail("cannot reshape " + std::to_string(*have) + " elements into parts of " + std::to_string(*want));
  }
  result.dims[slot] = known_dim(*want == 0 ? 0 : *have / *want);
}

void check_counts(InferContext& context, const TensorType& data, const TensorType& result) {
  if (!data.is_static() || !result.is_static()) return;
  if (checked_elements(data.extents()) != checked_elements(result.extents())) {
    context.fail("cannot reshape " + to_string(data.extents()) + " to " + to_string(result.extents()) +
                 ": the element counts differ");
  }
}

void infer_reshape(InferContext& context) {
  const TensorType& data = context.input(0);
  const bool by_input = context.node.op->since >= 5;
  const Tensor shape = by_input ? context.constant(1) : Tensor();
  if (by_input && !shape.defined()) {
    if (!context.has_input(1)) context.fail("input 1 (shape) is missing");
    const TensorType& type = context.input(1);
    if (type.has_rank && type.rank() == 1 && type.dims[0].known() && type.dims[0].extent <= 64) {
      return context.set_output(0, ranked(data.dtype, static_cast<size_t>(type.dims[0].extent)));
    }
    return context.set_output(0, TensorType::unranked(data.dtype));
  }
  const std::vector<int64_t> target = target_of(context, shape);
  const bool allow_zero = context.node.attributes.get_int("allowzero", 0) != 0;
  require_definite(context, target, allow_zero);
  TensorType result = ranked(data.dtype, target.size());
  std::optional<size_t> remaining;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] < -1) context.fail("the target extent " + std::to_string(target[i]) + " is negative");
    if (target[i] == -1) {
      if (remaining) context.fail("more than one target extent is -1");
      remaining = i;
    } else if (target[i] == 0 && !allow_zero) {
      if (!data.has_rank) continue;
      if (i >= data.dims.size())
        context.fail("target extent " + std::to_string(i) + " copies an extent that is not there");
      result.dims[i] = data.dims[i];
    } else {
      result.dims[i] = known_dim(target[i]);
    }
  }
  if (remaining && data.has_rank) infer_remaining(context, data, result, *remaining);
  check_counts(context, data, result);
  context.set_output(0, std::move(result));
}

void reference_reshape(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const std::vector<int64_t> target = target_of(context, context.inputs.size() > 1 ? context.inputs[1] : Tensor());
  const bool allow_zero = context.node.attributes.get_int("allowzero", 0) != 0;
  require_definite(context, target, allow_zero);
  Dims dims = target;
  int64_t known = 1;
  std::optional<size_t> remaining;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && !allow_zero) {
      if (i >= data.dims().size())
        context.fail("target extent " + std::to_string(i) + " copies an extent that is not there");
      dims[i] = data.dims()[i];
    }
    if (dims[i] == -1) {
      if (remaining) context.fail("more than one target extent is -1");
      remaining = i;
      continue;
    }
    const std::optional<int64_t> product = product_of(known, dims[i]);
    if (!product) context.fail("the target shape is negative or overflows");
    known = *product;
  }
  if (remaining) dims[*remaining] = known == 0 ? 0 : data.size() / known;
  if (checked_elements(dims) != data.size()) {
    context.fail("cannot reshape " + to_string(data.dims()) + " to " + to_string(target));
  }
  context.outputs[0] = data.reshaped(dims);
}

// ---- Flatten

Dim product_of_dims(std::span<const Dim> dims) {
  Dim open;
  int open_count = 0;
  std::optional<int64_t> known = 1;
  for (const Dim& dim : dims) {
    if (dim.known()) {
      known = product_of(known.value_or(-1), dim.extent);
    } else {
      open = dim;
      ++open_count;
    }
  }
  if (open_count == 0) return Dim{known.value_or(-1), ""};
  return open_count == 1 && known == 1 ? open : Dim{};
}

template <class Context>
size_t flatten_axis(const Context& context, int64_t rank) {
  int64_t axis = context.node.attributes.get_int("axis", 1);
  if (axis < -rank || axis > rank) context.fail("axis " + std::to_string(axis) + " is out of range");
  return static_cast<size_t>(axis < 0 ? axis + rank : axis);
}

void infer_flatten(InferContext& context) {
  const TensorType& data = context.input(0);
  TensorType result = ranked(data.dtype, 2);
  if (data.has_rank) {
    const std::span<const Dim> dims(data.dims);
    const size_t axis = flatten_axis(context, data.rank());
    result.dims = {product_of_dims(dims.first(axis)), product_of_dims(dims.subspan(axis))};
  }
  context.set_output(0, std::move(result));
}

void reference_flatten(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const auto axis = static_cast<ptrdiff_t>(flatten_axis(context, data.rank()));
  const Dims& dims = data.dims();
  context.outputs[0] = data.reshaped({checked_elements(Dims(dims.begin(), dims.begin() + axis)),
                                      checked_elements(Dims(dims.begin() + axis, dims.end()))});
}

// ---- Squeeze, Unsqueeze: axes are an attribute up to version 12, then input 1

template <class Context, class Fetch>
std::optional<std::vector<int64_t>> axes_of(const Context& context, bool has_input, Fetch fetch) {
  if (context.node.op->since < 13) {
    if (!context.node.attributes.has("axes")) return std::nullopt;
    return context.node.attributes.get_ints("axes");
  }
  if (!has_input) return std::nullopt;
  return integers_of(context, fetch(), "input 1 (axes)");
}

template <class Context>
std::vector<bool> squeezed_axes(const Context& context, const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> drop(rank, false);
  // An axis named twice is harmless here.
  for (const int64_t axis : axes)
    drop[static_cast<size_t>(axis_within(context, axis, static_cast<int64_t>(rank)))] = true;
  return drop;
}

void infer_squeeze(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  const bool unknown_axes = context.has_input(1) && !context.constant(1).defined();
  TensorType result{data.dtype, true, {}, {}};
  if (unknown_axes) {
    const TensorType& axes = context.input(1);
    if (!axes.is_static() || axes.rank() > 1) return context.set_output(0, TensorType::unranked(data.dtype));
    const int64_t count = axes.rank() == 0 ? 1 : axes.dims[0].extent;
    if (count > data.rank()) context.fail("more axes than the input has");
    return context.set_output(0, ranked(data.dtype, static_cast<size_t>(data.rank() - count)));
  }
  const auto axes = axes_of(context, context.has_input(1), [&] { return context.constant(1); });
  if (!axes) {
    for (const Dim& dim : data.dims) {
      if (!dim.known()) return context.set_output(0, TensorType::unranked(data.dtype));
      if (dim.extent != 1) result.dims.push_back(dim);
    }
    return context.set_output(0, std::move(result));
  }
  const std::vector<bool> drop = squeezed_axes(context, *axes, data.dims.size());
  for (size_t i = 0; i < data.dims.size(); ++i) {
    if (!drop[i]) {
      result.dims.push_back(data.dims[i]);
    } else if (data.dims[i].known() && data.dims[i].extent != 1) {
      context.fail("axis " + std::to_string(i) + " to squeeze has extent " + std::to_string(data.dims[i].extent));
    }
  }
  context.set_output(0, std::move(result));
}

void reference_squeeze(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const auto axes = axes_of(context, context.has_input(1), [&] { return context.inputs[1]; });
  Dims dims;
  std::vector<bool> drop(data.dims().size(), true);
  if (axes) drop = squeezed_axes(context, *axes, data.dims().size());
  for (size_t i = 0; i < data.dims().size(); ++i) {
    if (!drop[i] || (!axes && data.dims()[i] != 1)) {
      dims.push_back(data.dims()[i]);
    } else if (data.dims()[i] != 1) {
      context.fail("axis " + std::to_string(i) + " to squeeze has extent " + std::to_string(data.dims()[i]));
    }
  }
  context.outputs[0] = data.reshaped(dims);
}

template <class Context>
std::vector<bool> inserted_axes(const Context& context, const std::vector<int64_t>& axes, size_t rank) {
  if (axes.size() + rank > 64) context.fail("more than 64 axes");
  const size_t result_rank = rank + axes.size();
  std::vector<bool> inserted(result_rank, false);
  for (const int64_t axis : axes_within(context, axes, static_cast<int64_t>(result_rank))) {
    inserted[static_cast<size_t>(axis)] = true;
  }
  return inserted;
}

void infer_unsqueeze(InferContext& context) {
  const TensorType& data = context.input(0);
  if (context.node.op->since >= 13) {
    if (!context.has_input(1)) context.fail("input 1 (axes) is missing");
    if (!context.constant(1).defined()) {
      const TensorType& axes = context.input(1);
      if (!data.has_rank || !axes.is_static() || axes.rank() > 1) {
        return context.set_output(0, TensorType::unranked(data.dtype));
      }
      const int64_t count = axes.rank() == 0 ? 1 : axes.dims[0].extent;
      if (count > 64) context.fail("more than 64 axes");
      return context.set_output(0, ranked(data.dtype, data.dims.size() + static_cast<size_t>(count)));
    }
  }
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  const auto axes = axes_of(context, context.has_input(1), [&] { return context.constant(1); });
  TensorType result{data.dtype, true, {}, {}};
  size_t next = 0;
  for (const bool is_new : inserted_axes(context, axes.value_or(std::vector<int64_t>{}), data.dims.size())) {
    result.dims.push_back(is_new ? known_dim(1) : data.dims[next++]);
  }
  context.set_output(0, std::move(result));
}

void reference_unsqueeze(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const auto axes = axes_of(context, context.has_input(1), [&] { return context.inputs[1]; });
  Dims dims;
  size_t next = 0;
  for (const bool is_new : inserted_axes(context, axes.value_or(std::vector<int64_t>{}), data.dims().size())) {
    dims.push_back(is_new ? 1 : data.dims()[next++]);
  }
  context.outputs[0] = data.reshaped(dims);
}

// ---- Identity

void infer_identity(InferContext& context) {
  if (context.has_input(0)) context.set_output(0, context.input(0));
}
void reference_identity(ReferenceContext& context) { context.outputs[0] = context.inputs[0]; }

bool lower(LowerContext& context) { return lower_as_same_bytes(context); }

}  // namespace

std::vector<OpDef> reshape_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema) { defs.push_back({.schema = std::move(schema), .lower = lower}); };
  add({.name = "Reshape",
       .until = 4,
       .attributes = {{"shape", Kind::integers}, {"consumed_inputs", Kind::integers}},
       .infer = infer_reshape,
       .reference = reference_reshape});
  add({.name = "Reshape",
       .since = 5,
       .min_inputs = 2,
       .max_inputs = 2,
       .attributes = {{"allowzero", Kind::integer}},
       .infer = infer_reshape,
       .reference = reference_reshape});
  add({.name = "Flatten",
       .attributes = {{"axis", Kind::integer}},
       .infer = infer_flatten,
       .reference = reference_flatten});
  add({.name = "Squeeze",
       .until = 12,
       .attributes = {{"axes", Kind::integers}},
       .infer = infer_squeeze,
       .reference = reference_squeeze});
  add({.name = "Squeeze", .since = 13, .max_inputs = 2, .infer = infer_squeeze, .reference = reference_squeeze});
  add({.name = "Unsqueeze",
       .until = 12,
       .attributes = {{"axes", Kind::integers, true}},
       .infer = infer_unsqueeze,
       .reference = reference_unsqueeze});
  add({.name = "Unsqueeze",
       .since = 13,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_unsqueeze,
       .reference = reference_unsqueeze});
  add({.name = "Identity",
       .infer = infer_identity,
       .reference = reference_identity,
       .layout = LayoutRole::any_same,
       .takes_objects = true});
  return defs;
}

}  // namespace lathe::ops
