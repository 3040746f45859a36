#include "ops/conv/conv_lower.h"

#include <algorithm>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_node.h"
#include "ops/conv/conv_operands.h"
#include "ops/conv/conv_rows.h"
#include "ops/conv/conv_source.h"
#include "ops/conv/conv_steps.h"
#include "ops/gemm/bfp24_pack.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

// Work below this is done before a second thread has woken up.
constexpr double kFlopPerThread = 400e3;

// The pixels of `shape` where `padded` reads them.
BufferId put_among_zeros(const LowerContext& context, BufferId source, const ConvShape& shape,
                         const ConvProblem& padded, int threads) {
  const ConvAxis &y = padded.phases[0].y, &x = padded.phases[0].x;
  const int64_t blocks = padded.batch * padded.in_blocks();
  const int lanes = padded.in_lanes();
  const PaddedPixels pixels{.rows = shape.y.in,
                            .columns = shape.x.in,
                            .top = y.taps[0].offset - shape.y.taps[0].offset,
                            .left = x.taps[0].offset - shape.x.taps[0].offset,
                            .all_rows = y.in,
                            .all_columns = x.in};
  const BufferId target = context.scratch(checked_bytes(DType::f32, {blocks, y.in, x.in, lanes}));
  context.add(pad_pixels_step(source, target, blocks, lanes, pixels, threads));
  return target;
}

// The convolution that runs in the node's place.
struct PlannedConv {
  ConvProblem problem;
  ConvPrograms programs;
  // What its source is made by, after blocks of channels.
  bool takes_pixels = false, adds_zeros = false;
  FrameOrder frames;
};

// nullopt: no kernel can be emitted.
std::optional<PlannedConv> plan_conv(const LowerContext& context, const ConvProblem& problem, int threads,
                                     const std::vector<int64_t>& operand_batch_bytes) {
  const std::optional<ConvProblem> taken = with_taken_pixels(problem);
  const ConvProblem& near = taken ? *taken : problem;
  if (std::optional<ConvPrograms> programs = make_conv_programs(context, near, threads, operand_batch_bytes)) {
    return PlannedConv{near, *std::move(programs), taken.has_value(), false, {}};
  }
  // Many taps are too much code to be emitted for each way in which a window can end at a border.
  const std::optional<ConvProblem> with_zeros = padded(near);
  if (!with_zeros) return std::nullopt;
  std::optional<ConvPrograms> programs = make_conv_programs(context, *with_zeros, threads, operand_batch_bytes);
  if (!programs) return std::nullopt;
  return PlannedConv{*with_zeros, *std::move(programs), taken.has_value(), true, {}};
}

// `shape`: of the node's problem.
BufferId bind_source(const LowerContext& context, const PlannedConv& planned, const ConvShape& shape, int threads) {
  const ConvProblem& problem = planned.problem;
  TensorType type = context.input_type(0);
  BufferId source = context.buffer(context.input(0));
  if (type.layout.channel_block == 0 && shape.lanes > 1) {
    type.layout.channel_block = problem.lanes;
    const BufferId plain = source;
    source = context.scratch(type.storage_bytes());
    context.add(block_step(plain, source, type.extents(), problem.lanes, threads));
  }
  if (!planned.frames.frames.empty()) {
    const BufferId all = source;
    source = context.scratch(static_cast<size_t>(problem.source_bytes()));
    const bool are_outer = problem.frames.are_outer;
    context.add(take_frames_step(all, source, type.extents(), shape.lanes, planned.frames, are_outer, threads));
  }
  if (planned.takes_pixels) {
    const int64_t blocks = problem.batch * problem.in_blocks();
    const BufferId all = source;
    source = context.scratch(static_cast<size_t>(blocks * problem.source_block_bytes()));
    context.add(take_pixels_step(all, source, blocks, problem.lanes, shape.y, shape.x, threads));
  }
  return planned.adds_zeros ? put_among_zeros(context, source, shape, problem, threads) : source;
}

