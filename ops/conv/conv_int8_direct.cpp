#include "ops/conv/conv_int8_direct.h"

#include <tuple>
#include <utility>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_int8_buffers.h"
#include "ops/conv/conv_int8_large.h"
#include "ops/conv/conv_int8_tuning.h"
#include "ops/fetch_far.h"
#include "ops/int8/large_bytes.h"
#include "src/base/divide.h"

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
  const size_t read = program->reads_all() ? context.input_type(0).storage_bytes() : 0;
  step.run = [program = std::move(program), buffers, read, next = step.next_weights](const StepArgs& args) {
    fetch_far(args, args.at<const void>(buffers.source), read);
    program->run(buffers.bind(args, args.ends_run() ? *next : nullptr), args.share);
  };
  return step;
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

}  // namespace

DirectConvInt8 describe_direct(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                               const ConvInt8Operands& operands, const TensorType& in_type, Int8Dot dot,
                               int32_t moved_down) {
  const int lanes = vector_lanes(context.target.isa);
  ConvInt8Input input(in_type, conv, dot, zeros.input, lanes);
  if (moved_down > 0) input.move_down(moved_down);
  // Where weights are added, they must count for nothing.
  const bool is_flat = zeros.weights == std::vector<int32_t>(zeros.weights.size(), 0) && input.flatten(conv, dot);
  ConvInt8Problem problem = problem_of(context, is_flat ? input.flat_conv(conv, dot) : conv, dot, input, lanes);
  problem.epilogue = operands.bound.epilogue;
  problem.store = operands.store;
  return {input, std::move(problem)};
}

std::optional<EmittedConvInt8> emit_direct(const LowerContext& context, const ConvNode& conv,
                                           const ConvInt8Zeros& zeros, const ConvInt8Operands& operands,
                                           const TensorType& in_type, DirectConvInt8 direct, int threads) {
  auto& [input, problem] = direct;
  const bool is_crossed = cross(context, conv, in_type, zeros, problem, input);
  const CrossedSteps steps = is_crossed ? take_pixels(input, problem) : CrossedSteps();
  try {
    const Candidate chosen = context.plans.choose(conv_int8_tuning_task(problem, threads));
    auto program = std::make_shared<const ConvInt8Program>(std::move(problem), threads, operands.bound.batch_bytes,
                                                           conv_int8_tile_of(chosen));
    return EmittedConvInt8{input, steps, is_crossed, std::move(program)};
  } catch (const JitError&) {
    return std::nullopt;
  }
}

void add_direct_steps(const LowerContext& context, const ConvInt8Zeros& zeros, const ConvInt8Operands& operands,
                      const EmittedConvInt8& emitted, BufferId from, BufferId target) {
  const auto& [input, steps, is_crossed, program] = emitted;
  const ConvInt8Problem& problem = program->problem();
  const ConvInt8Weights weights = pack_weights(context, *program, input, zeros.weights);
  const BufferId zero_at = zeros.input ? BufferId::none : context.buffer(context.input(3));
  ConvInt8Buffers buffers;
  buffers.packed = context.constant_buffer(weights.packed);
  buffers.init = conv_int8_init(context, weights, buffers.packed, zero_in_sums(input, is_crossed, zero_at),
                                problem.shape.out_blocks() * problem.shape.lanes);
  if (is_crossed) {
    std::tie(buffers.source, buffers.terms) = add_crossed_input(context, input, steps, problem.shape, from, zero_at);
  } else {
    buffers.source = input.add_step(context, from, zero_at);
  }
  if (is_halved(problem.dot)) {
    const int most = most_together(context.constant(1).elements<int8_t>());
    buffers.large = add_large_bytes(context, *program, buffers.source, most);
  }
  buffers.target = target;
  buffers.operands = operands.bound.buffers;
  context.add(conv_step(context, program, weights, buffers));
}

}  // namespace lathe
