// Expand (broadcast to a shape) and Tile (repeat along axes).
#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// ---- Expand

Dims expanded(const ReferenceContext& context, const Dims& data, const std::vector<int64_t>& target) {
  Dims dims(std::max(data.size(), target.size()), 1);
  std::copy(data.begin(), data.end(), dims.end() - static_cast<ptrdiff_t>(data.size()));
  const size_t skip = dims.size() - target.size();
  for (size_t i = 0; i < target.size(); ++i) {
    int64_t& dim = dims[skip + i];
    if (target[i] < 0) context.fail("extent " + std::to_string(target[i]) + " of the shape is negative");
    if (dim == 1) {
      dim = target[i];
    } else if (target[i] != 1 && target[i] != dim) {
      context.fail("cannot expand " + to_string(data) + " to " + to_string(target));
    }
  }
  return dims;
}

void infer_expand(InferContext& context) {
  const TensorType& data = context.input(0);
  const Tensor shape = context.constant(1);
  if (!context.has_input(1)) context.fail("input 1 (shape) is missing");
  if (!shape.defined() || !data.has_rank) {
    const TensorType& type = context.input(1);
    if (data.has_rank && type.is_static() && type.rank() == 1 && type.dims[0].extent <= 64) {
      const auto rank = std::max(data.dims.size(), static_cast<size_t>(type.dims[0].extent));
      TensorType result = ranked(data.dtype, rank);
      for (size_t i = 0; i < data.dims.size(); ++i) {  // an extent above 1 cannot change
        if (data.dims[i].extent > 1) result.dims[rank - data.dims.size() + i] = data.dims[i];
      }
      return context.set_output(0, std::move(result));
    }
    return context.set_output(0, TensorType::unranked(data.dtype));
  }
  const std::vector<int64_t> target = integers_of(context, shape, "input 1 (shape)");
  TensorType result = ranked(data.dtype, std::max(data.dims.size(), target.size()));
  for (size_t i = 0; i < result.dims.size(); ++i) {
    const size_t from_end = result.dims.size() - i;
    const Dim dim = from_end <= data.dims.size() ? data.dims[data.dims.size() - from_end] : known_dim(1);
    const int64_t wanted = from_end <= target.size() ? target[target.size() - from_end] : 1;
    if (wanted < 0) context.fail("extent " + std::to_string(wanted) + " of the shape is negative");
    if (wanted == 1) {
      result.dims[i] = dim;
    } else {
      if (dim.known() && dim.extent != 1 && dim.extent != wanted) {
        context.fail("cannot expand an axis of " + std::to_string(dim.extent) + " to " + std::to_string(wanted));
      }
      result.dims[i] = known_dim(wanted);
    }
  }
  context.set_output(0, std::move(result));
}

// Strides that repeat the axes of `from` to fill `to`.
std::vector<MoveAxis> broadcast_axes(const Dims& from, const Dims& to) {
  const std::vector<int64_t> from_strides = strides_of(from), to_strides = strides_of(to);
  const size_t skip = to.size() - from.size();
  std::vector<MoveAxis> axes;
  for (size_t i = 0; i < to.size(); ++i) {
    const bool is_repeated = i < skip || from[i - skip] == 1;
    axes.push_back({to[i], is_repeated ? 0 : from_strides[i - skip], to_strides[i]});
  }
  return axes;
}

