#include "ops/conv/conv_int8_lower.h"

#include <algorithm>
#include <utility>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_int8_buffers.h"
#include "ops/conv/conv_int8_input.h"
#include "ops/conv/conv_int8_program.h"
#include "ops/conv/conv_int8_tuning.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_operands.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/int8/int8_lower.h"
#include "ops/winograd/winograd_int8_lower.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

struct Operands {
  BoundEpilogue bound;
  Int8Store store;
};

bool can_read(DType dtype) {
  return dtype == DType::f32 || dtype == DType::i32 || dtype == DType::u8 || dtype == DType::i8;
}

// scale * sum, what follows it, and the operands of both; without a scale int32 sums.
std::optional<Operands> bind_operands(const LowerContext& context, const Dims& out, int lanes) {
  if (!context.has_input(2)) {
    if (context.node.epilogue) return std::nullopt;
    return Operands{.bound = {}, .store = {.dtype = DType::i32}};
  }
  const Tensor scale = context.constant(2);
  if (!scale.defined() || scale.dtype() != DType::f32 || (scale.size() != 1 && scale.size() != out[1])) {
    return std::nullopt;
  }
  const auto scales = scale.elements<float>();
  std::vector<float> factors(scales.begin(), scales.end());
  std::optional<Expression> outer;
  if (context.node.epilogue) outer = context.node.epilogue->expression;
  Expression expression = scaled_expression(outer, factors);
  Operands operands;
  operands.store = split_requantization(expression, factors);
  if (!can_read(operands.store.dtype) || !std::all_of(expression.inputs.begin(), expression.inputs.end(), can_read)) {
    return std::nullopt;
  }
  std::optional<BoundEpilogue> bound = bind_conv_operands(context, out, lanes);
  if (!bound) return std::nullopt;
  operands.bound = std::move(*bound);
  operands.bound.epilogue.expression = std::move(expression);
  if (factors.size() > 1) {
    const Tensor values = Tensor::from<float>({static_cast<int64_t>(factors.size())}, factors);
    auto& [epilogue, buffers, batch_bytes] = operands.bound;
    epilogue.operands.insert(epilogue.operands.begin(), ConvOperand::per_channel);
    buffers.insert(buffers.begin(), context.constant_buffer(pad_channels(values, out[1], lanes)));
    batch_bytes.insert(batch_bytes.begin(), 0);
  }
  if (operands.bound.buffers.size() > static_cast<size_t>(ConvEpilogue::kMaxOperands)) return std::nullopt;
  return operands;
}

struct Zeros {
  std::optional<int32_t> input;  // nullopt: it comes with each run
  std::vector<int32_t> weights;  // one for all or for each channel
};

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

// nullopt: they have types or numbers that the kernels lack.
std::optional<Zeros> zeros_of(const LowerContext& context, int64_t channels) {
  Zeros zeros{0, {0}};
  if (context.has_input(3)) {
    const TensorType& type = context.input_type(3);
    if (type.dtype != context.input_type(0).dtype || checked_elements(type.extents()) != 1) {
      return std::nullopt;
    }
    const Tensor known = context.constant(3);
    zeros.input.reset();
    if (known.defined()) zeros.input = ByteZeros{known.raw(), known.dtype(), 1}.at(0);
  }
  if (!context.has_input(4)) return zeros;
  const Tensor known = context.constant(4);
  if (!known.defined() || !is_byte(known.dtype()) || (known.size() != 1 && known.size() != channels)) {
    return std::nullopt;
  }
  zeros.weights.clear();
  const ByteZeros view{known.raw(), known.dtype(), known.size()};
  for (int64_t i = 0; i < known.size(); ++i) zeros.weights.push_back(view.at(i));
  return zeros;
}

// Bytes where weights are signed and have no zero point, or 16 bits.
Int8Dot dot_of(const LowerContext& context, const Zeros& zeros) {
  const bool fits_bytes = context.input_type(1).dtype == DType::i8 &&
                          std::all_of(zeros.weights.begin(), zeros.weights.end(), [](int32_t z) { return z == 0; });
  return has_vnni(context.target.isa) && fits_bytes ? Int8Dot::u8s8 : Int8Dot::pairs;
}

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

// Packed weights with the sums of each channel's behind them.
struct Weights {
  Tensor packed;
  int64_t sums_at = 0;  // bytes

  // What the sums of a run begin with: -in_zero * sum, and the bias if there is one.
  void fill_init(const void* packed_at, int32_t in_zero, const Tensor& bias, int32_t* init, int64_t count) const;
};

