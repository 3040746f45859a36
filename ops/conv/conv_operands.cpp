#include "ops/conv/conv_operands.h"

#include <algorithm>
#include <cstring>

#include "ops/copy/block_reorder.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

int64_t blocks_of(int64_t channels, int lanes) { return divide_up(channels, lanes); }

int64_t pixels_of(const Dims& dims) {
  int64_t pixels = 1;
  for (size_t i = 2; i < dims.size(); ++i) pixels *= dims[i];
  return pixels;
}

int64_t element_bytes(DType dtype) { return bits_of(dtype) / 8; }

// Calls body with a number of the element's size.
template <class Body>
void with_element(DType dtype, Body body) {
  element_bytes(dtype) == 1 ? body(uint8_t{}) : body(uint32_t{});
}

// Extents with ones in front, up to `rank`.
Dims aligned(const Dims& dims, size_t rank) {
  Dims result(rank - std::min(rank, dims.size()), 1);
  result.insert(result.end(), dims.begin(), dims.end());
  return result;
}

// Strides of a broadcasting operand against an output of `out`, in elements, for its own (plain or blocked) storage.
struct BroadcastStrides {
  int64_t batch = 0, block = 0, lane = 0;  // channel c is at (c / lanes) * block + (c % lanes) * lane
  Dims spatial;
};
BroadcastStrides strides_of(const Dims& own, const Dims& out, int own_block, int lanes) {
  BroadcastStrides strides;
  strides.spatial.assign(out.size() - 2, 0);
  int64_t step = own_block > 0 ? own_block : 1;
  for (size_t i = out.size(); i-- > 2;) {
    if (own[i] != 1) strides.spatial[i - 2] = step;
    step *= own[i];
  }
  if (own_block > 0) {
    strides.block = own[1] == 1 ? 0 : step;
    strides.lane = own[1] == 1 ? 0 : 1;
    step *= blocks_of(own[1], own_block);
  } else {
    strides.lane = own[1] == 1 ? 0 : step;
    strides.block = strides.lane * lanes;
    step *= own[1];
  }
  strides.batch = own[0] == 1 ? 0 : step;
  return strides;
}

// One plane of an operand as if it had the output's shape and layout.
template <class Element>
void expand_plane(const Element* plane, const BroadcastStrides& strides, const Dims& out, int64_t channels, int lanes,
                  Element* to) noexcept {
  const int64_t pixels = pixels_of(out);
  for (int64_t pixel = 0; pixel < pixels; ++pixel, to += lanes) {
    int64_t rest = pixel, offset = 0;
    for (size_t axis = strides.spatial.size(); axis-- > 0;) {
      offset += rest % out[axis + 2] * strides.spatial[axis];
      rest /= out[axis + 2];
    }
    for (int64_t lane = 0; lane < channels; ++lane) to[lane] = plane[offset + lane * strides.lane];
    for (int64_t lane = channels; lane < lanes; ++lane) to[lane] = 0;
  }
}

struct Operand {
  BufferId buffer = BufferId::none;
  Dims dims;
  int block = 0;
  DType dtype = DType::f32;
};

// Writes the operand as if it had the output's shape and layout.
Step expand_step(const Operand& operand, BufferId to, const Dims& out, int lanes, int threads) {
  const BroadcastStrides strides = strides_of(operand.dims, out, operand.block, lanes);
  Step step;
  step.kernel = "expand operand";
  step.reads = {operand.buffer};
  step.writes = {to};
  step.threads = threads;
  step.bytes = 2.0 * static_cast<double>(blocked_bytes(out, lanes, operand.dtype));
  step.run = [=, from = operand.buffer, dtype = operand.dtype](const StepArgs& args) {
    const int64_t pixels = pixels_of(out), blocks = blocks_of(out[1], lanes);
    const Range range = split_evenly(static_cast<long>(out[0] * blocks), args.share, args.shares);
    with_element(dtype, [&](auto element) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t image = i / blocks, block = i % blocks;
        const auto* in = args.at<const decltype(element)>(from) + image * strides.batch + block * strides.block;
        const int64_t channels = std::min<int64_t>(lanes, out[1] - block * lanes);
        expand_plane(in, strides, out, channels, lanes, args.at<decltype(element)>(to) + i * pixels * lanes);
      }
    });
  };
  return step;
}

bool is_per_channel(const Dims& own, const Dims& out) {
  if (own[1] != out[1] || (own[0] != 1 && own[0] != out[0])) return false;
  return std::all_of(own.begin() + 2, own.end(), [](int64_t extent) { return extent == 1; });
}

