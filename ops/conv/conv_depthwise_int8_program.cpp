#include "ops/conv/conv_depthwise_int8_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "jit/kernels/conv/conv_tiling.h"
#include "ops/conv/conv_depthwise_program.h"

namespace lathe {
namespace {

// Cycles on Zen 4, of vectors of 512 bits; ratios matter. Shuffles of reads run beside products for the most part.
constexpr double kProductCycles = 1, kReadCycles = 1.3, kStoreCycles = 1.7, kTileCycles = 12;
constexpr int kMostRows = 8;

int widest_tile(const ConvAxis& axis, int most) { return static_cast<int>(sorted_parts(axis.out, most).front().size); }

}  // namespace

double DepthwiseInt8Problem::flop() const {
  return 2.0 * static_cast<double>(batch * channels * shape.y.out * shape.x.out) * shape.taps();
}

DepthwiseInt8Plan choose_depthwise_int8_plan(const DepthwiseInt8Problem& problem) {
  DepthwiseInt8Plan plan;
  plan.isa = int8_isa(problem.isa);
  plan.dot = problem.dot;
  plan.is_signed = problem.is_signed;
  plan.epilogue = problem.epilogue;
  plan.store = problem.store;
  // Some registers stay for reads, weights and the epilogue.
  const int most = has_avx512(problem.isa) ? 20 : 8;
  const ConvShape& shape = problem.shape;
  DepthwiseInt8Plan best = plan;
  double best_cost = -1;
  for (int rows = 1; rows <= std::min<int64_t>(kMostRows, shape.y.out); ++rows) {
    for (int cols = 1; cols * rows <= most && cols <= shape.x.out; ++cols) {
      if (widest_tile(shape.x, cols) != cols || widest_tile(shape.y, rows) != rows) continue;
      for (int step = 1; step <= group_of(problem.dot); step *= 2) {
        plan.rows = rows;
        plan.cols = cols;
        plan.step = step;
        const DepthwiseInt8Work work = depthwise_int8_work(plan, shape);
        const double pairs = dot_needs_temp(plan.isa, plan.dot) ? 1.5 : 1;
        const double cost = work.products * kProductCycles * pairs + work.reads * kReadCycles +
                            work.stores * kStoreCycles + work.tiles * kTileCycles;
        if (best_cost >= 0 && cost >= best_cost) continue;
        best = plan;
        best_cost = cost;
      }
    }
  }
  return best;
}

DepthwiseInt8Program::DepthwiseInt8Program(DepthwiseInt8Problem problem, int threads,
                                           std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)), operand_batch_bytes_(std::move(operand_batch_bytes)) {
  plan_ = choose_depthwise_int8_plan(problem_);
  make_kernels();
  const ConvAxis& x = problem_.shape.x;
  reads_ = make_depthwise_reads(x, group_of(plan_.dot), plan_.step, widest_tile(x, plan_.cols));
  split_ = split_planes(problem_.flop(), static_cast<int>(kernels_.strips().size()), problem_.batch, threads);
}

// The epilogue may need more registers than the rule left.
void DepthwiseInt8Program::make_kernels() {
  while (true) {
    try {
      kernels_ = DepthwiseInt8Kernels::make(plan_, problem_.shape);
      return;
    } catch (const JitError&) {
      if (plan_.rows * plan_.cols == 1) throw;
      (plan_.rows > 1 ? plan_.rows : plan_.cols) -= 1;
    }
  }
}

std::string DepthwiseInt8Program::plan_text() const {
  return fmt::format("depthwise int8 {} {} ({}x{}) step={}", name_of(plan_.isa), to_string(plan_.dot), plan_.rows,
                     plan_.cols, plan_.step);
}

std::string DepthwiseInt8Program::packing() const {
  std::string text = fmt::format("depthwise_int8.1 {} c{} y{}", to_string(plan_.dot), problem_.shape.lanes,
                                 problem_.shape.y.taps.size());
  for (const DepthwiseLanes& lanes : reads_.sets) {
    text += " ";
    for (const int tap : lanes) text += std::to_string(tap) + ",";
  }
  return text;
}

int64_t DepthwiseInt8Program::block_weights() const {
  return static_cast<int64_t>(problem_.shape.y.taps.size() * reads_.sets.size()) * problem_.shape.lanes * 4;
}

