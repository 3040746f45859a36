#include "ops/conv_lower.h"

#include <algorithm>
#include <cstring>

#include "ops/conv_depthwise_program.h"
#include "ops/conv_node.h"
#include "ops/conv_operands.h"
#include "ops/conv_program.h"
#include "ops/conv_strassen.h"
#include "ops/conv_tuning.h"
#include "ops/winograd_program.h"
#include "ops/winograd_stem.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Work below this is done before a second thread has woken up.
constexpr double kFlopPerThread = 400e3;

// One bias for each pixel of the windows.
BufferId bind_shuffled_bias(const LowerContext& context, const PixelShuffle& shuffle, int lanes) {
  const int64_t window = shuffle.y * shuffle.x;
  const Tensor constant = context.constant(2);
  return context.constant_buffer(
      context.packed(context.input(2), "channels c" + std::to_string(lanes) + " x" + std::to_string(window), [&] {
        std::vector<float> repeated;
        for (int64_t c = 0; c < shuffle.channels; ++c)
          repeated.insert(repeated.end(), window, constant.data<float>()[c]);
        const int64_t channels = shuffle.channels * window;
        return pad_channels(Tensor::from<float>({channels}, repeated), channels, lanes);
      }));
}

// `in`: pixels of `lanes` channels each, a window's row of x values at the front of each.
void spread_row(const float* in, int64_t pixels, int lanes, int64_t x, float* out) {
  if (x == 2) {
    for (int64_t i = 0; i < pixels; ++i) std::memcpy(out + 2 * i, in + i * lanes, 2 * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < pixels; ++i) {
    for (int64_t j = 0; j < x; ++j) out[i * x + j] = in[i * lanes + j];
  }
}

// From the blocked results of the pointwise convolution (`dims`: of its input) to the plain picture.
Step shuffle_step(BufferId blocked, BufferId plain, const Dims& dims, const PixelShuffle& shuffle, int lanes,
                  int threads) {
  const int64_t width = dims.back(), height = dims.size() > 3 ? dims[2] : 1;
  const int64_t rows = dims[0] * shuffle.channels * height * shuffle.y;
  const int64_t blocks = (shuffle.channels * shuffle.y * shuffle.x + lanes - 1) / lanes;
  Step step;
  step.kernel = "pixel shuffle";
  step.reads = {blocked};
  step.writes = {plain};
  step.threads = threads;
  step.bytes = 4.0 * static_cast<double>(dims[0] * blocks * lanes * height * width + rows * width * shuffle.x);
  step.run = [=](const StepArgs& args) {
    const auto* in = args.at<const float>(blocked);
    auto* out = args.at<float>(plain);
    const Range range = split_evenly(static_cast<long>(rows), args.share, args.shares);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t window_y = row % shuffle.y, y = row / shuffle.y % height;
      const int64_t plane = row / (shuffle.y * height), image = plane / shuffle.channels;
      float* to = out + row * width * shuffle.x;
      const int64_t first = (plane % shuffle.channels * shuffle.y + window_y) * shuffle.x;
      const auto channel = [&](int64_t c) {
        return in + (((image * blocks + c / lanes) * height + y) * width) * lanes + c % lanes;
      };
      if (first % lanes + shuffle.x <= lanes) {
        spread_row(channel(first), width, lanes, shuffle.x, to);
        continue;
      }
      for (int64_t x = 0; x < shuffle.x; ++x) {
        for (int64_t i = 0; i < width; ++i) to[i * shuffle.x + x] = channel(first + x)[i * lanes];
      }
    }
  };
  return step;
}

struct BoundWeights {
  BufferId buffer;
  const void* address = nullptr;  // when they are constant
};

