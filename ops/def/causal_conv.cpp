// CausalConvWithState: each channel convolved with its own kernel over past and present samples.
#include <cmath>
#include <cstring>

#include "ops/copy/copy_elements.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/pointwise/pointwise_loops.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// [batch, channels, length] by [channels, 1, taps].
struct CausalShape {
  int64_t batch = 0, channels = 0, length = 0, taps = 0;
  int64_t kept() const { return taps - 1; }  // samples of the state
};

template <class Context>
bool has_silu(const Context& context) {
  const std::string text = context.node.attributes.get_string("activation", "none");
  if (text == "silu" || text == "swish") return true;
  if (text != "none") context.fail("attribute 'activation' is '" + text + "', expected silu, swish or none");
  return false;
}

// `state`, `bias`: empty when absent.
template <class Context>
CausalShape shape_of(const Context& context, const Dims& input, const Dims& weight, const Dims* bias,
                     const Dims* state) {
  if (input.size() != 3 || weight.size() != 3 || weight[0] != input[1] || weight[1] != 1 || weight[2] < 1) {
    context.fail("input 0 is " + to_string(input) + ", input 1 " + to_string(weight) +
                 ", expected batch, channels, length and channels, 1, taps");
  }
  const CausalShape shape{input[0], input[1], input[2], weight[2]};
  if (bias != nullptr && *bias != Dims{shape.channels}) context.fail("input 2 (bias) is " + to_string(*bias));
  if (state != nullptr && *state != Dims{shape.batch, shape.channels, shape.kept()}) {
    context.fail("input 3 (past_state) is " + to_string(*state) + ", expected " +
                 to_string(Dims{shape.batch, shape.channels, shape.kept()}));
  }
  return shape;
}

void infer_causal_conv(InferContext& context) {
  const TensorType &input = context.input(0), &weight = context.input(1);
  has_silu(context);
  TensorType output = input, state = ranked(input.dtype, 3);
  output.layout = {};
  if (input.has_rank && input.rank() != 3) context.fail("input 0 has rank " + std::to_string(input.rank()));
  if (weight.has_rank && weight.rank() != 3) context.fail("input 1 has rank " + std::to_string(weight.rank()));
  if (input.has_rank) {
    state.dims[0] = input.dims[0];
    state.dims[1] = input.dims[1];
  }
  if (weight.has_rank && weight.dims[2].known()) {
    if (weight.dims[2].extent < 1) context.fail("its kernel is empty");
    state.dims[2] = known_dim(weight.dims[2].extent - 1);
  }
  if (input.is_static() && weight.is_static()) {
    const auto dims_of = [&](int i) {
      return context.has_input(i) && context.input(i).is_static() ? context.input(i).extents() : Dims();
    };
    const Dims bias = dims_of(2), past = dims_of(3);
    shape_of(context, input.extents(), weight.extents(), bias.empty() ? nullptr : &bias,
             past.empty() ? nullptr : &past);
  }
  context.set_output(0, std::move(output));
  context.set_output(1, std::move(state));
}

// One channel. `past`: kept() samples, or null for zeros. Writes the output's samples and the new state.
template <class T>
void convolve(const CausalShape& shape, const T* in, const T* weight, T bias, const T* past, T* out, T* state) {
  const int64_t kept = shape.kept(), length = shape.length;
  for (int64_t t = 0; t < length; ++t) out[t] = bias;
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    const T factor = weight[tap];
    const int64_t delay = kept - tap;  // out[t] sees sample t - delay
    for (int64_t t = 0; t < std::min(delay, length) && past != nullptr; ++t) out[t] += factor * past[t + tap];
    for (int64_t t = delay; t < length; ++t) out[t] += factor * in[t - delay];
  }
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t t = length - kept + i;
    state[i] = t >= 0 ? in[t] : (past != nullptr ? past[t + kept] : T{0});
  }
}

void run_causal_conv(ReferenceContext& context) {
  const Tensor &input = context.inputs[0], &weight = context.inputs[1];
  const bool has_bias = context.has_input(2), has_past = context.has_input(3);
  const CausalShape shape =
      shape_of(context, input.dims(), weight.dims(), has_bias ? &context.inputs[2].dims() : nullptr,
               has_past ? &context.inputs[3].dims() : nullptr);
  const std::vector<double> in = reals_of(input), taps = reals_of(weight);
  const std::vector<double> bias = has_bias ? reals_of(context.inputs[2]) : std::vector<double>();
  const std::vector<double> past = has_past ? reals_of(context.inputs[3]) : std::vector<double>();
  const Dims state_dims{shape.batch, shape.channels, shape.kept()};
  make_output(context, input.dtype(), state_dims);  // checks the size first
  std::vector<double> out(in.size()), state(static_cast<size_t>(checked_elements(state_dims)));
  for (int64_t row = 0; row < shape.batch * shape.channels; ++row) {
    const int64_t channel = row % shape.channels;
    convolve(shape, in.data() + row * shape.length, taps.data() + channel * shape.taps,
             has_bias ? bias[static_cast<size_t>(channel)] : 0.0, has_past ? past.data() + row * shape.kept() : nullptr,
             out.data() + row * shape.length, state.data() + row * shape.kept());
  }
  if (has_silu(context)) {
    for (double& value : out) {
      const double rounded = rounded_to(input.dtype(), value);  // the activation is of the convolution's result
      value = rounded / (1 + std::exp(-rounded));
    }
  }
  context.outputs[0] = tensor_of_reals(context, input.dtype(), input.dims(), out);
  if (context.outputs.size() > 1) context.outputs[1] = tensor_of_reals(context, input.dtype(), state_dims, state);
}