void DepthwiseInt8Program::pack(const ByteMatrix& weights, const ByteZeros& zeros, void* packed, int32_t* sums) const {
  const ConvShape& shape = problem_.shape;
  const bool is_wide = plan_.dot == Int8Dot::pairs;
  const auto width = static_cast<int64_t>(shape.x.taps.size());
  const auto value_of = [&](int64_t channel, int64_t tap) {
    const uint8_t byte = static_cast<const uint8_t*>(weights.data)[channel * weights.row_stride + tap];
    return int{weights.is_signed ? static_cast<int8_t>(byte) : byte} - (is_wide ? zeros.at(channel) : 0);
  };
  std::memset(packed, 0, static_cast<size_t>(packed_bytes()));
  std::fill(sums, sums + problem_.blocks() * shape.lanes, 0);
  for (int64_t channel = 0; channel < problem_.channels; ++channel) {
    for (int64_t tap = 0; tap < static_cast<int64_t>(shape.taps()); ++tap) sums[channel] += value_of(channel, tap);
    auto* out = static_cast<char*>(packed) + channel / shape.lanes * block_weights() + channel % shape.lanes * 4;
    for (int64_t ty = 0; ty < static_cast<int64_t>(shape.y.taps.size()); ++ty) {
      for (const DepthwiseLanes& lanes : reads_.sets) {
        for (size_t i = 0; i < lanes.size(); ++i) {
          if (lanes[i] < 0) continue;
          const auto value = static_cast<int16_t>(value_of(channel, ty * width + lanes[i]));
          // The low byte comes first.
          std::memcpy(out + i * (is_wide ? 2 : 1), &value, is_wide ? 2 : 1);
        }
        out += shape.lanes * 4;
      }
    }
  }
}

void DepthwiseInt8Program::run(const DepthwiseInt8Arguments& arguments, int share) const noexcept {
  const auto planes = static_cast<long>(problem_.batch * problem_.blocks());
  const Range strips =
      split_evenly(static_cast<long>(kernels_.strips().size()), split_.pixel_part(share), split_.pixels);
  const long each = strips.end - strips.begin;
  const Range units = split_evenly(planes * each, split_.channel_part(share), split_.channels);
  for (long unit = units.begin; unit < units.end; ++unit) {
    run_strip(arguments, unit / each, kernels_.strips()[static_cast<size_t>(strips.begin + unit % each)]);
  }
}

void DepthwiseInt8Program::run_strip(const DepthwiseInt8Arguments& arguments, int64_t plane,
                                     const DepthwiseInt8Strip& strip) const noexcept {
  const ConvShape& shape = problem_.shape;
  const int64_t blocks = problem_.blocks(), image = plane / blocks, block = plane % blocks;
  const auto* source = static_cast<const char*>(arguments.source) + plane * problem_.source_block_bytes();
  const auto* border = static_cast<const char*>(arguments.border);
  const char* rows[DepthwiseInt8Kernels::kMostRows];
  size_t count = 0;
  for (const int64_t below : kernels_.rows(strip.entry)) {
    const int64_t row = strip.begin * shape.y.stride + below;
    rows[count++] = row >= 0 && row < shape.y.in ? source + row * shape.x.in * shape.lanes : border;
  }
  const int64_t element = block * problem_.target_block_elements() + strip.begin * shape.x.out * shape.lanes;
  DepthwiseInt8Call call;
  call.rows = rows;
  call.border = border;
  call.weights = static_cast<const char*>(arguments.weights) + block * block_weights();
  call.init = arguments.init + block * shape.lanes;
  call.target = static_cast<char*>(arguments.target) +
                (image * blocks * problem_.target_block_elements() + element) * problem_.out_bytes();
  for (size_t i = 0; i < problem_.epilogue.operands.size(); ++i) {
    const int64_t bytes = bits_of(problem_.epilogue.expression->inputs[i + 1]) / 8;
    const char* at = static_cast<const char*>(arguments.operands[i]) + image * operand_batch_bytes_[i];
    if (problem_.epilogue.operands[i] == ConvOperand::full) at += element * bytes;
    if (problem_.epilogue.operands[i] == ConvOperand::per_channel) at += block * shape.lanes * bytes;
    call.operands[i] = at;
  }
  kernels_.entry(strip.entry)(&call);
}

}  // namespace lathe
