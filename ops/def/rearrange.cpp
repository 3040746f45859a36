// DepthToSpace, SpaceToDepth, ReverseSequence, CenterCropPad and BitCast: the same elements in another order or shape.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// ---- DepthToSpace and SpaceToDepth, over any number of spatial axes

template <class Context>
int64_t block_size(const Context& context) {
  const int64_t block = context.node.attributes.get_int("blocksize", 0);
  if (block < 1 || block > (int64_t{1} << 20)) context.fail("attribute 'blocksize' is " + std::to_string(block));
  return block;
}

// block^spatial axes; fails when it passes int64.
template <class Context>
int64_t block_volume(const Context& context, int64_t block, int spatial) {
  int64_t volume = 1;
  for (int i = 0; i < spatial; ++i) {
    const auto next = product_of(volume, block);
    if (!next) context.fail("attribute 'blocksize' is " + std::to_string(block));
    volume = *next;
  }
  return volume;
}

template <class Context>
Dim scaled(const Context& context, const Dim& dim, int64_t factor, bool is_growing, const char* what) {
  if (!dim.known()) return factor == 1 ? dim : Dim();
  if (is_growing) {
    const auto product = product_of(dim.extent, factor);
    if (!product) context.fail(std::string(what) + " overflow");
    return known_dim(*product);
  }
  if (dim.extent % factor != 0) {
    context.fail(std::string(what) + " " + std::to_string(dim.extent) + " are no multiple of " +
                 std::to_string(factor));
  }
  return known_dim(dim.extent / factor);
}

template <class Context>
TensorType depth_space_type(const Context& context, const TensorType& data) {
  if (!data.has_rank) return data;
  if (data.rank() < 3) context.fail("input 0 has rank " + std::to_string(data.rank()) + ", expected 4");
  const bool to_space = context.node.op->name == "DepthToSpace";
  const int64_t block = block_size(context), volume = block_volume(context, block, data.rank() - 2);
  TensorType result = data;
  result.dims[1] = scaled(context, data.dims[1], volume, !to_space, "channels");
  for (size_t i = 2; i < data.dims.size(); ++i) {
    result.dims[i] = scaled(context, data.dims[i], block, to_space, "spatial extents");
  }
  return result;
}

void infer_depth_space(InferContext& context) { context.set_output(0, depth_space_type(context, context.input(0))); }

// The loops of the copy. `deep` has the channels, `wide` the pixels: batch, shallow channel, and per axis (small pixel,
// block offset).
template <class Context>
std::vector<MoveAxis> depth_space_axes(const Context& context, const Dims& data, const Dims& out) {
  const bool to_space = context.node.op->name == "DepthToSpace";
  const std::string mode = context.node.attributes.get_string("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") context.fail("attribute 'mode' is '" + mode + "', expected DCR or CRD");
  const int64_t block = block_size(context);
  const size_t spatial = data.size() - 2;
  const Dims &deep = to_space ? data : out, &wide = to_space ? out : data;
  const std::vector<int64_t> deep_strides = strides_of(deep), wide_strides = strides_of(wide);
  const int64_t volume = block_volume(context, block, static_cast<int>(spatial)), shallow = wide[1];
  const bool is_block_outermost = mode == "DCR";
  std::vector<MoveAxis> axes;
  const auto add = [&](int64_t count, int64_t deep_stride, int64_t wide_stride) {
    axes.push_back(to_space ? MoveAxis{count, deep_stride, wide_stride} : MoveAxis{count, wide_stride, deep_stride});
  };
  add(deep[0], deep_strides[0], wide_strides[0]);
  add(shallow, deep_strides[1] * (is_block_outermost ? 1 : volume), wide_strides[1]);
  int64_t block_stride = volume;
  for (size_t i = 0; i < spatial; ++i) {
    block_stride /= block;
    add(deep[i + 2], deep_strides[i + 2], wide_strides[i + 2] * block);
    add(block, deep_strides[1] * block_stride * (is_block_outermost ? shallow : 1), wide_strides[i + 2]);
  }
  return axes;
}