void bind_per_channel(const LowerContext& context, ValueId id, const Operand& operand, const Dims& out, int lanes,
                      BoundEpilogue& bound) {
  const Value& value = context.graph.value(id);
  const int64_t padded = blocks_of(out[1], lanes) * lanes;
  bound.epilogue.operands.push_back(ConvOperand::per_channel);
  bound.batch_bytes.push_back(operand.dims[0] == 1 ? 0 : padded * element_bytes(operand.dtype));
  if (value.is_constant() && operand.dims[0] == 1) {
    const Tensor packed = context.packed(id, "channels c" + std::to_string(lanes),
                                         [&] { return pad_channels(value.constant, out[1], lanes); });
    bound.buffers.push_back(context.constant_buffer(packed));
  } else if (operand.block == lanes || (padded == out[1] && operand.block == 0)) {
    bound.buffers.push_back(operand.buffer);
  } else {
    bound.buffers.push_back(context.scratch(blocked_bytes(operand.dims, lanes, operand.dtype)));
    context.add(expand_step(operand, bound.buffers.back(), operand.dims, lanes, 1));
  }
}

void bind_full(const LowerContext& context, const Operand& operand, const Dims& out, int lanes, BoundEpilogue& bound) {
  const size_t bytes = blocked_bytes(out, lanes, operand.dtype);
  bound.epilogue.operands.push_back(ConvOperand::full);
  bound.batch_bytes.push_back(static_cast<int64_t>(bytes) / std::max<int64_t>(1, out[0]));
  if (operand.dims == out && operand.block == lanes) {
    bound.buffers.push_back(operand.buffer);
    return;
  }
  bound.buffers.push_back(context.scratch(bytes));
  context.add(expand_step(operand, bound.buffers.back(), out, lanes, context.target.threads));
}

// Lanes are those of a vector.
Isa isa_of_lanes(int lanes) { return lanes == vector_lanes(Isa::avx2) ? Isa::avx2 : Isa::avx512; }

}  // namespace

size_t blocked_bytes(const Dims& dims, int lanes, DType dtype) {
  return static_cast<size_t>(dims[0] * blocks_of(dims[1], lanes) * lanes * pixels_of(dims) * element_bytes(dtype));
}

Tensor pad_channels(const Tensor& values, int64_t channels, int lanes) {
  Tensor padded(values.dtype(), {blocks_of(channels, lanes) * lanes});
  std::memcpy(padded.mutable_raw(), values.raw(), static_cast<size_t>(channels * element_bytes(values.dtype())));
  return padded;
}

Step block_step(BufferId plain, BufferId blocked, const Dims& dims, int lanes, int threads, DType dtype) {
  return BlockReorder(isa_of_lanes(lanes), dtype, dims, lanes, true).step(plain, blocked, threads);
}

Step unblock_step(BufferId blocked, BufferId plain, const Dims& dims, int lanes, int threads, DType dtype) {
  return BlockReorder(isa_of_lanes(lanes), dtype, dims, lanes, false).step(blocked, plain, threads);
}

std::optional<BoundEpilogue> bind_conv_operands(const LowerContext& context, const Dims& dims, int lanes) {
  BoundEpilogue bound;
  const std::vector<ValueId> inputs = context.epilogue_inputs();
  if (inputs.size() > ConvEpilogue::kMaxOperands) return std::nullopt;
  for (ValueId id : inputs) {
    const TensorType& type = context.type(id);
    const bool is_readable = type.dtype == DType::f32 || type.dtype == DType::i32 || is_byte(type.dtype);
    if (!is_readable || type.rank() > static_cast<int>(dims.size())) return std::nullopt;
    const Operand operand{context.buffer(id), aligned(type.extents(), dims.size()), type.layout.channel_block,
                          type.dtype};
    const Dims& own = operand.dims;
    if (std::all_of(own.begin(), own.end(), [](int64_t extent) { return extent == 1; })) {
      bound.epilogue.operands.push_back(ConvOperand::scalar);
      bound.buffers.push_back(operand.buffer);
      bound.batch_bytes.push_back(0);
    } else if (is_per_channel(own, dims)) {
      bind_per_channel(context, id, operand, dims, lanes, bound);
    } else {
      bind_full(context, operand, dims, lanes, bound);
    }
  }
  return bound;
}

std::optional<BoundEpilogue> bind_conv_epilogue(const LowerContext& context, const Dims& dims, int lanes) {
  if (!context.node.epilogue) return BoundEpilogue();
  const Expression& expression = context.node.epilogue->expression;
  const auto is_float = [](DType dtype) { return dtype == DType::f32; };
  if (!is_float(expression.output) || !std::all_of(expression.inputs.begin(), expression.inputs.end(), is_float)) {
    return std::nullopt;
  }
  for (const ValueId id : context.epilogue_inputs()) {
    if (!is_float(context.type(id).dtype)) return std::nullopt;
  }
  std::optional<BoundEpilogue> bound = bind_conv_operands(context, dims, lanes);
  if (bound) bound->epilogue.expression = expression;
  return bound;
}

}  // namespace lathe
