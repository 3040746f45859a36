// Transpose: out[i...] = in[i at perm...].
#include <numeric>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/lower.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

template <class Context>
std::vector<int64_t> permutation(const Context& context, int64_t rank) {
  std::vector<int64_t> perm = context.node.attributes.get_ints("perm");
  if (!context.node.attributes.has("perm")) {
    perm.resize(static_cast<size_t>(rank));
    std::iota(perm.rbegin(), perm.rend(), 0);
    return perm;
  }
  if (static_cast<int64_t>(perm.size()) != rank) {
    context.fail("perm has " + std::to_string(perm.size()) + " axes, the input has " + std::to_string(rank));
  }
  return axes_within(context, perm, rank);
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!data.has_rank) {
    const std::vector<int64_t> perm = context.node.attributes.get_ints("perm");
    if (!context.node.attributes.has("perm")) return context.set_output(0, TensorType::unranked(data.dtype));
    return context.set_output(0, ranked(data.dtype, perm.size()));
  }
  TensorType result{data.dtype, true, {}, {}};
  for (const int64_t axis : permutation(context, data.rank())) {
    result.dims.push_back(data.dims[static_cast<size_t>(axis)]);
  }
  context.set_output(0, std::move(result));
}

void reference(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const std::vector<int64_t> perm = permutation(context, data.rank());
  Dims dims;
  for (const int64_t axis : perm) dims.push_back(data.dims()[static_cast<size_t>(axis)]);
  Tensor result = make_output(context, data.dtype(), dims);
  const std::vector<int64_t> from = strides_of(data.dims()), to = strides_of(dims);
  std::vector<MoveAxis> axes;
  for (size_t i = 0; i < dims.size(); ++i) axes.push_back({dims[i], from[static_cast<size_t>(perm[i])], to[i]});
  move_elements(data, 0, result, 0, axes);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// The step along an axis of a tensor, and of a block of its channels along axis 1.
struct Steps {
  std::vector<int64_t> along;
  int64_t block = 0;
};

Steps steps_of(const TensorType& type) {
  Dims dims = type.extents();
  const int64_t block = type.layout.channel_block;
  if (block == 0) return {strides_of(dims), 0};
  dims[1] = (dims[1] + block - 1) / block;
  Steps steps{strides_of(dims), 0};
  for (int64_t& step : steps.along) step *= block;
  steps.block = steps.along[1];
  steps.along[1] = 1;
  return steps;
}

// One side has its channels in blocks: whole blocks as two axes, the rest of them, and zeros behind those of a result.
bool lower_blocked(LowerContext& context, const std::vector<int64_t>& perm) {
  const TensorType &from = context.input_type(0), &to = context.output_type(0);
  const bool reads_blocks = from.layout.channel_block != 0;
  if (reads_blocks && to.layout.channel_block != 0) return false;
  const int64_t block = std::max(from.layout.channel_block, to.layout.channel_block);
  const Steps read = steps_of(from), written = steps_of(to);
  const Dims dims = to.extents();
  CopyJob job{context.buffer(context.input(0)), context.buffer(context.output(0)), 0, 0, {}};
  MoveAxis channels{};
  for (size_t i = 0; i < dims.size(); ++i) {
    const MoveAxis axis{dims[i], read.along[static_cast<size_t>(perm[i])], written.along[i]};
    if (reads_blocks ? perm[i] == 1 : i == 1) {
      channels = axis;
    } else {
      job.axes.push_back(axis);
    }
  }
  const int64_t blocks = channels.count / block, rest = channels.count % block;
  const MoveAxis of_blocks{blocks, reads_blocks ? read.block : channels.from_stride * block,
                           reads_blocks ? channels.to_stride * block : written.block};
  std::vector<CopyJob> jobs;
  const auto add = [&](CopyJob part, std::vector<MoveAxis> axes) {
    part.axes.insert(part.axes.end(), axes.begin(), axes.end());
    jobs.push_back(std::move(part));
  };
  if (blocks > 0) add(job, {of_blocks, {block, channels.from_stride, channels.to_stride}});
  if (rest > 0) {
    job.from_offset = blocks * of_blocks.from_stride;
    job.to_offset = blocks * of_blocks.to_stride;
    add(job, {{rest, channels.from_stride, channels.to_stride}});
    if (!reads_blocks) {
      CopyJob zeros{BufferId::none, job.to, 0, job.to_offset + rest, job.axes};
      for (MoveAxis& axis : zeros.axes) axis.from_stride = 0;
      add(std::move(zeros), {{block - rest, 0, 1}});
    }
  }
  return add_copy_step(context, from.dtype, std::move(jobs));
}

bool lower(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const Dims in_dims = type.extents(), dims = context.output_type(0).extents();
  std::vector<int64_t> perm = context.node.attributes.get_ints("perm");
  if (perm.empty()) {
    perm.resize(in_dims.size());
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  std::vector<int64_t> moved;  // axes with more than one element, in their new order
  for (int64_t& axis : perm) {
    if (axis < 0) axis += static_cast<int64_t>(in_dims.size());
    if (in_dims[static_cast<size_t>(axis)] != 1) moved.push_back(axis);
  }
  if (type.layout != context.output_type(0).layout) return lower_blocked(context, perm);
  if (std::is_sorted(moved.begin(), moved.end())) return lower_as_same_bytes(context);
  const std::vector<int64_t> from = strides_of(in_dims), to = strides_of(dims);
  CopyJob job{context.buffer(context.input(0)), context.buffer(context.output(0)), 0, 0, {}};
  for (size_t i = 0; i < dims.size(); ++i) job.axes.push_back({dims[i], from[static_cast<size_t>(perm[i])], to[i]});
  return add_copy_step(context, type.dtype, {std::move(job)});
}

}  // namespace

std::vector<OpDef> transpose_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema =
               {.name = "Transpose", .attributes = {{"perm", Kind::integers}}, .infer = infer, .reference = reference},
           .lower = lower}};
}

}  // namespace lathe::ops