void reference_expand(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const Dims dims = expanded(context, data.dims(), integers_of(context, context.inputs[1], "input 1 (shape)"));
  Tensor result = make_output(context, data.dtype(), dims);
  move_elements(data, 0, result, 0, broadcast_axes(data.dims(), dims));
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

bool lower_expand(LowerContext& context) {
  const Dims from = context.input_type(0).extents(), to = context.output_type(0).extents();
  if (TensorType::of(DType::f32, from).storage_bytes() == TensorType::of(DType::f32, to).storage_bytes()) {
    return lower_as_same_bytes(context);
  }
  return add_copy_step(
      context, context.input_type(0).dtype,
      {{context.buffer(context.input(0)), context.buffer(context.output(0)), 0, 0, broadcast_axes(from, to)}});
}

// ---- Tile: version 1 repeats one axis (inputs tiles and axis), version 6 all axes

std::vector<int64_t> repeats_of(const ReferenceContext& context) {
  const int64_t rank = context.inputs[0].rank();
  std::vector<int64_t> repeats;
  if (context.node.op->since >= 6) {
    repeats = integers_of(context, context.inputs[1], "input 1 (repeats)");
  } else {
    // Both scalars are of the data's own type in version 1.
    const auto scalar = [&](size_t i) -> int64_t {
      const Tensor& tensor = context.inputs[i];
      if (tensor.size() != 1) context.fail("input " + std::to_string(i) + " is not a scalar");
      if (tensor.dtype() == DType::f32) return static_cast<int64_t>(*tensor.data<float>());
      if (tensor.dtype() == DType::f64) return static_cast<int64_t>(*tensor.data<double>());
      return integers_of(context, tensor.reshaped({1}), "tiles or axis")[0];
    };
    repeats.assign(static_cast<size_t>(rank), 1);
    repeats[static_cast<size_t>(axis_within(context, scalar(2), rank))] = scalar(1);
  }
  if (static_cast<int64_t>(repeats.size()) != rank) {
    context.fail("repeats has " + std::to_string(repeats.size()) + " elements, the input has rank " +
                 std::to_string(rank));
  }
  for (const int64_t count : repeats) {
    if (count < 0) context.fail("repeats has the negative element " + std::to_string(count));
  }
  return repeats;
}

void infer_tile(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  TensorType result = ranked(data.dtype, data.dims.size());
  const Tensor repeats = context.node.op->since >= 6 ? context.constant(1) : Tensor();
  if (repeats.defined()) {
    const std::vector<int64_t> counts = integers_of(context, repeats, "input 1 (repeats)");
    if (counts.size() != data.dims.size()) {
      context.fail("repeats has " + std::to_string(counts.size()) + " elements, the input has rank " +
                   std::to_string(data.rank()));
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] < 0) context.fail("repeats has the negative element " + std::to_string(counts[i]));
      if (counts[i] == 1) result.dims[i] = data.dims[i];
      if (!data.dims[i].known()) continue;
      const std::optional<int64_t> extent = product_of(data.dims[i].extent, counts[i]);
      if (!extent) context.fail("axis " + std::to_string(i) + " overflows");
      result.dims[i] = known_dim(*extent);
    }
  }
  context.set_output(0, std::move(result));
}

// Each axis becomes two: the repeats (stride 0), then the elements.
std::vector<MoveAxis> tile_axes(const Dims& data, const Dims& result) {
  const std::vector<int64_t> from = strides_of(data), to = strides_of(result);
  std::vector<MoveAxis> axes;
  for (size_t i = 0; i < data.size(); ++i) {
    axes.push_back({data[i] == 0 ? 0 : result[i] / data[i], 0, to[i] * data[i]});
    axes.push_back({data[i], from[i], to[i]});
  }
  return axes;
}

void reference_tile(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const std::vector<int64_t> repeats = repeats_of(context);
  Dims dims = data.dims();
  for (size_t i = 0; i < dims.size(); ++i) {
    const std::optional<int64_t> extent = product_of(dims[i], repeats[i]);
    if (!extent) context.fail("axis " + std::to_string(i) + " overflows");
    dims[i] = *extent;
  }
  Tensor result = make_output(context, data.dtype(), dims);
  move_elements(data, 0, result, 0, tile_axes(data.dims(), dims));
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

bool lower_tile(LowerContext& context) {
  const Dims from = context.input_type(0).extents(), to = context.output_type(0).extents();
  if (from == to) return lower_as_same_bytes(context);
  return add_copy_step(
      context, context.input_type(0).dtype,
      {{context.buffer(context.input(0)), context.buffer(context.output(0)), 0, 0, tile_axes(from, to)}});
}

}  // namespace

std::vector<OpDef> expand_ops() {
  std::vector<OpDef> defs;
  const auto add = [&](OpSchema schema, LowerFn* lower) {
    defs.push_back({.schema = std::move(schema), .lower = lower});
  };
  add({.name = "Expand",
       .since = 8,
       .min_inputs = 2,
       .max_inputs = 2,
       .infer = infer_expand,
       .reference = reference_expand},
      lower_expand);
  add({.name = "Tile", .until = 5, .min_inputs = 3, .max_inputs = 3, .infer = infer_tile, .reference = reference_tile},
      lower_tile);
  add({.name = "Tile", .since = 6, .min_inputs = 2, .max_inputs = 2, .infer = infer_tile, .reference = reference_tile},
      lower_tile);
  return defs;
}

}  // namespace lathe::ops