template <class Program>
BoundWeights bind_weights(const LowerContext& context, const std::shared_ptr<const Program>& program) {
  const ValueId id = context.input(1);
  if (const Tensor constant = context.constant(1); constant.defined()) {
    const Tensor packed = context.packed(id, program->packing(), [&] {
      Tensor weights = allocate_weights(DType::f32, {program->packed_size()});
      program->pack(constant.data<float>(), weights.mutable_data<float>());
      return weights;
    });
    return {context.constant_buffer(packed), packed.raw()};
  }
  const BufferId from = context.buffer(id);
  const BufferId to = context.scratch(static_cast<size_t>(program->packed_size()) * sizeof(float));
  Step step;
  step.kernel = "pack weights";
  step.reads = {from};
  step.writes = {to};
  step.run = [=](const StepArgs& args) { program->pack(args.at<const float>(from), args.at<float>(to)); };
  context.add(std::move(step));
  return {to};
}

struct Buffers {
  BufferId source, target, bias = BufferId::none;
  std::vector<BufferId> operands;
};

ConvArguments arguments_of(const StepArgs& args, const Buffers& buffers, BufferId weights) {
  ConvArguments arguments;
  arguments.source = args.at<const float>(buffers.source);
  arguments.weights = args.at<const float>(weights);
  arguments.target = args.at<float>(buffers.target);
  if (buffers.bias != BufferId::none) arguments.bias = args.at<const float>(buffers.bias);
  for (size_t i = 0; i < buffers.operands.size(); ++i) arguments.operands[i] = args.at<const void>(buffers.operands[i]);
  return arguments;
}

template <class Program>
void add_conv_step(const LowerContext& context, const std::shared_ptr<const Program>& program, const std::string& plan,
                   int threads, const Buffers& buffers) {
  const BoundWeights weights = bind_weights(context, program);
  Step step;
  step.kernel = "conv " + plan;
  step.reads = {buffers.source, weights.buffer};
  if (buffers.bias != BufferId::none) step.reads.push_back(buffers.bias);
  step.reads.insert(step.reads.end(), buffers.operands.begin(), buffers.operands.end());
  step.writes = {buffers.target};
  step.threads = threads;
  step.shares = program->shares();
  step.flop = program->problem().flop();
  step.bytes = static_cast<double>(context.input_type(0).storage_bytes() + context.output_type(0).storage_bytes()) +
               4.0 * static_cast<double>(program->packed_size());
  step.weights = weights.address;
  step.next_weights = std::make_shared<const void*>(nullptr);
  step.run = [program, buffers, packed = weights.buffer, next = step.next_weights](const StepArgs& args) {
    ConvArguments arguments = arguments_of(args, buffers, packed);
    if (args.ends_run()) arguments.next_weights = *next;
    program->run(arguments, args.share);
  };
  context.add(std::move(step));
}

struct BoundScratch {
  BufferId shared = BufferId::none, own = BufferId::none;

  std::vector<BufferId> buffers() const {
    std::vector<BufferId> ids;
    for (const BufferId id : {shared, own})
      if (id != BufferId::none) ids.push_back(id);
    return ids;
  }
  ConvScratch bind(const StepArgs& args) const {
    ConvScratch scratch;
    if (shared != BufferId::none) scratch.shared = args.at<float>(shared);
    if (own != BufferId::none) scratch.own = args.own<float>(own, 0);
    scratch.from_thread_to_thread = static_cast<int64_t>(args.thread_bytes / sizeof(float));
    return scratch;
  }
};

BoundScratch bind_scratch(const LowerContext& context, int64_t shared, int64_t own) {
  BoundScratch bound;
  if (shared > 0) bound.shared = context.scratch(checked_bytes(DType::f32, {shared}));
  if (own > 0) bound.own = context.thread_scratch(checked_bytes(DType::f32, {own}));
  return bound;
}

