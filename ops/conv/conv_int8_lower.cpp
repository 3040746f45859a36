#include "ops/conv/conv_int8_lower.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_depthwise_int8_lower.h"
#include "ops/conv/conv_int8_buffers.h"
#include "ops/conv/conv_int8_crossed.h"
#include "ops/conv/conv_int8_input.h"
#include "ops/conv/conv_int8_large.h"
#include "ops/conv/conv_int8_program.h"
#include "ops/conv/conv_int8_tuning.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_operands.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/int8/int8_lower.h"
#include "ops/int8/large_bytes.h"
#include "ops/pointwise/byte_table_step.h"
#include "ops/winograd/winograd_int8_lower.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

ConvAxis shifted(ConvAxis axis, int64_t border, int64_t extent) {
  for (ConvTap& tap : axis.taps) tap.offset += border;
  axis.in = extent;
  return axis;
}

ConvInt8Problem problem_of(const LowerContext& context, const ConvNode& conv, Int8Dot dot, const ConvInt8Input& input,
                           int lanes) {
  ConvInt8Problem problem;
  problem.isa = context.target.isa;
  problem.dot = dot;
  problem.in_channels = conv.sizes.in_channels;
  if (input.unit_bytes != 0) problem.unit_bytes = input.unit_bytes;
  ConvProblem& shape = problem.shape;
  const int group = group_of(dot);
  shape.batch = conv.sizes.batch;
  shape.in_channels = divide_up(conv.sizes.in_channels, group);
  shape.out_channels = conv.sizes.out_channels;
  shape.lanes = lanes;
  const size_t x = conv.window.axes() - 1;
  ConvShape axes;
  axes.lanes = static_cast<int>(input.is_plain ? shape.in_channels : lanes / group);
  problem.channel_groups = conv.sizes.groups;
  if (conv.sizes.groups > 1) shape.in_channels = divide_up(shape.in_channels, axes.lanes) * axes.lanes;
  shape.window_x = conv.window.kernel[x];
  axes.x = conv_axis(conv.window, x, conv.sizes.in[x], conv.sizes.out[x]);
  if (input.unit_bytes == 0) axes.x = shifted(axes.x, input.left, input.out_cols);
  if (x == 1) {
    shape.window_y = conv.window.kernel[0];
    axes.y = shifted(conv_axis(conv.window, 0, conv.sizes.in[0], conv.sizes.out[0]), input.top, input.out_rows);
  }
  // A pointwise convolution sees the picture as one row.
  const auto is_plain = [](const ConvAxis& axis) {
    return axis.taps.size() == 1 && axis.taps[0].offset == 0 && axis.stride == 1 && axis.in == axis.out;
  };
  if (is_plain(axes.y) && is_plain(axes.x)) {
    axes.x.in = axes.x.out = axes.x.out_extent = axes.y.in * axes.x.in;
    axes.y = ConvAxis();
  }
  shape.phases = {axes};
  return problem;
}

ConvInt8Weights pack_weights(const LowerContext& context, const ConvInt8Program& program, const ConvInt8Input& input,
                             const std::vector<int32_t>& zeros) {
  const ConvProblem& shape = program.problem().shape;
  const auto pack = [&](void* packed, int32_t* sums) {
    Tensor constant = context.constant(1);
    if (input.unit_bytes != 0) constant = input.flat_weights(constant, program.problem().dot);
    program.pack(conv_weight_rows(constant, shape.out_channels), view_of_zeros(zeros), packed, sums);
  };
  return pack_conv_int8(context, program.packing(), zeros, program.packed_bytes(), shape.out_blocks() * shape.lanes,
                        pack);
}

// Of crossed products, sums have what these add in place of it.
ConvInt8ZeroInSums zero_in_sums(const ConvInt8Input& input, bool is_crossed, BufferId zero_at) {
  if (is_crossed) return {.known = 1};
  if (zero_at == BufferId::none || input.widens) return {.known = input.zero_in_sums(input.zero)};
  return {.known = std::nullopt, .at = zero_at, .of = [input](const void* at) {
            return input.zero_in_sums(input.zero_at(at));
          }};
}

