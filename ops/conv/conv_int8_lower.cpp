#include "ops/conv/conv_int8_lower.h"

#include <algorithm>
#include <utility>

#include "ops/conv/conv_axes.h"
#include "ops/conv/conv_depthwise_int8_lower.h"
#include "ops/conv/conv_int8_direct.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_operands.h"
#include "ops/int8/int8_lower.h"
#include "ops/int8/large_bytes.h"
#include "ops/pointwise/byte_table_step.h"
#include "ops/winograd/winograd_int8_lower.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

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

int threads_of_search(const LowerContext& context, const TensorType& type) {
  return worthwhile_threads(static_cast<double>(type.storage_bytes()) * 2, context.target.threads);
}

// The least byte of each thread's part of the input, once for all convolutions of it.
BufferId least_bytes(const LowerContext& context, const TensorType& type, BufferId from) {
  const auto bytes = static_cast<int64_t>(type.storage_bytes());
  const int threads = threads_of_search(context, type);
  const uint8_t flip = type.dtype == DType::i8 ? 0x80 : 0;
  const std::string key = "least bytes in " + std::to_string(static_cast<int>(from)) + (flip != 0 ? " signed" : "");
  return *context.shared<BufferId>(key, [&] {
    const BufferId to = context.scratch(static_cast<size_t>(threads));
    Step step;
    step.kernel = "least byte";
    step.reads = {from};
    step.writes = {to};
    step.bytes = static_cast<double>(bytes);
    step.threads = threads;
    step.run = [=](const StepArgs& args) {
      const Range range = split_evenly(bytes, args.share, args.shares);
      args.at<uint8_t>(to)[args.share] =
          least_byte(args.at<const uint8_t>(from) + range.begin, range.end - range.begin, flip);
    };
    context.add(std::move(step));
    return to;
  });
}

// Both ways, of which each run goes one: `small` where no byte is less than `least`.
void add_steps_by_least(const LowerContext& context, const ConvInt8Zeros& zeros, const ConvInt8Operands& operands,
                        const TensorType& in_type, const EmittedConvInt8& small, const EmittedConvInt8& any,
                        int32_t least, BufferId from, BufferId target) {
  const BufferId at = least_bytes(context, in_type, from);
  const int count = threads_of_search(context, in_type);
  const auto are_at_least = [count, least](const void* bytes) {
    const auto* found = static_cast<const uint8_t*>(bytes);
    return std::all_of(found, found + count, [least](uint8_t byte) { return byte >= least; });
  };
  const std::string name = "at least " + std::to_string(least);
  add_direct_steps(context.only_if(at, name, are_at_least), zeros, operands, small, from, target);
  add_direct_steps(context.only_if(at, "not " + name, [=](const void* bytes) { return !are_at_least(bytes); }), zeros,
                   operands, any, from, target);
}

// Over all channels, or those of a group.
bool lower_sums(const LowerContext& context, const ConvNode& conv, const ConvInt8Zeros& zeros,
                const ConvInt8Operands& operands, const TensorType& in_type, BufferId from, BufferId target) {
  const Int8Dot dot = conv_int8_sums_dot(context, in_type, zeros);
  DirectConvInt8 direct = describe_direct(context, conv, zeros, operands, in_type, dot);
  const int threads = worthwhile_threads(direct.problem.dots(), context.target.threads);
  const std::vector<int64_t>& batch_bytes = operands.bound.batch_bytes;
  if (const auto winograd = make_winograd(context, conv, zeros, in_type, direct.problem, batch_bytes, threads)) {
    add_winograd(context, winograd, zeros, from, target, operands.bound.buffers);
    return true;
  }
  const auto any = emit_direct(context, conv, zeros, operands, in_type, std::move(direct), threads);
  if (!any) return false;
  std::optional<EmittedConvInt8> small;
  const std::optional<int32_t> least = conv_int8_least(context, in_type, zeros, dot);
  if (least) {
    small =
        emit_direct(context, conv, zeros, operands, in_type,
                    describe_direct(context, conv, zeros, operands, in_type, Int8Dot::u8s8_halved, *least), threads);
  }
  if (small) {
    add_steps_by_least(context, zeros, operands, in_type, *small, *any, *least, from, target);
  } else {
    add_direct_steps(context, zeros, operands, *any, from, target);
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