// One step, or one for each part that all threads must have finished.
template <class Program>
void add_steps_by_part(const LowerContext& context, const std::shared_ptr<const Program>& program,
                       const std::string& plan, int threads, const Buffers& buffers) {
  const BoundWeights weights = bind_weights(context, program);
  const BoundScratch scratch = bind_scratch(context, program->shared_scratch(), program->own_scratch());
  const int parts = program->parts();
  static constexpr const char* kParts[] = {"input", "products", "output"};
  const auto in_bytes = static_cast<double>(context.input_type(0).storage_bytes());
  const auto out_bytes = static_cast<double>(context.output_type(0).storage_bytes());
  const double weight_bytes = 4.0 * static_cast<double>(program->packed_size());
  const double bytes[] = {in_bytes, weight_bytes, out_bytes};
  for (int part = 0; part < parts; ++part) {
    Step step;
    step.kernel = "conv " + plan + (parts > 1 ? std::string(" ") + kParts[part] : "");
    step.reads = step.writes = scratch.buffers();
    // A pointwise convolution takes an odd last row right from its source.
    if (part == 0 || parts == 2) step.reads.push_back(buffers.source);
    if (parts == 1 || part == 1) {
      step.reads.push_back(weights.buffer);
      step.flop = program->problem().flop();  // of a direct convolution, so that algorithms compare
      step.weights = weights.address;
    }
    if (part == parts - 1) {
      if (buffers.bias != BufferId::none) step.reads.push_back(buffers.bias);
      step.reads.insert(step.reads.end(), buffers.operands.begin(), buffers.operands.end());
      step.writes.push_back(buffers.target);
    }
    step.threads = threads;
    step.shares = program->shares(part);
    step.bytes = parts == 1 ? in_bytes + weight_bytes + out_bytes : bytes[part];
    step.next_weights = std::make_shared<const void*>(nullptr);
    step.run = [program, buffers, scratch, part, packed = weights.buffer,
                next = step.next_weights](const StepArgs& args) {
      ConvArguments arguments = arguments_of(args, buffers, packed);
      if (args.ends_run()) arguments.next_weights = *next;
      program->run_part(part, arguments, scratch.bind(args), args.share, args.thread);
    };
    context.add(std::move(step));
  }
}

// Null when the plan is for another algorithm, or needs more registers than there are.
std::shared_ptr<const StrassenConv> make_strassen(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                                  const std::vector<int64_t>& operand_batch_bytes) {
  if (!plan.strassen) return nullptr;
  try {
    return std::make_shared<const StrassenConv>(problem, plan.isa, threads, operand_batch_bytes);
  } catch (const JitError&) {
    return nullptr;
  }
}
// Of WinogradProgram and WinogradStem.
template <class Program>
std::shared_ptr<const Program> make_winograd(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                             const std::vector<int64_t>& operand_batch_bytes) {
  if (plan.winograd == 0) return nullptr;
  try {
    return std::make_shared<const Program>(problem, winograd_plan(plan), threads, operand_batch_bytes);
  } catch (const JitError&) {
    return nullptr;
  }
}

// One of them, by the plan.
struct Programs {
  std::shared_ptr<const ConvProgram> dense;
  std::shared_ptr<const DepthwiseProgram> depthwise;
  std::shared_ptr<const WinogradProgram> winograd;
  std::shared_ptr<const WinogradStem> stem;
  std::shared_ptr<const StrassenConv> strassen;
  std::string plan;
};

// nullopt: no kernel can be emitted.
std::optional<Programs> make_programs(const LowerContext& context, const ConvProblem& problem, int threads,
                                      const std::vector<int64_t>& operand_batch_bytes) {
  const Isa isa = context.target.isa;
  Programs programs;
  try {
    if (is_depthwise(problem)) {
      programs.depthwise = std::make_shared<const DepthwiseProgram>(problem, isa, threads, operand_batch_bytes);
      programs.plan = programs.depthwise->plan_text();
      return programs;
    }
    ConvPlan plan = plan_of(context.plans.choose(conv_tuning_task(problem, isa, threads)), isa);
    programs.winograd = make_winograd<WinogradProgram>(problem, plan, threads, operand_batch_bytes);
    programs.stem = make_winograd<WinogradStem>(problem, plan, threads, operand_batch_bytes);
    programs.strassen = make_strassen(problem, plan, threads, operand_batch_bytes);
    if (!programs.winograd && !programs.stem && !programs.strassen) {
      plan.winograd = 0;
      plan.strassen = false;
      programs.dense = std::make_shared<const ConvProgram>(problem, plan, threads, operand_batch_bytes);
    }
    programs.plan = to_string(plan);
  } catch (const JitError&) {
    return std::nullopt;
  }
  return programs;
}

