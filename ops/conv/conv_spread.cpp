#include "ops/conv/conv_spread.h"

#include <algorithm>

#include "jit/kernels/conv/conv_spread.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_operands.h"
#include "ops/work_split.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kWindow = 4;

struct SpreadCall {
  Kernel<SpreadFn> kernel;
  BufferId source, weights, bias, target;
  std::vector<BufferId> operands;
  int64_t lanes, blocks, channels, batch, height, width;

  // A share is some rows of pixels: twice as many of the result.
  void operator()(const StepArgs& args) const {
    const void* pointers[ConvEpilogue::kMaxOperands] = {};
    for (size_t i = 0; i < operands.size(); ++i) pointers[i] = args.at<const void>(operands[i]);
    SpreadArgs call{};
    call.weights = args.at<const float>(weights);
    call.bias = args.at<const float>(bias);
    call.block_bytes = height * width * lanes * 4;
    call.row_bytes = 2 * width * 4;
    call.plane_bytes = kWindow * height * width * 4;
    call.pixels = width;
    call.operands = pointers;
    const Range rows = split_evenly(batch * height, args.share, args.shares);
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const int64_t image = row / height, y = row % height;
      call.source = args.at<const float>(source) + (image * blocks * height + y) * width * lanes;
      call.target = args.at<float>(target) + (image * channels * height + y) * width * kWindow;
      kernel(&call);
    }
  }
};

BufferId bind_weights(const LowerContext& context, const SpreadPlan& plan) {
  const std::string format = plan.turns() > 1 ? "turned windows" : "windows";
  return context.constant_buffer(context.packed(context.input(1), format, [&] {
    const auto* weights = context.constant(1).data<float>();
    Tensor packed = allocate_weights(DType::f32, {divide_up(plan.in_channels, 4) * 4 * plan.channels * kWindow});
    for (int64_t place = 0; place < packed.size(); ++place) {
      const int64_t from = packed_weight(plan, place);
      packed.mutable_data<float>()[place] = from < 0 ? 0 : weights[from];
    }
    return packed;
  }));
}

BufferId bind_window_bias(const LowerContext& context, int64_t channels) {
  Tensor bias(DType::f32, {channels * kWindow});
  if (context.has_input(2)) {
    const Tensor given = context.constant(2);
    for (int64_t i = 0; i < bias.size(); ++i) bias.mutable_data<float>()[i] = given.data<float>()[i / kWindow];
  }
  return context.constant_buffer(bias);
}

bool fits(const LowerContext& context, const ConvNode& conv) {
  const ConvSizes& sizes = conv.sizes;
  const Window& window = conv.window;
  const int64_t sum = longest_convolution_sum(context.target.accuracy);
  return window.axes() == 2 && window.kernel[0] == 2 && window.kernel[1] == 2 && has_float_types(context) &&
         context.input_type(0).layout.channel_block == vector_lanes(context.target.isa) &&
         context.constant(1).defined() && sizes.out_channels <= 4 && (sum == 0 || sizes.in_channels <= sum) &&
         can_shuffle_pixels(context, {sizes.out_channels, 2, 2});
}

}  // namespace

bool lower_spread(LowerContext& context, const ConvNode& conv) {
  if (!fits(context, conv)) return false;
  const ConvSizes& sizes = conv.sizes;
  const int lanes = vector_lanes(context.target.isa);
  SpreadPlan plan{context.target.isa, static_cast<int>(sizes.in_channels), static_cast<int>(sizes.out_channels), {}};
  if (sizes.in[1] < plan.tile_pixels()) return false;
  const auto bound = bind_conv_epilogue(context, context.output_type(0).extents(), lanes);
  if (!bound) return false;
  plan.epilogue = bound->epilogue;
  SpreadCall call{spread_kernel(plan),
                  context.buffer(context.input(0)),
                  bind_weights(context, plan),
                  bind_window_bias(context, sizes.out_channels),
                  context.buffer(context.output(0)),
                  bound->buffers,
                  lanes,
                  divide_up(sizes.in_channels, lanes),
                  sizes.out_channels,
                  sizes.batch,
                  sizes.in[0],
                  sizes.in[1]};
  Step step{.kernel = to_string(plan), .reads = {call.source, call.weights, call.bias}, .writes = {call.target}};
  step.reads.insert(step.reads.end(), call.operands.begin(), call.operands.end());
  step.flop = 2.0 * static_cast<double>(sizes.batch * sizes.in[0] * sizes.in[1]) *
              static_cast<double>(sizes.in_channels * sizes.out_channels * kWindow);
  step.bytes = static_cast<double>(context.input_type(0).storage_bytes() + context.output_type(0).storage_bytes());
  step.threads = worthwhile_threads(step.flop, context.target.threads);
  step.shares = worthwhile_shares(step.flop, step.threads);
  step.run = std::move(call);
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