Step conv_step(const LowerContext& context, std::shared_ptr<const ConvInt8Program> program,
               const ConvInt8Weights& weights, const ConvInt8Buffers& buffers) {
  Step step;
  step.kernel = program->plan_text();
  step.reads = {buffers.source, buffers.packed, buffers.init};
  for (const BufferId beside : {buffers.terms, buffers.large}) {
    if (beside != BufferId::none) step.reads.push_back(beside);
  }
  step.reads.insert(step.reads.end(), buffers.operands.begin(), buffers.operands.end());
  step.writes = {buffers.target};
  step.threads = program->threads();
  step.shares = program->shares();
  step.flop = program->problem().flop();
  step.bytes = static_cast<double>(context.input_type(0).storage_bytes() + context.output_type(0).storage_bytes()) +
               static_cast<double>(program->packed_bytes());
  step.weights = weights.packed.raw();
  step.next_weights = std::make_shared<const void*>(nullptr);
  step.run = [program = std::move(program), buffers, next = step.next_weights](const StepArgs& args) {
    program->run(buffers.bind(args, args.ends_run() ? *next : nullptr), args.share);
  };
  return step;
}

// The input in blocks, or as a plain picture that has fewer channels than a block.
BufferId blocked_input(const LowerContext& context, TensorType& type, int lanes) {
  const BufferId from = context.buffer(context.input(0));
  const Dims dims = type.extents();
  if (type.layout.channel_block != 0 || dims[1] < lanes) return from;
  const BufferId to = context.scratch(blocked_bytes(dims, lanes, type.dtype));
  context.add(block_step(from, to, dims, lanes, context.target.threads, type.dtype));
  type.layout.channel_block = lanes;
  return to;
}

// nullptr: Winograd's method is not possible, not exact, or not faster.
std::shared_ptr<const WinogradInt8Program> make_winograd(const LowerContext& context, const ConvNode& conv,
                                                         const ConvInt8Zeros& zeros, const TensorType& in_type,
                                                         const ConvInt8Problem& direct,
                                                         const std::vector<int64_t>& batch_bytes, int threads) {
  if (conv.window.axes() != 2 || conv.sizes.groups != 1 || in_type.layout.channel_block == 0 || !zeros.input) {
    return nullptr;
  }
  WinogradInt8Problem problem{direct, in_type.dtype == DType::i8, *zeros.input};
  problem.fits_bytes = differences_fit_bytes(context.constant(1).dtype() == DType::i8, view_of_zeros(zeros.weights));
  ConvShape& axes = problem.conv.shape.phases[0];
  axes.y = conv_axis(conv.window, 0, conv.sizes.in[0], conv.sizes.out[0]);
  axes.x = conv_axis(conv.window, 1, conv.sizes.in[1], conv.sizes.out[1]);
  if (!is_winograd_int8(problem.conv.shape)) return nullptr;
  const std::optional<WinogradInt8Plan> plan = choose_winograd_int8(problem, direct.dot, threads);
  const ByteMatrix weights = conv_weight_rows(context.constant(1), conv.sizes.out_channels);
  const Tensor bias = context.constant(5);
  const std::span<const int32_t> added = bias.defined() ? bias.elements<int32_t>() : std::span<const int32_t>();
  if (!plan || !stays_exact(problem, weights, view_of_zeros(zeros.weights), added)) return nullptr;
  try {
    return std::make_shared<const WinogradInt8Program>(std::move(problem), *plan, threads, batch_bytes);
  } catch (const JitError&) {
    return nullptr;
  }
}

void add_winograd(const LowerContext& context, const std::shared_ptr<const WinogradInt8Program>& program,
                  const ConvInt8Zeros& zeros, BufferId source, BufferId target, const std::vector<BufferId>& operands) {
  const ConvProblem& shape = program->problem().conv.shape;
  const Tensor weights = pack_winograd_int8(
      context, *program, 1, conv_weight_rows(context.constant(1), shape.out_channels), view_of_zeros(zeros.weights));
  Tensor init(DType::i32, {shape.out_blocks() * shape.lanes});
  if (const Tensor bias = context.constant(5); bias.defined()) {
    std::copy_n(bias.data<int32_t>(), bias.size(), init.mutable_data<int32_t>());
  }
  add_winograd_int8_steps(context, program, weights,
                          {source, context.constant_buffer(weights), context.constant_buffer(init), target, operands});
}

// Crosses the products where that is possible and pays; input and problem may have a border then.
bool cross(const LowerContext& context, const ConvNode& conv, const TensorType& in_type, const ConvInt8Zeros& zeros,
           ConvInt8Problem& problem, ConvInt8Input& input) {
  if (problem.dot != Int8Dot::pairs || input.is_plain) return false;
  ConvInt8Input bordered(in_type, conv, Int8Dot::crossed, zeros.input, problem.shape.lanes);
  ConvInt8Problem crossed = problem_of(context, conv, Int8Dot::crossed, bordered, problem.shape.lanes);
  crossed.epilogue = problem.epilogue;
  crossed.store = problem.store;
  if (!pays_crossed(problem, crossed)) return false;
  problem = std::move(crossed);
  input = bordered;
  return true;
}