void add_steps(const LowerContext& context, const Programs& programs, int threads, const Buffers& buffers) {
  if (programs.depthwise) add_conv_step(context, programs.depthwise, programs.plan, threads, buffers);
  if (programs.winograd) add_steps_by_part(context, programs.winograd, programs.plan, threads, buffers);
  if (programs.stem) add_steps_by_part(context, programs.stem, programs.plan, threads, buffers);
  if (programs.strassen) add_steps_by_part(context, programs.strassen, programs.plan, threads, buffers);
  if (programs.dense) add_conv_step(context, programs.dense, programs.plan, threads, buffers);
}

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

}  // namespace

BufferId bind_bias(const LowerContext& context, int64_t channels, int lanes) {
  const ValueId id = context.input(2);
  if (const Tensor constant = context.constant(2); constant.defined()) {
    return context.constant_buffer(context.packed(id, "channels c" + std::to_string(lanes),
                                                  [&] { return pad_channels(constant, channels, lanes); }));
  }
  const BufferId from = context.buffer(id);
  if (channels % lanes == 0) return from;
  const BufferId to = context.scratch(static_cast<size_t>((channels + lanes - 1) / lanes * lanes) * sizeof(float));
  Step step;
  step.kernel = "pad bias";
  step.reads = {from};
  step.writes = {to};
  step.run = [=](const StepArgs& args) {
    const auto* in = args.at<const float>(from);
    auto* out = args.at<float>(to);
    std::copy(in, in + channels, out);
    std::fill(out + channels, out + (channels + lanes - 1) / lanes * lanes, 0.0f);
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
  // The larger a form, the more digits it loses; next to short sums even the smallest does.
  static constexpr int kMostWinograd[] = {0, 4, 6};  // by Accuracy
  problem.most_winograd = kMostWinograd[static_cast<size_t>(accuracy)];
  problem.longest_sum = longest_convolution_sum(accuracy);
}

int conv_threads(double flop, const Target& target) { return flop < kFlopPerThread ? 1 : target.threads; }

ConvAxis conv_axis(const Window& window, size_t axis, int64_t in, int64_t out) {
  ConvAxis result;
  result.in = in;
  result.out = result.out_extent = out;
  result.stride = window.strides[axis];
  result.taps.clear();
  for (int64_t k = 0; k < window.kernel[axis]; ++k) {
    result.taps.push_back({static_cast<int>(k), k * window.dilations[axis] - window.pads_begin[axis]});
  }
  return result;
}

// Output y takes kernel tap k from input i where i * stride + k * dilation - pad == y: for each y modulo stride other
// taps.
std::vector<ConvAxis> conv_transpose_axes(const Window& window, size_t axis, int64_t in, int64_t out) {
  std::vector<ConvAxis> phases;
  const int64_t stride = window.strides[axis];
  for (int64_t phase = 0; phase < std::min(stride, out); ++phase) {
    ConvAxis result;
    result.in = in;
    result.out = (out - phase + stride - 1) / stride;
    result.out_extent = out;
    result.out_step = stride;
    result.out_first = phase;
    result.taps.clear();
    for (int64_t k = 0; k < window.kernel[axis]; ++k) {
      const int64_t distance = phase + window.pads_begin[axis] - k * window.dilations[axis];
      if (distance % stride == 0) result.taps.push_back({static_cast<int>(k), distance / stride});
    }
    phases.push_back(std::move(result));
  }
  return phases;
}

bool can_shuffle_pixels(const LowerContext& context, const PixelShuffle& shuffle) {
  const int lanes = vector_lanes(context.target.isa);
  if (context.output_type(0).layout.channel_block != 0 || 2 * shuffle.channels > lanes) return false;
  if (context.has_input(2) && !context.constant(2).defined()) return false;
  const std::vector<ValueId> operands = context.epilogue_inputs();
  return std::all_of(operands.begin(), operands.end(), [&](ValueId id) {
    const Dims dims = context.type(id).extents();
    return std::all_of(dims.begin(), dims.end(), [](int64_t extent) { return extent == 1; });
  });
}

bool lower_conv(LowerContext& context, ConvProblem problem, const std::optional<PixelShuffle>& shuffle) {
  if (!has_float_types(context) || problem.phases.empty()) return false;
  const Isa isa = context.target.isa;
  const int lanes = vector_lanes(isa);
  const TensorType &in_type = context.input_type(0), &out_type = context.output_type(0);
  const int in_block = in_type.layout.channel_block, out_block = out_type.layout.channel_block;
  if ((in_block != 0 && in_block != lanes) || (out_block != 0 && out_block != lanes)) return false;
  const std::optional<BoundEpilogue> bound = bind_conv_epilogue(context, out_type.extents(), lanes);
  if (!bound) return false;
  // Few channels are read where they lie; a whole block of them is worth being brought together.
  const bool blocks_input = in_block == 0 && (problem.in_channels >= lanes || problem.groups > 1);
  problem.lanes = lanes;
  problem.has_bias = context.has_input(2);
  problem.epilogue = bound->epilogue;
  set_accuracy(problem, context.target.accuracy);
  for (ConvShape& phase : problem.phases) phase.lanes = in_block == 0 && !blocks_input ? 1 : lanes;
  merge_axes(problem);
  const ConvShape shape = problem.phases[0];
  const int threads = conv_threads(problem.flop(), context.target);
  const std::optional<ConvProblem> taken = taken_for_strassen(problem, isa, threads);
  if (taken) problem = *taken;
  std::optional<Programs> programs = make_programs(context, problem, threads, bound->batch_bytes);
  std::optional<ConvProblem> with_zeros;
  if (!programs) {
    // Many taps are too much code to be emitted for each way in which a window can end at a border.
    with_zeros = padded(problem);
    if (!with_zeros) return false;
    problem = *with_zeros;
    programs = make_programs(context, problem, threads, bound->batch_bytes);
    if (!programs) return false;
  }
  Buffers buffers{context.buffer(context.input(0)), context.buffer(context.output(0)), BufferId::none, bound->buffers};
  if (problem.has_bias) {
    buffers.bias =
        shuffle ? bind_shuffled_bias(context, *shuffle, lanes) : bind_bias(context, problem.out_channels, lanes);
  }
  if (blocks_input) {
    TensorType blocked = in_type;
    blocked.layout.channel_block = lanes;
    const BufferId plain = buffers.source;
    buffers.source = context.scratch(blocked.storage_bytes());
    context.add(block_step(plain, buffers.source, in_type.extents(), lanes, threads));
  }
  if (taken) {
    const int64_t blocks = problem.batch * problem.in_blocks();
    const BufferId source = buffers.source;
    buffers.source = context.scratch(static_cast<size_t>(blocks * problem.source_block_bytes()));
    context.add(take_pixels_step(source, buffers.source, blocks, lanes, shape.y, shape.x, threads));
  }
  if (with_zeros) buffers.source = put_among_zeros(context, buffers.source, shape, problem, threads);
  const BufferId target = buffers.target;
  if (out_block == 0) {
    buffers.target =
        context.scratch(static_cast<size_t>(problem.batch * problem.out_blocks() * problem.target_block_bytes()));
  }
  add_steps(context, *programs, threads, buffers);
  if (shuffle) {
    context.add(shuffle_step(buffers.target, target, in_type.extents(), *shuffle, lanes, threads));
  } else if (out_block == 0) {
    context.add(unblock_step(buffers.target, target, out_type.extents(), lanes, threads));
  }
  return true;
}

}  // namespace lathe
