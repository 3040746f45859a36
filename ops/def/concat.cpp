// Concat: inputs behind each other along one axis. Version 1 has a default axis of 1.
#include <algorithm>

#include "ops/copy/channel_gather.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

int64_t axis_attribute(const Node& node) { return node.attributes.get_int("axis", 1); }

void infer(InferContext& context) {
  TensorType result = TensorType::unranked(context.input(0).dtype);
  size_t axis = 0;
  bool all_ranked = true;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
    const TensorType& part = context.input(i);
    if (part.dtype != result.dtype) {
      context.fail("input " + std::to_string(i) + " is " + std::string(name_of(part.dtype)) + ", input 0 is " +
                   std::string(name_of(result.dtype)));
    }
    all_ranked = all_ranked && part.has_rank;
    if (!part.has_rank) continue;
    if (!result.has_rank) {
      axis = static_cast<size_t>(axis_within(context, axis_attribute(context.node), part.rank()));
      result.dims = part.dims;
      result.has_rank = true;
      result.dims[axis] = known_dim(0);
    }
    if (part.rank() != result.rank()) {
      context.fail("input " + std::to_string(i) + " has rank " + std::to_string(part.rank()) + ", others have " +
                   std::to_string(result.rank()));
    }
    for (size_t d = 0; d < part.dims.size(); ++d) {
      Dim& dim = result.dims[d];
      if (d == axis) {
        const bool known = dim.known() && part.dims[d].known();
        int64_t sum = -1;
        if (known && __builtin_add_overflow(dim.extent, part.dims[d].extent, &sum)) context.fail("the axis overflows");
        dim = Dim{known ? sum : -1, ""};
      } else if (dim.known() && part.dims[d].known() && dim.extent != part.dims[d].extent) {
        context.fail("input " + std::to_string(i) + " has extent " + std::to_string(part.dims[d].extent) + " on axis " +
                     std::to_string(d) + ", others have " + std::to_string(dim.extent));
      } else if (!dim.known()) {
        dim = part.dims[d];
      }
    }
  }
  if (result.has_rank && !all_ranked) result.dims[axis] = Dim{};
  if (result.has_rank && context.input_count() == 1) result.dims[axis] = context.input(0).dims[axis];
  context.set_output(0, std::move(result));
}

void reference(ReferenceContext& context) {
  const Tensor& first = context.inputs[0];
  const auto axis = static_cast<size_t>(axis_within(context, axis_attribute(context.node), first.rank()));
  Dims dims = first.dims();
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    Dims part = context.inputs[i].dims();
    if (part.size() != dims.size() || context.inputs[i].dtype() != first.dtype())
      context.fail("inputs differ in rank or type");
    if (__builtin_add_overflow(dims[axis], part[axis], &dims[axis])) context.fail("the axis overflows");
    part[axis] = dims[axis];
    if (part != dims) context.fail("input " + std::to_string(i) + " has other extents than input 0");
  }
  Tensor result =
      make_output(context, first.dtype() == DType::string ? DType::string : spread_elements(first).dtype(), dims);
  const std::vector<int64_t> to = strides_of(dims);
  int64_t offset = 0;
  for (const Tensor& input : context.inputs) {
    const Tensor part = spread_elements(input);
    const std::vector<int64_t> from = strides_of(part.dims());
    std::vector<MoveAxis> axes;
    for (size_t d = 0; d < dims.size(); ++d) axes.push_back({part.dims()[d], from[d], to[d]});
    move_elements(part, 0, result, offset, axes);
    offset += part.dims()[axis] * to[axis];
  }
  context.outputs[0] = pack_elements(result, first.dtype());
}

bool are_whole_blocks(const LowerContext& context, int block) {
  for (int i = 0; i + 1 < context.input_count(); ++i) {
    if (context.input_type(i).dims[1].extent % block != 0) return false;
  }
  return true;
}

// Blocked parts that are no whole blocks: those that begin with a block of the result may lie in their places; of the
// others each channel is fetched, also into the lanes that such a part's last block leaves.
bool gather_blocks(LowerContext& context) {
  const TensorType& whole = context.output_type(0);
  std::vector<ChannelOrigin> origins;
  for (int i = 0; i < context.input_count(); ++i) {
    if (context.input_type(i).layout != whole.layout) return false;
  }
  const auto block = static_cast<size_t>(whole.layout.channel_block);
  const size_t block_bytes = whole.storage_bytes() / static_cast<size_t>(std::max<int64_t>(1, whole.storage_dims()[1]));
  for (int i = 0; i < context.input_count(); ++i) {
    const bool is_in_place =
        origins.size() % block == 0 && whole.dims[0].extent == 1 &&
        std::count(context.node.inputs.begin(), context.node.inputs.end(), context.input(i)) == 1 &&
        context.place_inside(context.input(i), context.output(0), origins.size() / block * block_bytes);
    for (int64_t channel = 0; channel < context.input_type(i).dims[1].extent; ++channel) {
      origins.push_back({is_in_place ? ValueId::none : context.input(i), channel});
    }
  }
  return add_channel_gather_step(context, context.output(0), origins);
}

// All parts in memory order: outer axes, then this axis, then what lies within. Blocked values are joined by blocks.
bool lower(LowerContext& context) {
  const TensorType& whole = context.output_type(0);
  const int bits = bits_of(whole.dtype);
  if (bits < 8 || whole.dtype == DType::string) return false;
  const auto element_bytes = static_cast<size_t>(bits) / 8;
  int64_t axis = axis_attribute(context.node);
  if (axis < 0) axis += whole.rank();
  const int block = whole.layout.channel_block;
  if (block != 0 && axis != 1) return false;
  if (block != 0 && !are_whole_blocks(context, block)) return gather_blocks(context);
  const AxisSplit split = split_at(whole.storage_dims(), axis);
  std::vector<CopyJob> jobs;
  int64_t offset = 0;
  for (int i = 0; i < context.input_count(); ++i) {
    const TensorType& type = context.input_type(i);
    if (type.layout != whole.layout) return false;
    const int64_t part_row = split_at(type.storage_dims(), axis).row(), at = offset;
    offset += part_row;
    if (split.outer * part_row == 0) continue;
    // A value that is joined to itself can lie in one place only.
    const auto& inputs = context.node.inputs;
    const bool is_first_use =
        std::find(inputs.begin(), inputs.begin() + i, inputs[static_cast<size_t>(i)]) == inputs.begin() + i;
    if (split.outer == 1 && is_first_use &&
        context.place_inside(context.input(i), context.output(0), static_cast<size_t>(at) * element_bytes)) {
      continue;
    }
    jobs.push_back({context.buffer(context.input(i)),
                    context.buffer(context.output(0)),
                    0,
                    at,
                    {{split.outer, part_row, split.row()}, {part_row, 1, 1}}});
  }
  return jobs.empty() || add_copy_step(context, whole.dtype, std::move(jobs));
}

}  // namespace

std::vector<OpDef> concat_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  for (const bool is_first : {true, false}) {
    defs.push_back({.schema = {.name = "Concat",
                               .since = is_first ? 1 : 4,
                               .until = is_first ? 3 : 1 << 20,
                               .max_inputs = -1,
                               .attributes = {{"axis", Kind::integer, !is_first}},
                               .infer = infer,
                               .reference = reference,
                               .layout = LayoutRole::channel_join},
                    .lower = lower});
  }
  return defs;
}

}  // namespace lathe::ops