// Whether Winograd's weights, which these become, must stay float32 (ConvProblem::has_exact_weights).
bool has_exact_weights(const LowerContext& context, const ConvProblem& problem) {
  const int64_t window = problem.window_y * problem.window_x;
  if (window == 1 || problem.is_transposed || problem.most_winograd == 0) return false;  // nobody asks
  const Tensor constant = context.constant(1);
  const int64_t each = problem.in_channels_each() * window;
  if (!constant.defined() || constant.size() != problem.out_channels * each) return true;
  const MatrixView by_output{constant.data<float>(), each, problem.out_channels, 1, each};
  return !context.is_true_of(context.input(1), "windows fit bfp24", [&] { return fits_bfp24(by_output, 1); });
}

// What the node says about layouts, bias and epilogue.
void complete(ConvProblem& problem, const LowerContext& context, const ConvEpilogue& epilogue) {
  const int lanes = vector_lanes(context.target.isa);
  problem.lanes = lanes;
  problem.has_bias = context.has_input(2);
  problem.epilogue = epilogue;
  set_accuracy(problem, context.target.accuracy);
  problem.has_exact_weights = has_exact_weights(context, problem);
  // Few channels are read where they lie; a whole block of them is worth being brought together.
  const bool is_plain = context.input_type(0).layout.channel_block == 0;
  int64_t channels = problem.in_channels / problem.frames.joined;
  const bool reads_plain = is_plain && channels < lanes && problem.groups == 1;
  // Those of a frame begin with a block.
  if (problem.frames.joined > 1 && !reads_plain) channels = divide_up(channels, lanes) * lanes;
  problem.in_channels = channels * problem.frames.joined;
  for (ConvShape& phase : problem.phases) phase.lanes = reads_plain ? 1 : lanes;
  merge_axes(problem);
}

}  // namespace

BufferId bind_bias(const LowerContext& context, int64_t channels, int lanes) {
  const ValueId id = context.input(2);
  if (const Tensor constant = context.constant(2); constant.defined()) {
    return context.constant_buffer(context.packed(id, "channels c" + std::to_string(lanes),
                                                  [&] { return pad_channels(constant, channels, lanes); }));
  }
  const BufferId from = context.buffer(id);
  if (channels % lanes == 0) return from;
  const BufferId to = context.scratch(static_cast<size_t>(round_up(channels, lanes)) * sizeof(float));
  Step step;
  step.kernel = "pad bias";
  step.reads = {from};
  step.writes = {to};
  step.run = [=](const StepArgs& args) {
    const auto* in = args.at<const float>(from);
    auto* out = args.at<float>(to);
    std::copy(in, in + channels, out);
    std::fill(out + channels, out + round_up(channels, lanes), 0.0f);
  };
  context.add(std::move(step));
  return to;
}

bool has_float_types(const LowerContext& context) {
  for (int i = 0; i < context.input_count(); ++i) {
    if (context.has_input(i) && context.input_type(i).dtype != DType::f32) return false;
  }
  if (context.output_type(0).dtype != DType::f32) return false;
  return context.input_type(0).storage_bytes() > 0 && context.output_type(0).storage_bytes() > 0 &&
         context.input_type(1).storage_bytes() > 0;
}

ConvProblem conv_problem_of(const LowerContext& context) {
  const Dims in = context.input_type(0).extents();
  const ConvNode conv = read_conv(context.node, in, context.input_type(1).extents());
  const ConvSizes& sizes = conv.sizes;
  ConvProblem problem;
  problem.batch = sizes.batch;
  problem.in_channels = sizes.in_channels;
  problem.out_channels = sizes.out_channels;
  problem.groups = sizes.groups;
  ConvShape shape;
  const size_t x = conv.window.axes() - 1;
  problem.window_x = conv.window.kernel[x];
  shape.x = conv_axis(conv.window, x, sizes.in[x], sizes.out[x]);
  if (x == 1) {
    problem.window_y = conv.window.kernel[0];
    shape.y = conv_axis(conv.window, 0, sizes.in[0], sizes.out[0]);
  }
  problem.phases = {shape};
  return problem;
}

void set_accuracy(ConvProblem& problem, Accuracy accuracy) {
  // Next to short sums even the smallest form loses digits.
  problem.most_winograd = accuracy == Accuracy::strict ? 0 : ConvProblem().most_winograd;
  problem.longest_winograd_sum = accuracy == Accuracy::fast ? 0 : ConvProblem().longest_winograd_sum;
  problem.longest_sum = longest_convolution_sum(accuracy);
}

