#include "ops/conv_operands.h"

#include <algorithm>

#include "src/base/thread_team.h"

namespace lathe {
namespace {

int64_t blocks_of(int64_t channels, int lanes) { return (channels + lanes - 1) / lanes; }

int64_t pixels_of(const Dims& dims) {
  int64_t pixels = 1;
  for (size_t i = 2; i < dims.size(); ++i) pixels *= dims[i];
  return pixels;
}

size_t blocked_bytes(const Dims& dims, int lanes) {
  return static_cast<size_t>(dims[0] * blocks_of(dims[1], lanes) * lanes * pixels_of(dims)) * sizeof(float);
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

// Writes the operand as if it had the output's shape and layout.
Step expand_step(BufferId from, BufferId to, const Dims& own, const Dims& out, int own_block, int lanes, int threads) {
  const BroadcastStrides strides = strides_of(own, out, own_block, lanes);
  Step step;
  step.kernel = "expand operand";
  step.reads = {from};
  step.writes = {to};
  step.threads = threads;
  step.bytes = 2.0 * static_cast<double>(blocked_bytes(out, lanes));
  step.run = [=](const StepArgs& args) {
    const auto* in = args.at<const float>(from);
    auto* result = args.at<float>(to);
    const int64_t pixels = pixels_of(out), blocks = blocks_of(out[1], lanes);
    const Range range = split_evenly(static_cast<long>(out[0] * blocks), args.thread, args.threads);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t image = i / blocks, block = i % blocks;
      const float* plane = in + image * strides.batch + block * strides.block;
      float* at = result + i * pixels * lanes;
      const int64_t channels = std::min<int64_t>(lanes, out[1] - block * lanes);
      for (int64_t pixel = 0; pixel < pixels; ++pixel, at += lanes) {
        int64_t rest = pixel, offset = 0;
        for (size_t axis = strides.spatial.size(); axis-- > 0;) {
          offset += rest % out[axis + 2] * strides.spatial[axis];
          rest /= out[axis + 2];
        }
        for (int64_t lane = 0; lane < channels; ++lane) at[lane] = plane[offset + lane * strides.lane];
        for (int64_t lane = channels; lane < lanes; ++lane) at[lane] = 0;
      }
    }
  };
  return step;
}

bool is_per_channel(const Dims& own, const Dims& out) {
  if (own[1] != out[1] || (own[0] != 1 && own[0] != out[0])) return false;
  return std::all_of(own.begin() + 2, own.end(), [](int64_t extent) { return extent == 1; });
}

void bind_per_channel(const LowerContext& context, ValueId id, const Dims& own, const Dims& out, int lanes,
                      BoundEpilogue& bound) {
  const Value& value = context.graph.value(id);
  const int64_t padded = blocks_of(out[1], lanes) * lanes;
  bound.epilogue.operands.push_back(ConvOperand::per_channel);
  bound.batch_bytes.push_back(own[0] == 1 ? 0 : padded * 4);
  if (value.is_constant() && own[0] == 1) {
    const Tensor packed = context.packed(id, "channels c" + std::to_string(lanes),
                                         [&] { return pad_channels(value.constant.data<float>(), out[1], lanes); });
    bound.buffers.push_back(context.constant_buffer(packed));
  } else if (value.type.layout.channel_block == lanes || (padded == out[1] && value.type.layout.channel_block == 0)) {
    bound.buffers.push_back(context.buffer(id));
  } else {
    const BufferId scratch = context.scratch(blocked_bytes(own, lanes));
    context.add(expand_step(context.buffer(id), scratch, own, own, value.type.layout.channel_block, lanes, 1));
    bound.buffers.push_back(scratch);
  }
}

template <class Body>
Step layout_step(const char* kernel, BufferId from, BufferId to, const Dims& dims, int lanes, int threads, Body body) {
  Step step;
  step.kernel = kernel;
  step.reads = {from};
  step.writes = {to};
  step.threads = threads;
  step.bytes = 2.0 * static_cast<double>(blocked_bytes(dims, lanes));
  step.run = [=](const StepArgs& args) {
    const int64_t blocks = blocks_of(dims[1], lanes), pixels = pixels_of(dims);
    const Range range = split_evenly(static_cast<long>(dims[0] * blocks), args.thread, args.threads);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int64_t image = i / blocks, channel = i % blocks * lanes;
      const int64_t count = std::min<int64_t>(lanes, dims[1] - channel);
      body(args, (image * dims[1] + channel) * pixels, i * pixels * lanes, count, pixels);
    }
  };
  return step;
}

}  // namespace

