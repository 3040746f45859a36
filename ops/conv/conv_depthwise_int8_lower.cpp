#include "ops/conv/conv_depthwise_int8_lower.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_depthwise_int8_program.h"
#include "ops/work_split.h"

namespace lathe {
namespace {

constexpr double kFlopWorth = 1;  // of float32, in time

DepthwiseInt8Problem problem_of(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                                const ConvInt8Operands& operands, const TensorType& in) {
  DepthwiseInt8Problem problem;
  problem.isa = context.target.isa;
  problem.dot = conv_int8_dot(context, zeros);
  problem.is_signed = in.dtype == DType::i8;
  problem.batch = conv.sizes.batch;
  problem.channels = conv.sizes.out_channels;
  problem.shape.lanes = vector_lanes(context.target.isa);
  const size_t x = conv.window.axes() - 1;
  problem.shape.x = conv_axis(conv.window, x, conv.sizes.in[x], conv.sizes.out[x]);
  if (x == 1) problem.shape.y = conv_axis(conv.window, 0, conv.sizes.in[0], conv.sizes.out[0]);
  problem.epilogue = operands.bound.epilogue;
  problem.store = operands.store;
  return problem;
}

int32_t byte_at(const void* at, bool is_signed) {
  return is_signed ? *static_cast<const int8_t*>(at) : *static_cast<const uint8_t*>(at);
}

// A row of the border: the input's zero point.
BufferId border_of(const LowerContext& context, const ConvInt8Zeros& zeros, BufferId zero_at, int64_t bytes) {
  if (zeros.input) {
    Tensor row(DType::u8, {bytes});
    std::memset(row.mutable_raw(), *zeros.input, static_cast<size_t>(bytes));
    return context.constant_buffer(row);
  }
  const BufferId to = context.scratch(static_cast<size_t>(bytes));
  Step step;
  step.kernel = "border";
  step.reads = {zero_at};
  step.writes = {to};
  step.bytes = static_cast<double>(bytes);
  step.run = [zero_at, to, bytes](const StepArgs& args) {
    std::memset(args.at<void>(to), *args.at<const uint8_t>(zero_at), static_cast<size_t>(bytes));
  };
  context.add(std::move(step));
  return to;
}

// What the steps read and write.
struct Buffers {
  BufferId source, border, packed, init, target;
  std::vector<BufferId> operands;
};

Step depthwise_step(const LowerContext& context, std::shared_ptr<const DepthwiseInt8Program> program, int threads,
                    const Buffers& buffers) {
  Step step;
  step.kernel = program->plan_text();
  step.reads = {buffers.source, buffers.border, buffers.packed, buffers.init};
  step.reads.insert(step.reads.end(), buffers.operands.begin(), buffers.operands.end());
  step.writes = {buffers.target};
  step.threads = threads;
  step.shares = program->shares();
  step.flop = program->problem().flop();
  step.bytes = static_cast<double>(context.input_type(0).storage_bytes() + context.output_type(0).storage_bytes()) +
               static_cast<double>(program->packed_bytes());
  step.run = [program = std::move(program), buffers](const StepArgs& args) {
    DepthwiseInt8Arguments arguments;
    arguments.source = args.at<const void>(buffers.source);
    arguments.border = args.at<const void>(buffers.border);
    arguments.weights = args.at<const void>(buffers.packed);
    arguments.init = args.at<const int32_t>(buffers.init);
    arguments.target = args.at<void>(buffers.target);
    for (size_t i = 0; i < buffers.operands.size(); ++i) {
      arguments.operands[i] = args.at<const void>(buffers.operands[i]);
    }
    program->run(arguments, args.share);
  };
  return step;
}

}  // namespace

bool lower_depthwise_int8(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                          const ConvInt8Operands& operands, const TensorType& in, BufferId source, BufferId target) {
  const int64_t groups = conv.sizes.groups;
  if (groups < 2 || groups != conv.sizes.in_channels || groups != conv.sizes.out_channels) return false;
  DepthwiseInt8Problem problem = problem_of(context, conv, zeros, operands, in);
  const int threads = worthwhile_threads(problem.flop() * kFlopWorth, context.target.threads);
  std::shared_ptr<const DepthwiseInt8Program> program;
  try {
    program = std::make_shared<const DepthwiseInt8Program>(std::move(problem), threads, operands.bound.batch_bytes);
  } catch (const JitError&) {
    return false;
  }
  const DepthwiseInt8Problem& made = program->problem();
  const ConvInt8Weights weights = pack_conv_int8(context, program->packing(), zeros.weights, program->packed_bytes(),
                                                 made.blocks() * made.shape.lanes, [&](void* packed, int32_t* sums) {
                                                   program->pack(conv_weight_rows(context.constant(1), made.channels),
                                                                 view_of_zeros(zeros.weights), packed, sums);
                                                 });
  Buffers buffers{.source = source, .target = target, .operands = operands.bound.buffers};
  if (in.layout.channel_block == 0) {
    buffers.source = context.scratch(blocked_bytes(in.extents(), made.shape.lanes, in.dtype));
    context.add(block_step(source, buffers.source, in.extents(), made.shape.lanes, context.target.threads, in.dtype));
  }
  // Products of bytes take signed ones as unsigned, by 128 more.
  const bool is_signed = made.is_signed;
  const int32_t moved = is_signed && made.dot == Int8Dot::u8s8 ? 128 : 0;
  const BufferId zero_at = zeros.input ? BufferId::none : context.buffer(context.input(3));
  ConvInt8ZeroInSums in_sums{.known = std::nullopt, .at = zero_at, .of = [is_signed, moved](const void* at) {
                               return byte_at(at, is_signed) + moved;
                             }};
  if (zeros.input) in_sums.known = *zeros.input + moved;
  buffers.packed = context.constant_buffer(weights.packed);
  buffers.init = conv_int8_init(context, weights, buffers.packed, in_sums, made.blocks() * made.shape.lanes);
  buffers.border = border_of(context, zeros, zero_at, program->border_bytes());
  context.add(depthwise_step(context, std::move(program), threads, buffers));
  return true;
}

}  // namespace lathe