void Weights::fill_init(const void* packed_at, int32_t in_zero, const Tensor& bias, int32_t* init,
                        int64_t count) const {
  const auto* sums = reinterpret_cast<const int32_t*>(static_cast<const char*>(packed_at) + sums_at);
  for (int64_t i = 0; i < count; ++i) {
    // Wraps around as the sums do.
    const uint32_t added = i < bias.size() ? static_cast<uint32_t>(bias.data<int32_t>()[i]) : 0;
    init[i] = static_cast<int32_t>(added - static_cast<uint32_t>(in_zero) * static_cast<uint32_t>(sums[i]));
  }
}

ByteMatrix weight_rows(const Tensor& weights, int64_t channels) {
  const int64_t row = weights.size() / channels;
  return {weights.raw(), weights.dtype() == DType::i8, channels, row, row, 1};
}
ByteZeros view_of(const std::vector<int32_t>& zeros) {
  return {zeros.data(), DType::i32, static_cast<int64_t>(zeros.size())};
}

Weights pack_weights(const LowerContext& context, const ConvInt8Program& program, const ConvInt8Input& input,
                     const std::vector<int32_t>& zeros) {
  const ConvProblem& shape = program.problem().shape;
  const int64_t channels = shape.out_channels, padded = shape.out_blocks() * shape.lanes;
  // Sums lie behind the weights.
  const int64_t bytes = (program.packed_bytes() + 63) / 64 * 64;
  std::string text = program.packing() + " zeros";
  for (const int32_t zero : zeros) text += " " + std::to_string(zero);
  Weights weights;
  weights.sums_at = bytes;
  weights.packed = context.packed(context.input(1), text, [&] {
    Tensor packed = allocate_weights(DType::u8, {bytes + padded * 4});
    auto* out = static_cast<char*>(packed.mutable_raw());
    Tensor constant = context.constant(1);
    if (input.unit_bytes != 0) constant = input.flat_weights(constant, program.problem().dot);
    program.pack(weight_rows(constant, channels), view_of(zeros), out, reinterpret_cast<int32_t*>(out + bytes));
    return packed;
  });
  return weights;
}

// The buffer of what sums begin with; filled by a step where the input's zero point comes with the run.
BufferId init_of(const LowerContext& context, const Weights& weights, BufferId packed, const ConvInt8Input& input,
                 BufferId zero_at, int64_t count) {
  const Tensor given = context.constant(5), bias = given.defined() ? given : Tensor(DType::i32, {0});
  if (zero_at == BufferId::none || input.widens) {
    Tensor init(DType::i32, {count});
    weights.fill_init(weights.packed.raw(), input.zero_in_sums(input.zero), bias, init.mutable_data<int32_t>(), count);
    return context.constant_buffer(init);
  }
  const BufferId to = context.scratch(checked_bytes(DType::i32, {count}));
  Step step;
  step.kernel = "channel terms";
  step.reads = {packed, zero_at};
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(count);
  step.run = [input, weights, bias, packed, zero_at, to, count](const StepArgs& args) {
    const int32_t zero = input.zero_in_sums(input.zero_at(args.at<const void>(zero_at)));
    weights.fill_init(args.at<const void>(packed), zero, bias, args.at<int32_t>(to), count);
  };
  context.add(std::move(step));
  return to;
}

Step conv_step(const LowerContext& context, std::shared_ptr<const ConvInt8Program> program, const Weights& weights,
               const ConvInt8Buffers& buffers) {
  Step step;
  step.kernel = program->plan_text();
  step.reads = {buffers.source, buffers.packed, buffers.init};
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

// A bias is there for all channels, or absent.
bool has_bias_of(const LowerContext& context, int64_t channels) {
  if (!context.has_input(5)) return true;
  const Tensor bias = context.constant(5);
  return bias.defined() && bias.dtype() == DType::i32 && bias.size() == channels;
}

bool has_elements(const LowerContext& context) {
  return context.input_type(0).storage_bytes() > 0 && context.input_type(1).storage_bytes() > 0 &&
         context.output_type(0).storage_bytes() > 0;
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
                                                         const Zeros& zeros, const TensorType& in_type,
                                                         const ConvInt8Problem& direct,
                                                         const std::vector<int64_t>& batch_bytes, int threads) {
  if (conv.window.axes() != 2 || conv.sizes.groups != 1 || in_type.layout.channel_block == 0 || !zeros.input) {
    return nullptr;
  }
  WinogradInt8Problem problem{direct, in_type.dtype == DType::i8, *zeros.input};
  ConvShape& axes = problem.conv.shape.phases[0];
  axes.y = conv_axis(conv.window, 0, conv.sizes.in[0], conv.sizes.out[0]);
  axes.x = conv_axis(conv.window, 1, conv.sizes.in[1], conv.sizes.out[1]);
  if (!is_winograd_int8(problem.conv.shape)) return nullptr;
  const std::optional<int64_t> group = choose_winograd_int8(problem, direct.dot, threads);
  const ByteMatrix weights = weight_rows(context.constant(1), conv.sizes.out_channels);
  const Tensor bias = context.constant(5);
  const std::span<const int32_t> added = bias.defined() ? bias.elements<int32_t>() : std::span<const int32_t>();
  if (!group || !stays_exact(problem, weights, view_of(zeros.weights), added)) return nullptr;
  try {
    return std::make_shared<const WinogradInt8Program>(std::move(problem), *group, threads, batch_bytes);
  } catch (const JitError&) {
    return nullptr;
  }
}

void add_winograd(const LowerContext& context, const std::shared_ptr<const WinogradInt8Program>& program,
                  const Zeros& zeros, BufferId source, BufferId target, const std::vector<BufferId>& operands) {
  const ConvProblem& shape = program->problem().conv.shape;
  const Tensor weights = pack_winograd_int8(context, *program, 1, weight_rows(context.constant(1), shape.out_channels),
                                            view_of(zeros.weights));
  Tensor init(DType::i32, {shape.out_blocks() * shape.lanes});
  if (const Tensor bias = context.constant(5); bias.defined()) {
    std::copy_n(bias.data<int32_t>(), bias.size(), init.mutable_data<int32_t>());
  }
  add_winograd_int8_steps(context, program, weights,
                          {source, context.constant_buffer(weights), context.constant_buffer(init), target, operands});
}

}  // namespace