void run_depth_space(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const Dims out = depth_space_type(context, TensorType::of(data.dtype(), data.dims())).extents();
  const std::vector<MoveAxis> axes = depth_space_axes(context, data.dims(), out);
  Tensor result = make_output(context, data.dtype(), out);
  if (result.size() > 0) move_elements(data, 0, result, 0, axes);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

bool lower_depth_space(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  if (type.storage_bytes() == 0) return true;
  const InferContext messages(context.node, {}, {});
  return add_copy_step(context, type.dtype,
                       {{context.buffer(context.input(0)), context.buffer(context.output(0)), 0, 0,
                         depth_space_axes(messages, type.extents(), context.output_type(0).extents())}});
}

// ---- ReverseSequence

void infer_same(InferContext& context) { context.set_output(0, context.input(0)); }

void run_reverse_sequence(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  if (data.rank() < 2) context.fail("input 0 has rank " + std::to_string(data.rank()));
  const int64_t batch_axis = axis_within(context, context.node.attributes.get_int("batch_axis", 1), data.rank());
  const int64_t time_axis = axis_within(context, context.node.attributes.get_int("time_axis", 0), data.rank());
  if (batch_axis == time_axis) context.fail("batch_axis and time_axis are equal");
  const std::vector<int64_t> lengths = integers_of(context, context.inputs[1], "input 1 (sequence_lens)");
  const auto batch = static_cast<size_t>(batch_axis), time = static_cast<size_t>(time_axis);
  if (static_cast<int64_t>(lengths.size()) != data.dims()[batch]) context.fail("sequence_lens has another batch");
  for (const int64_t length : lengths) {
    if (length < 0 || length > data.dims()[time]) context.fail("sequence length " + std::to_string(length));
  }
  Tensor result = make_output(context, data.dtype(), data.dims());
  const ElementCopy copy(data.dtype());
  const std::vector<int64_t> strides = strides_of(data.dims());
  int64_t to = 0;
  for (IndexWalk at(data.dims()); !at.done(); at.next(), ++to) {
    const int64_t length = lengths[static_cast<size_t>(at.index()[batch])], t = at.index()[time];
    copy(data, t < length ? to + (length - 1 - 2 * t) * strides[time] : to, result, to);
  }
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// Both axes before all others: rows of `inner` elements.
bool lower_reverse_sequence(LowerContext& context) {
  const TensorType &type = context.input_type(0), &lengths = context.input_type(1);
  const int64_t rank = type.rank();
  if (bits_of(type.dtype) < 8 || type.dtype == DType::string || lengths.dtype != DType::i64 || rank < 2) return false;
  const InferContext messages(context.node, {}, {});
  const int64_t batch_axis = axis_within(messages, context.node.attributes.get_int("batch_axis", 1), rank);
  const int64_t time_axis = axis_within(messages, context.node.attributes.get_int("time_axis", 0), rank);
  const Dims dims = type.extents();
  if (batch_axis + time_axis != 1 || lengths.extents() != Dims{dims[static_cast<size_t>(batch_axis)]}) return false;
  int64_t run = bits_of(type.dtype) / 8;
  for (size_t i = 2; i < dims.size(); ++i) run *= dims[i];
  const int64_t times = dims[static_cast<size_t>(time_axis)];
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0)),
                 places = context.buffer(context.input(1));
  Step step;
  step.kernel = "reverse runs of " + std::to_string(run) + " bytes";
  step.reads = {from, places};
  step.writes = {to};
  step.bytes = 2 * static_cast<double>(type.storage_bytes());
  step.run = [=, node = &context.node](const StepArgs& args) {
    for (int64_t i = 0; i < dims[0] * dims[1]; ++i) {
      const int64_t row = i / dims[1], column = i % dims[1];
      const int64_t batch = time_axis == 0 ? column : row, time = time_axis == 0 ? row : column;
      const int64_t length = args.at<const int64_t>(places)[batch], step_of_time = time_axis == 0 ? dims[1] : 1;
      if (length < 0 || length > times) {
        throw Error(ErrorCode::invalid_argument,
                    "node '" + node->name + "' (ReverseSequence): sequence length " + std::to_string(length));
      }
      const int64_t source = time < length ? i + (length - 1 - 2 * time) * step_of_time : i;
      std::memcpy(args.at<char>(to) + i * run, args.at<const char>(from) + source * run, static_cast<size_t>(run));
    }
  };
  context.add(std::move(step));
  return true;
}

// ---- CenterCropPad

template <class Context>
std::vector<int64_t> cropped_axes(const Context& context, int64_t rank) {
  std::vector<int64_t> axes = context.node.attributes.get_ints("axes");
  if (!context.node.attributes.has("axes")) {
    axes.resize(static_cast<size_t>(rank));
    std::iota(axes.begin(), axes.end(), int64_t{0});
  }
  return axes_within(context, axes, rank);
}

template <class Context>
std::vector<int64_t> crop_targets(const Context& context, const Tensor& shape, size_t axes) {
  std::vector<int64_t> targets = integers_of(context, shape, "input 1 (shape)");
  if (targets.size() != axes) {
    context.fail("shape has " + std::to_string(targets.size()) + " extents for " + std::to_string(axes) + " axes");
  }
  for (const int64_t target : targets) {
    if (target < 0) context.fail("extent " + std::to_string(target) + " of the shape is negative");
  }
  return targets;
}

