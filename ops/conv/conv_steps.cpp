#include "ops/conv/conv_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops/conv/conv_operands.h"
#include "ops/conv/conv_tuning.h"
#include "ops/conv/conv_volume.h"
#include "ops/fetch_far.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

struct BoundWeights {
  BufferId buffer;
  const void* address = nullptr;  // when they are constant
};

// `weights`: the node's.
template <class Program>
void pack_weights(const Program& program, const float* weights, int64_t in_channels, float* packed) {
  if (program.problem().frames.joined == 1) return program.pack(weights, packed);
  program.pack(joined_weights(weights, in_channels, program.problem()).data(), packed);
}

template <class Program>
BoundWeights bind_weights(const LowerContext& context, const std::shared_ptr<const Program>& program) {
  const ValueId id = context.input(1);
  const int64_t joined = program->problem().frames.joined, in_channels = context.input_type(1).extents()[1];
  if (const Tensor constant = context.constant(1); constant.defined()) {
    const std::string packing = program->packing() + (joined > 1 ? " of " + std::to_string(joined) + " frames" : "");
    const Tensor packed = context.packed(id, packing, [&] {
      Tensor weights = allocate_weights(DType::f32, {program->packed_size()});
      pack_weights(*program, constant.data<float>(), in_channels, weights.mutable_data<float>());
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
  step.run = [=](const StepArgs& args) {
    pack_weights(*program, args.at<const float>(from), in_channels, args.at<float>(to));
  };
  context.add(std::move(step));
  return {to};
}

ConvArguments arguments_of(const StepArgs& args, const ConvBuffers& buffers, BufferId weights) {
  ConvArguments arguments;
  arguments.source = args.at<const float>(buffers.source);
  arguments.weights = args.at<const float>(weights);
  arguments.target = args.at<float>(buffers.target);
  arguments.are_far = args.are_far;
  if (buffers.bias != BufferId::none) arguments.bias = args.at<const float>(buffers.bias);
  for (size_t i = 0; i < buffers.operands.size(); ++i) arguments.operands[i] = args.at<const void>(buffers.operands[i]);
  return arguments;
}

template <class Program>
void add_conv_step(const LowerContext& context, const std::shared_ptr<const Program>& program, const std::string& plan,
                   int threads, const ConvBuffers& buffers) {
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
  const size_t read = program->reads_all() ? context.input_type(0).storage_bytes() : 0;
  step.run = [program, buffers, read, packed = weights.buffer, next = step.next_weights](const StepArgs& args) {
    ConvArguments arguments = arguments_of(args, buffers, packed);
    fetch_far(args, arguments.source, read);
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
                       const ConvPrograms& chosen, int threads, const ConvBuffers& buffers) {
  const BoundWeights weights = bind_weights(context, program);
  const BoundScratch scratch = bind_scratch(context, program->shared_scratch(), program->own_scratch());
  const int parts = program->parts();
  static constexpr const char* kParts[] = {"input", "products", "output"};
  const auto in_bytes = static_cast<double>(context.input_type(0).storage_bytes());
  const double out_bytes = static_cast<double>(context.output_type(0).storage_bytes()) / (chosen.pool * chosen.pool);
  const double weight_bytes = 4.0 * static_cast<double>(program->packed_size());
  const double bytes[] = {in_bytes, weight_bytes, out_bytes};
  for (int part = 0; part < parts; ++part) {
    Step step;
    step.kernel = "conv " + chosen.plan + (parts > 1 ? std::string(" ") + kParts[part] : "");
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
    const size_t read = program->reads_all(part) ? context.input_type(0).storage_bytes() : 0;
    step.run = [program, buffers, scratch, part, read, packed = weights.buffer,
                next = step.next_weights](const StepArgs& args) {
      ConvArguments arguments = arguments_of(args, buffers, packed);
      fetch_far(args, arguments.source, read);
      if (args.ends_run()) arguments.next_weights = *next;
      program->run_part(part, arguments, scratch.bind(args), args.share, args.thread);
    };
    context.add(std::move(step));
  }
}

// Null when the plan is for another algorithm, or needs more registers than there are.
std::shared_ptr<const StrassenConv> make_strassen(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                                  const std::vector<int64_t>& operand_batch_bytes) {
  if (!plan.strassen || plan.winograd > 0) return nullptr;
  try {
    return std::make_shared<const StrassenConv>(problem, plan.isa, threads, operand_batch_bytes);
  } catch (const JitError&) {
    return nullptr;
  }
}
// Of WinogradProgram and WinogradStem.
template <class Program>
std::shared_ptr<const Program> make_winograd(const ConvProblem& problem, const ConvPlan& plan, int threads,
                                             const std::vector<int64_t>& operand_batch_bytes, auto... pool) {
  if (plan.winograd == 0) return nullptr;
  try {
    return std::make_shared<const Program>(problem, winograd_plan(plan), threads, operand_batch_bytes, pool...);
  } catch (const JitError&) {
    return nullptr;
  }
}

// Throws JitError.
ConvPrograms programs_of(const ConvProblem& problem, Isa isa, int threads,
                         const std::vector<int64_t>& operand_batch_bytes, int pool, PlanSource& plans) {
  constexpr const char* kPoolsNot = "only Winograd's algorithm pools what it computes";
  ConvPrograms programs;
  programs.pool = pool;
  if (pool > 1 && is_depthwise(problem)) throw JitError(kPoolsNot);
  if (is_depthwise(problem)) {
    programs.depthwise = std::make_shared<const DepthwiseProgram>(problem, isa, threads, operand_batch_bytes);
    programs.plan = programs.depthwise->plan_text();
    return programs;
  }
  ConvPlan plan = plan_of(plans.choose(conv_tuning_task(problem, isa, threads)), isa);
  programs.winograd = make_winograd<WinogradProgram>(problem, plan, threads, operand_batch_bytes, pool);
  if (pool > 1) {
    if (!programs.winograd) throw JitError(kPoolsNot);
    programs.plan = to_string(plan) + " max pool";
    return programs;
  }
  programs.stem = make_winograd<WinogradStem>(problem, plan, threads, operand_batch_bytes);
  programs.strassen = make_strassen(problem, plan, threads, operand_batch_bytes);
  if (!programs.winograd && !programs.stem && !programs.strassen) {
    plan.winograd = 0;
    plan.strassen = false;
    programs.dense = std::make_shared<const ConvProgram>(problem, plan, threads, operand_batch_bytes);
  }
  programs.plan = to_string(plan);
  return programs;
}

}  // namespace

std::optional<ConvPrograms> make_conv_programs(const LowerContext& context, const ConvProblem& problem, int threads,
                                               const std::vector<int64_t>& operand_batch_bytes, int pool) {
  const std::string key = fmt::format("conv {} threads {} operands {} pool {}", to_string(problem), threads,
                                      fmt::join(operand_batch_bytes, " "), pool);
  try {
    return *context.shared<ConvPrograms>(key, [&] {
      return programs_of(problem, context.target.isa, threads, operand_batch_bytes, pool, context.plans);
    });
  } catch (const JitError&) {
    return std::nullopt;
  }
}

void add_conv_steps(const LowerContext& context, const ConvPrograms& programs, int threads,
                    const ConvBuffers& buffers) {
  if (programs.depthwise) add_conv_step(context, programs.depthwise, programs.plan, threads, buffers);
  if (programs.winograd) add_steps_by_part(context, programs.winograd, programs, threads, buffers);
  if (programs.stem) add_steps_by_part(context, programs.stem, programs, threads, buffers);
  if (programs.strassen) add_steps_by_part(context, programs.strassen, programs, threads, buffers);
  if (programs.dense) add_conv_step(context, programs.dense, programs.plan, threads, buffers);
}

}  // namespace lathe