// ---- Lowering: a step for the sums, and a generated loop for the activation.

void add_silu_step(LowerContext& context, const TensorType& type, BufferId buffer) {
  Expression silu;
  silu.inputs = {DType::f32};
  const int x = silu.add({.op = ExprOp::input, .a = 0});
  const int gate = silu.add({.op = ExprOp::sigmoid, .a = x});
  silu.add({.op = ExprOp::mul, .a = x, .b = gate});
  const auto loops = plan_pointwise(context.target.isa, silu, {type}, type);
  Step step;
  step.op = "Silu";
  step.kernel = "pointwise";
  step.reads = {buffer};
  step.writes = {buffer};
  step.flop = 12 * static_cast<double>(checked_elements(type.extents()));
  step.threads = worthwhile_threads(step.flop, context.target.threads);
  step.bytes = 2 * static_cast<double>(type.storage_bytes());
  step.run = [=, nests = *loops, threads = step.threads](const StepArgs& args) {
    const void* inputs[] = {args.at<void>(buffer)};
    for (const PointwiseLoops& nest : nests) nest.run(inputs, args.at<void>(buffer), args.share, threads);
  };
  context.add(std::move(step));
}

bool lower_causal_conv(LowerContext& context) {
  for (int i = 0; i < context.input_count(); ++i) {
    if (context.has_input(i) && context.input_type(i).dtype != DType::f32) return false;
  }
  const Dims input = context.input_type(0).extents();
  const CausalShape shape{input[0], input[1], input[2], context.input_type(1).extents()[2]};
  const auto buffer_of = [&](int i) {
    return context.has_input(i) ? context.buffer(context.input(i)) : BufferId::none;
  };
  const BufferId in = buffer_of(0), weight = buffer_of(1), bias = buffer_of(2), past = buffer_of(3);
  const auto result_of = [&](int i, int64_t elements) {
    return context.has_output(i) ? context.buffer(context.output(i))
                                 : context.scratch(checked_bytes(DType::f32, {elements}));
  };
  const int64_t rows = shape.batch * shape.channels;
  const BufferId out = result_of(0, rows * shape.length), state = result_of(1, rows * shape.kept());
  Step step;
  step.kernel = "causal " + std::to_string(shape.taps);
  for (const BufferId read : {in, weight, bias, past}) {
    if (read != BufferId::none) step.reads.push_back(read);
  }
  step.writes = {out, state};
  step.flop = 2.0 * static_cast<double>(rows * shape.length * shape.taps);
  step.threads = worthwhile_threads(step.flop * 4, context.target.threads);
  step.bytes = 8.0 * static_cast<double>(rows * (shape.length + shape.taps));
  step.run = [=, threads = step.threads](const StepArgs& args) {
    const Range range = split_evenly(rows, args.share, threads);
    for (long row = range.begin; row < range.end; ++row) {
      const long channel = row % shape.channels;
      convolve(shape, args.at<const float>(in) + row * shape.length,
               args.at<const float>(weight) + channel * shape.taps,
               bias == BufferId::none ? 0.0F : args.at<const float>(bias)[channel],
               past == BufferId::none ? nullptr : args.at<const float>(past) + row * shape.kept(),
               args.at<float>(out) + row * shape.length, args.at<float>(state) + row * shape.kept());
    }
  };
  context.add(std::move(step));
  if (has_silu(InferContext(context.node, {}, {})) && rows * shape.length > 0) {
    add_silu_step(context, context.input_type(0), out);
  }
  return true;
}

}  // namespace

std::vector<OpDef> causal_conv_ops() {
  return {{.schema = {.name = "CausalConvWithState",
                      .since = 27,
                      .min_inputs = 2,
                      .max_inputs = 4,
                      .max_outputs = 2,
                      .attributes = {{"activation", AttributeSpec::Kind::string}},
                      .infer = infer_causal_conv,
                      .reference = run_causal_conv},
           .lower = lower_causal_conv}};
}

}  // namespace lathe::ops