void infer_center_crop_pad(InferContext& context) {
  TensorType result = context.input(0);
  if (!result.has_rank) return context.set_output(0, result);
  const std::vector<int64_t> axes = cropped_axes(context, result.rank());
  const Tensor shape = context.constant(1);
  std::vector<int64_t> targets;
  if (shape.defined()) targets = crop_targets(context, shape, axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    result.dims[static_cast<size_t>(axes[i])] = shape.defined() ? known_dim(targets[i]) : Dim();
  }
  context.set_output(0, std::move(result));
}

void run_center_crop_pad(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const std::vector<int64_t> axes = cropped_axes(context, data.rank());
  const std::vector<int64_t> targets = crop_targets(context, context.inputs[1], axes.size());
  Dims dims = data.dims();
  for (size_t i = 0; i < axes.size(); ++i) dims[static_cast<size_t>(axes[i])] = targets[i];
  Tensor result = make_output(context, data.dtype(), dims);
  const std::vector<int64_t> from_strides = strides_of(data.dims()), to_strides = strides_of(dims);
  int64_t from = 0, to = 0;
  std::vector<MoveAxis> moves;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t old_extent = data.dims()[i], extent = dims[i];
    if (extent < old_extent) from += (old_extent - extent) / 2 * from_strides[i];
    if (extent > old_extent) to += (extent - old_extent) / 2 * to_strides[i];
    moves.push_back({std::min(old_extent, extent), from_strides[i], to_strides[i]});
  }
  const bool is_empty = std::any_of(moves.begin(), moves.end(), [](const MoveAxis& axis) { return axis.count == 0; });
  if (!is_empty) move_elements(data, from, result, to, moves);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// ---- BitCast

template <class Context>
DType bit_cast_type(const Context& context, DType from) {
  const int64_t to = context.node.attributes.get_int("to", 0);
  if (to <= 0 || to >= kDTypeCount || to == static_cast<int64_t>(DType::string) || from == DType::string) {
    context.fail("cannot cast the bits of " + std::string(name_of(from)) + " to type " + std::to_string(to));
  }
  const auto target = static_cast<DType>(to);
  if (from != DType::undefined && bits_of(from) != bits_of(target)) {
    context.fail("cannot cast the bits of " + std::string(name_of(from)) + " to " + std::string(name_of(target)) +
                 ", of another width");
  }
  return target;
}

void infer_bit_cast(InferContext& context) {
  TensorType result = context.input(0);
  result.dtype = bit_cast_type(context, result.dtype);
  context.set_output(0, std::move(result));
}

void run_bit_cast(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  Tensor result = make_output(context, bit_cast_type(context, data.dtype()), data.dims());
  if (data.bytes() > 0) std::memcpy(result.mutable_raw(), data.raw(), data.bytes());
  context.outputs[0] = std::move(result);
}

OpDef depth_space(const char* name, int since, int until, bool has_mode) {
  using Kind = AttributeSpec::Kind;
  std::vector<AttributeSpec> attributes{{"blocksize", Kind::integer, true}};
  if (has_mode) attributes.push_back({"mode", Kind::string});
  return {.schema = {.name = name,
                     .since = since,
                     .until = until,
                     .attributes = std::move(attributes),
                     .infer = infer_depth_space,
                     .reference = run_depth_space},
          .lower = lower_depth_space};
}

}  // namespace

std::vector<OpDef> rearrange_ops() {
  using Kind = AttributeSpec::Kind;
  constexpr int kLatest = 1 << 20;
  return {depth_space("DepthToSpace", 1, 10, false),
          depth_space("DepthToSpace", 11, kLatest, true),
          depth_space("SpaceToDepth", 1, 27, false),
          depth_space("SpaceToDepth", 28, kLatest, true),
          {.schema = {.name = "ReverseSequence",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"batch_axis", Kind::integer}, {"time_axis", Kind::integer}},
                      .infer = infer_same,
                      .reference = run_reverse_sequence},
           .lower = lower_reverse_sequence},
          {.schema = {.name = "CenterCropPad",
                      .since = 18,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"axes", Kind::integers}},
                      .infer = infer_center_crop_pad,
                      .reference = run_center_crop_pad}},
          {.schema = {.name = "BitCast",
                      .since = 26,
                      .attributes = {{"to", Kind::integer, true}},
                      .infer = infer_bit_cast,
                      .reference = run_bit_cast}}};
}

}  // namespace lathe::ops