Tensor pad_channels(const float* values, int64_t channels, int lanes) {
  Tensor padded(DType::f32, {blocks_of(channels, lanes) * lanes});
  std::copy(values, values + channels, padded.mutable_data<float>());
  return padded;
}

Step block_step(BufferId plain, BufferId blocked, const Dims& dims, int lanes, int threads) {
  return layout_step("to blocks", plain, blocked, dims, lanes, threads,
                     [=](const StepArgs& args, int64_t from, int64_t to, int64_t channels, int64_t pixels) {
                       const float* in = args.at<const float>(plain) + from;
                       float* out = args.at<float>(blocked) + to;
                       for (int64_t pixel = 0; pixel < pixels; ++pixel, out += lanes) {
                         for (int64_t lane = 0; lane < channels; ++lane) out[lane] = in[lane * pixels + pixel];
                         for (int64_t lane = channels; lane < lanes; ++lane) out[lane] = 0;
                       }
                     });
}

Step unblock_step(BufferId blocked, BufferId plain, const Dims& dims, int lanes, int threads) {
  return layout_step("from blocks", blocked, plain, dims, lanes, threads,
                     [=](const StepArgs& args, int64_t to, int64_t from, int64_t channels, int64_t pixels) {
                       const float* in = args.at<const float>(blocked) + from;
                       float* out = args.at<float>(plain) + to;
                       for (int64_t lane = 0; lane < channels; ++lane) {
                         for (int64_t pixel = 0; pixel < pixels; ++pixel) {
                           out[lane * pixels + pixel] = in[pixel * lanes + lane];
                         }
                       }
                     });
}

std::optional<BoundEpilogue> bind_conv_epilogue(const LowerContext& context, const Dims& dims, int lanes) {
  BoundEpilogue bound;
  if (!context.node.epilogue) return bound;
  bound.epilogue.expression = context.node.epilogue->expression;
  const Expression& expression = *bound.epilogue.expression;
  if (expression.output != DType::f32) return std::nullopt;
  for (DType dtype : expression.inputs) {
    if (dtype != DType::f32) return std::nullopt;
  }
  const std::vector<ValueId> inputs = context.epilogue_inputs();
  if (inputs.size() > ConvEpilogue::kMaxOperands) return std::nullopt;
  for (ValueId id : inputs) {
    const TensorType& type = context.type(id);
    if (type.dtype != DType::f32 || type.rank() > static_cast<int>(dims.size())) return std::nullopt;
    const Dims own = aligned(type.extents(), dims.size());
    const int block = type.layout.channel_block;
    if (std::all_of(own.begin(), own.end(), [](int64_t extent) { return extent == 1; })) {
      bound.epilogue.operands.push_back(ConvOperand::scalar);
      bound.buffers.push_back(context.buffer(id));
      bound.batch_bytes.push_back(0);
    } else if (is_per_channel(own, dims)) {
      bind_per_channel(context, id, own, dims, lanes, bound);
    } else {
      const size_t bytes = blocked_bytes(dims, lanes);
      bound.epilogue.operands.push_back(ConvOperand::full);
      bound.batch_bytes.push_back(static_cast<int64_t>(bytes) / std::max<int64_t>(1, dims[0]));
      if (own == dims && block == lanes) {
        bound.buffers.push_back(context.buffer(id));
      } else {
        bound.buffers.push_back(context.scratch(bytes));
        context.add(
            expand_step(context.buffer(id), bound.buffers.back(), own, dims, block, lanes, context.target.threads));
      }
    }
  }
  return bound;
}

}  // namespace lathe
