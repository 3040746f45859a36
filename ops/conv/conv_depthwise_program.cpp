#include "ops/conv/conv_depthwise_program.h"

#include <fmt/format.h>

#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {

bool is_depthwise(const ConvProblem& problem) {
  return problem.groups == problem.in_channels && problem.out_channels % problem.groups == 0 && problem.groups > 1 &&
         !problem.is_transposed && problem.phases.size() == 1 && problem.in_lanes() == problem.lanes;
}

namespace {

constexpr double kFlopWorth = 3;  // loads bound it

}  // namespace

DepthwiseProgram::DepthwiseProgram(ConvProblem problem, Isa isa, int threads, std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)), operand_batch_bytes_(std::move(operand_batch_bytes)) {
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  plan_ = choose_depthwise_plan(isa, problem_.phases[0]);
  plan_.multiplier = static_cast<int>(problem_.out_channels / problem_.in_channels);
  plan_.has_bias = problem_.has_bias;
  plan_.epilogue = problem_.epilogue;
  while (true) {
    try {
      kernels_ = DepthwiseKernels::make(plan_, problem_.phases[0]);
      break;
    } catch (const JitError&) {
      // The epilogue may need more registers than the rule left.
      if (plan_.rows * plan_.cols == 1) throw;
      (plan_.rows > 1 ? plan_.rows : plan_.cols) -= 1;
    }
  }
  const auto strips = static_cast<int>(kernels_.strips().size());
  split_ = split_planes(problem_.flop() * kFlopWorth, strips, problem_.batch, threads);
}

std::string DepthwiseProgram::plan_text() const {
  return fmt::format("depthwise {} ({}x{}){}", name_of(plan_.isa), plan_.rows, plan_.cols,
                     plan_.multiplier > 1 ? fmt::format(" times {}", plan_.multiplier) : "");
}

std::string DepthwiseProgram::packing() const { return fmt::format("depthwise.1 c{}", problem_.lanes); }

int64_t DepthwiseProgram::packed_size() const {
  return problem_.out_blocks() * problem_.lanes * problem_.window_y * problem_.window_x;
}

void DepthwiseProgram::pack(const float* weights, float* packed) const {
  const int64_t window = problem_.window_y * problem_.window_x;
  for (int64_t block = 0; block < problem_.out_blocks(); ++block) {
    for (int64_t tap = 0; tap < window; ++tap) {
      for (int64_t lane = 0; lane < problem_.lanes; ++lane) {
        const int64_t channel = block * problem_.lanes + lane;
        *packed++ = channel < problem_.out_channels ? weights[channel * window + tap] : 0.0f;
      }
    }
  }
}

// Rows, where they come out nearly even: the convolutions before and behind are split over pixels too.
ConvSplit split_planes(double flop, int strips, int64_t batch, int threads) {
  constexpr int kManyStrips = 8;  // of each thread
  const int shares = worthwhile_shares(flop, threads);
  const bool by_rows = batch == 1 && threads > 1 && (strips % threads == 0 || strips >= kManyStrips * threads);
  ConvSplit split;
  split.keeps_pixels = by_rows;
  split.pixels = by_rows ? threads : 1;
  split.channels = shares / split.pixels;
  return split;
}

void DepthwiseProgram::run(const ConvArguments& arguments, int share) const noexcept {
  const auto planes = static_cast<long>(problem_.batch * problem_.out_blocks());
  const Range strips =
      split_evenly(static_cast<long>(kernels_.strips().size()), split_.pixel_part(share), split_.pixels);
  const Range units = split_evenly(planes * (strips.end - strips.begin), split_.channel_part(share), split_.channels);
  run_units(arguments, units, strips);
}

void DepthwiseProgram::run_blocks(const ConvArguments& arguments, int64_t begin, int64_t end) const noexcept {
  const auto strips = static_cast<long>(kernels_.strips().size());
  run_units(arguments, {begin * strips, end * strips}, {0, strips});
}

void DepthwiseProgram::run_units(const ConvArguments& arguments, const Range& units,
                                 const Range& strips) const noexcept {
  const int64_t blocks = problem_.out_blocks(), lanes = problem_.lanes;
  const int64_t window = problem_.window_y * problem_.window_x;
  const int64_t source_block =
      arguments.source_block_bytes != 0 ? arguments.source_block_bytes : problem_.source_block_bytes();
  const int64_t target_block =
      arguments.target_block_bytes != 0 ? arguments.target_block_bytes : problem_.target_block_bytes();
  const long each = strips.end - strips.begin;
  DepthwiseCall call = kernels_.call();
  for (long unit = units.begin; unit < units.end; ++unit) {
    const int64_t plane = unit / each, image = plane / blocks, block = plane % blocks;
    const DepthwiseStrip& strip = kernels_.strips()[static_cast<size_t>(strips.begin + unit % each)];
    const int64_t volume = problem_.volume(image);
    const int64_t source = problem_.source_image(image) + block / plan_.multiplier * source_block + strip.source;
    const int64_t target = block * target_block + problem_.target_frame(image) + strip.target;
    call.source = reinterpret_cast<const float*>(reinterpret_cast<intptr_t>(arguments.source) + source);
    call.target =
        reinterpret_cast<float*>(reinterpret_cast<intptr_t>(arguments.target) + problem_.target_volume(image) + target);
    call.weights = arguments.weights + block * window * lanes;
    call.bias = arguments.bias + block * lanes;
    call.lanes = kernels_.lanes_of(block);
    for (size_t i = 0; i < problem_.epilogue.operands.size(); ++i) {
      const char* at = static_cast<const char*>(arguments.operands[i]) + volume * operand_batch_bytes_[i];
      if (problem_.epilogue.operands[i] == ConvOperand::full) at += target;
      if (problem_.epilogue.operands[i] == ConvOperand::per_channel) at += block * lanes * 4;
      call.operands[i] = at;
    }
    kernels_.entry(strip)(&call);
  }
}

}  // namespace lathe
