#include "jit/kernels/conv/conv_direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "jit/kernels/conv/conv_direct_emitter.h"

namespace lathe {
namespace {

// Emitted multiply-adds in one set of tile shapes: beyond this, code would not even fit the caches.
constexpr int64_t kMostMultiplyAdds = 400'000;

int rounds_in(const ConvKernelPlan& plan, const ConvTileShape& shape) {
  std::vector<int> counts{plan.lanes};
  if (plan.channels.count > 0) {
    counts.clear();
    for (const ConvChannelPart& part : parts_of(plan.channels, plan.lanes)) counts.push_back(part.count);
  }
  int rounds = 0;
  for (const int count : counts) {
    for (const ConvTapRun& tap : shape.taps) {
      const ConvRounds r = rounds_of(tap.run * count, plan.unroll);
      rounds += r.loops + (r.rest + plan.unroll - 1) / plan.unroll;
    }
  }
  return rounds;
}

bool fits_dots(const ConvKernelPlan& plan, int pixels) {
  constexpr int kWork = 3;  // inputs, or what sums are added up in
  const bool fits_tail = plan.tail == 0 || plan.tail >= plan.dots;
  const bool is_few = plan.has_narrow_groups
                          ? plan.dots >= 2 && plan.dots < plan.lanes && std::has_single_bit(unsigned(plan.dots))
                          : plan.dots <= ConvKernelPlan::kMostDots;
  return pixels >= 1 && is_few && plan.blocks == 1 && !plan.embedded && fits_tail &&
         plan.lanes == vector_lanes(plan.isa) && plan.channels.count == 0 && plan.last_share == 1 &&
         plan.prefetch_lines + plan.ahead_lines == 0 && plan.dots * (pixels + 1) + kWork <= vector_registers(plan.isa);
}

int64_t multiply_adds(const ConvKernelPlan& plan, std::span<const ConvTileShape> shapes) {
  int64_t sum = 0;
  for (const ConvTileShape& shape : shapes) {
    for (const ConvTapRun& tap : shape.taps) {
      const ConvRounds rounds = rounds_of(tap.run * plan.lanes, plan.unroll);
      const int64_t steps = plan.dots > 0 ? plan.dots : rounds.rest + (rounds.loops > 0 ? plan.unroll : 0);
      sum += static_cast<int64_t>(tap.uses.size()) * plan.blocks * steps;
    }
  }
  return sum;
}

}  // namespace

std::vector<ConvChannelPart> parts_of(const ConvChannels& channels, int lanes) {
  std::vector<ConvChannelPart> parts;
  for (int done = 0; done < channels.count; done += parts.back().count) {
    const int at = channels.skipped + done;
    const bool is_lead = done < channels.lead;
    const int to_end = (is_lead ? channels.lead : channels.count) - done;
    parts.push_back({at / lanes, at % lanes, std::min(lanes - at % lanes, to_end), is_lead});
  }
  return parts;
}

std::string to_string(const ConvKernelPlan& plan) {
  const ConvChannels& c = plan.channels;
  const ConvBelow& b = plan.below;
  std::string extras;
  if (c.count > 0) extras += fmt::format(" channels {}-{} lead {}", c.skipped, c.skipped + c.count, c.lead);
  if (plan.dots > 0) extras += fmt::format(" dots {}{}", plan.dots, plan.has_narrow_groups ? " groups" : "");
  if (b.rows > 0) extras += fmt::format(" below {}+{}*{} lines {}", b.first_byte, b.row_bytes, b.rows, b.lines);
  return fmt::format("{} blocks={} {} unroll={} lanes={}+{}{} prefetch={}+{}+{}{}{} bias={} then {}", name_of(plan.isa),
                     plan.blocks, plan.embedded ? "embedded" : "separate", plan.unroll, plan.lanes, plan.tail, extras,
                     plan.prefetch_lines, plan.ahead_lines, plan.source_lines, plan.half_last ? " half" : "",
                     plan.last_share > 1 ? fmt::format(" share {}", plan.last_share) : "", plan.has_bias ? 1 : 0,
                     to_string(plan.epilogue));
}

bool fits_registers(const ConvKernelPlan& plan, int pixels) {
  if ((plan.embedded || plan.half_last) && !has_avx512(plan.isa)) return false;
  if (plan.last_share > 1 && (plan.embedded || plan.blocks < 2 || !has_avx512(plan.isa))) return false;
  if (plan.dots > 0) return fits_dots(plan, pixels);
  const int broadcasts = plan.embedded ? 0 : 1;
  return pixels >= 1 && plan.blocks >= 1 && plan.blocks * (pixels + 1) + broadcasts <= vector_registers(plan.isa);
}

ConvKernels ConvKernels::make(const ConvKernelPlan& plan, std::span<const ConvTileShape> shapes) {
  for (const ConvTileShape& shape : shapes) {
    if (!fits_registers(plan, shape.pixels)) throw JitError("a convolution tile needs too many registers");
  }
  if (multiply_adds(plan, shapes) > kMostMultiplyAdds) throw JitError("a convolution needs too much code");
  const std::string key = "conv_direct/" + to_string(plan) + "/" + key_of(shapes);
  ConvKernels kernels;
  kernels.prefetch_lines_ = plan.prefetch_lines;
  kernels.code_ = {cached_code(key, [&] { return DirectEmitter(plan).emit(shapes, key); }), shapes.size()};
  for (size_t i = 0; i < shapes.size(); ++i) {
    kernels.rounds_.push_back(rounds_in(plan, shapes[i]));
  }
  return kernels;
}

}  // namespace lathe