bool lower_conv_int8(LowerContext& context, const ConvNode& conv) {
  const int lanes = vector_lanes(context.target.isa);
  const std::optional<Zeros> zeros = zeros_of(context, conv.sizes.out_channels);
  if (!has_elements(context) || !zeros || !context.constant(1).defined() ||
      !has_bias_of(context, conv.sizes.out_channels)) {
    return false;
  }
  TensorType in_type = context.input_type(0);
  const TensorType& out_type = context.output_type(0);
  for (const TensorType* type : {&std::as_const(in_type), &out_type}) {
    if (type->layout.channel_block != 0 && type->layout.channel_block != lanes) return false;
  }
  std::optional<Operands> operands = bind_operands(context, out_type.extents(), lanes);
  if (!operands) return false;
  const BufferId from = blocked_input(context, in_type, lanes);
  const Int8Dot dot = dot_of(context, *zeros);
  ConvInt8Input input(in_type, conv, dot, zeros->input, lanes);
  // Where weights are added, they must count for nothing.
  const bool is_flat = zeros->weights == std::vector<int32_t>(zeros->weights.size(), 0) && input.flatten(conv, dot);
  ConvInt8Problem problem = problem_of(context, is_flat ? input.flat_conv(conv, dot) : conv, dot, input, lanes);
  problem.epilogue = operands->bound.epilogue;
  problem.store = operands->store;
  const int threads = worthwhile_threads(problem.dots(), context.target.threads);
  const bool is_plain = out_type.layout.channel_block == 0;
  const BufferId target = is_plain ? context.scratch(blocked_bytes(out_type.extents(), lanes, out_type.dtype))
                                   : context.buffer(context.output(0));
  const std::vector<int64_t>& batch_bytes = operands->bound.batch_bytes;
  if (const auto winograd = make_winograd(context, conv, *zeros, in_type, problem, batch_bytes, threads)) {
    add_winograd(context, winograd, *zeros, from, target, operands->bound.buffers);
  } else {
    std::shared_ptr<const ConvInt8Program> program;
    try {
      const Candidate chosen = context.plans.choose(conv_int8_tuning_task(problem, threads));
      program =
          std::make_shared<const ConvInt8Program>(std::move(problem), threads, batch_bytes, conv_int8_tile_of(chosen));
    } catch (const JitError&) {
      return false;
    }
    const Weights weights = pack_weights(context, *program, input, zeros->weights);
    const BufferId zero_at = zeros->input ? BufferId::none : context.buffer(context.input(3));
    const int64_t padded = program->problem().shape.out_blocks() * lanes;
    ConvInt8Buffers buffers;
    buffers.packed = context.constant_buffer(weights.packed);
    buffers.init = init_of(context, weights, buffers.packed, input, zero_at, padded);
    buffers.source = input.add_step(context, from, zero_at);
    buffers.target = target;
    buffers.operands = operands->bound.buffers;
    context.add(conv_step(context, std::move(program), weights, buffers));
  }
  if (is_plain) {
    context.add(unblock_step(target, context.buffer(context.output(0)), out_type.extents(), lanes,
                             context.target.threads, out_type.dtype));
  }
  return true;
}

}  // namespace lathe