// Over all channels, or those of a group.
bool lower_sums(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                const ConvInt8Operands& operands, const TensorType& in_type, BufferId from, BufferId target) {
  const int lanes = vector_lanes(context.target.isa);
  const Int8Dot dot = conv_int8_sums_dot(context, in_type, zeros);
  ConvInt8Input input(in_type, conv, dot, zeros.input, lanes);
  // Where weights are added, they must count for nothing.
  const bool is_flat = zeros.weights == std::vector<int32_t>(zeros.weights.size(), 0) && input.flatten(conv, dot);
  ConvInt8Problem problem = problem_of(context, is_flat ? input.flat_conv(conv, dot) : conv, dot, input, lanes);
  problem.epilogue = operands.bound.epilogue;
  problem.store = operands.store;
  const int threads = worthwhile_threads(problem.dots(), context.target.threads);
  const std::vector<int64_t>& batch_bytes = operands.bound.batch_bytes;
  if (const auto winograd = make_winograd(context, conv, zeros, in_type, problem, batch_bytes, threads)) {
    add_winograd(context, winograd, zeros, from, target, operands.bound.buffers);
  } else {
    const bool is_crossed = cross(context, conv, in_type, zeros, problem, input);
    const CrossedSteps steps = is_crossed ? take_pixels(input, problem) : CrossedSteps();
    std::shared_ptr<const ConvInt8Program> program;
    try {
      const Candidate chosen = context.plans.choose(conv_int8_tuning_task(problem, threads));
      program =
          std::make_shared<const ConvInt8Program>(std::move(problem), threads, batch_bytes, conv_int8_tile_of(chosen));
    } catch (const JitError&) {
      return false;
    }
    const ConvInt8Weights weights = pack_weights(context, *program, input, zeros.weights);
    const BufferId zero_at = zeros.input ? BufferId::none : context.buffer(context.input(3));
    const int64_t padded = program->problem().shape.out_blocks() * lanes;
    ConvInt8Buffers buffers;
    buffers.packed = context.constant_buffer(weights.packed);
    buffers.init = conv_int8_init(context, weights, buffers.packed, zero_in_sums(input, is_crossed, zero_at), padded);
    if (is_crossed) {
      std::tie(buffers.source, buffers.terms) =
          add_crossed_input(context, input, steps, program->problem().shape, from, zero_at);
    } else {
      buffers.source = input.add_step(context, from, zero_at);
    }
    if (is_halved(dot)) {
      const int most = most_together(context.constant(1).elements<int8_t>());
      buffers.large = add_large_bytes(context, *program, buffers.source, most);
    }
    buffers.target = target;
    buffers.operands = operands.bound.buffers;
    context.add(conv_step(context, std::move(program), weights, buffers));
  }
  return true;
}

}  // namespace

bool lower_conv_int8(LowerContext& context, const ConvNode& conv) {
  const int lanes = vector_lanes(context.target.isa);
  const std::optional<ConvInt8Zeros> zeros = conv_int8_zeros(context, conv.sizes.out_channels);
  if (!has_conv_elements(context) || !zeros || !context.constant(1).defined() ||
      !has_conv_int8_bias(context, conv.sizes.out_channels)) {
    return false;
  }
  TensorType in_type = context.input_type(0);
  const TensorType& out_type = context.output_type(0);
  for (const TensorType* type : {&std::as_const(in_type), &out_type}) {
    if (type->layout.channel_block != 0 && type->layout.channel_block != lanes) return false;
  }
  std::optional<ConvInt8Operands> operands = bind_conv_int8_operands(context, out_type.extents(), lanes);
  if (!operands) return false;
  const bool is_plain = out_type.layout.channel_block == 0;
  TensorType stored_type = out_type;
  stored_type.layout.channel_block = lanes;
  const BufferId target = is_plain ? context.scratch(stored_type.storage_bytes()) : context.buffer(context.output(0));
  const BufferId from = blocked_input(context, in_type, lanes);
  if (!lower_depthwise_int8(context, conv, *zeros, *operands, in_type, from, target) &&
      !lower_sums(context, conv, *zeros, *operands, in_type, from, target)) {
    return false;
  }
  if (operands->table) add_look_up(context, *operands->table, stored_type, target, target, "table");
  if (is_plain) {
    context.add(unblock_step(target, context.buffer(context.output(0)), out_type.extents(), lanes,
                             context.target.threads, out_type.dtype));
  }
  return true;
}

}  // namespace lathe