int conv_threads(double flop, const Target& target) { return flop < kFlopPerThread ? 1 : target.threads; }

bool lower_conv(LowerContext& context, ConvProblem problem, const std::optional<PixelShuffle>& shuffle,
                const FrameOrder& frames) {
  if (!has_float_types(context) || problem.phases.empty()) return false;
  const int lanes = vector_lanes(context.target.isa);
  const TensorType &in_type = context.input_type(0), &out_type = context.output_type(0);
  const int in_block = in_type.layout.channel_block, out_block = out_type.layout.channel_block;
  if ((in_block != 0 && in_block != lanes) || (out_block != 0 && out_block != lanes)) return false;
  const std::optional<BoundEpilogue> bound = bind_conv_epilogue(context, out_type.extents(), lanes);
  if (!bound) return false;
  if (!shuffle && frames.frames.empty() && lower_rows(context, problem, *bound)) return true;
  complete(problem, context, bound->epilogue);
  const int threads = conv_threads(problem.flop(), context.target);
  std::optional<PlannedConv> planned = plan_conv(context, problem, threads, bound->batch_bytes);
  if (!planned) return false;
  planned->frames = frames;
  ConvBuffers buffers;
  buffers.operands = bound->buffers;
  if (problem.has_bias) {
    buffers.bias =
        shuffle ? bind_shuffled_bias(context, *shuffle, lanes) : bind_bias(context, problem.out_channels, lanes);
  }
  buffers.source = bind_source(context, *planned, problem.phases[0], threads);
  const BufferId target = buffers.target = context.buffer(context.output(0));
  if (out_block == 0) {
    const ConvProblem& blocked = planned->problem;
    buffers.target = context.scratch(static_cast<size_t>(blocked.target_bytes()));
  }
  add_conv_steps(context, planned->programs, threads, buffers);
  if (shuffle) {
    context.add(shuffle_step(buffers.target, target, in_type.extents(), *shuffle, lanes, threads));
  } else if (out_block == 0) {
    context.add(unblock_step(buffers.target, target, out_type.extents(), lanes, threads));
  }
  return true;
}

bool lower_pooled_conv(std::span<const LowerContext> nodes) {
  const LowerContext &conv = nodes.front(), &pool = nodes.back();
  const int lanes = vector_lanes(conv.target.isa);
  if (!has_float_types(conv)) return false;
  const std::optional<BoundEpilogue> bound = bind_conv_epilogue(conv, conv.output_type(0).extents(), lanes);
  if (!bound) return false;
  ConvProblem problem = conv_problem_of(conv);
  complete(problem, conv, bound->epilogue);
  // A last row or column that no window reads is not computed.
  const Dims pooled = pool.output_type(0).extents();
  ConvShape& shape = problem.phases[0];
  shape.y.out = shape.y.out_extent = 2 * pooled[2];
  shape.x.out = shape.x.out_extent = 2 * pooled[3];
  const int threads = conv_threads(problem.flop(), conv.target);
  const std::optional<ConvPrograms> programs = make_conv_programs(conv, problem, threads, bound->batch_bytes, 2);
  if (!programs) return false;
  ConvBuffers buffers;
  buffers.operands = bound->buffers;
  if (problem.has_bias) buffers.bias = bind_bias(conv, problem.out_channels, lanes);
  buffers.source = conv.buffer(conv.input(0));
  buffers.target = pool.buffer(pool.output(0));
  add_conv_steps(conv, *programs, threads, buffers);
  return true;
}

std::optional<BufferId> lower_bare_conv(const LowerContext& context, ConvProblem problem) {
  const int in_block = context.input_type(0).layout.channel_block;
  if (!has_float_types(context) || (in_block != 0 && in_block != vector_lanes(context.target.isa))) return std::nullopt;
  complete(problem, context, {});
  problem.has_bias = false;
  const int threads = conv_threads(problem.flop(), context.target);
  const std::optional<PlannedConv> planned = plan_conv(context, problem, threads, {});
  if (!planned) return std::nullopt;
  ConvBuffers buffers;
  buffers.source = bind_source(context, *planned, problem.phases[0], threads);
  buffers.target = context.scratch(static_cast<size_t>(planned->problem.target_bytes()));
  add_conv_steps(context, planned->programs, threads, buffers);
  return buffers.target;
}

}  // namespace lathe
