#include "jit/kernels/conv/conv_int8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "jit/kernels/conv/conv_int8_emitter.h"

namespace lathe {
namespace {

// Emitted dot products in one set of tile shapes: beyond this, code would not even fit the caches.
constexpr int64_t kMostProducts = 400'000;

// 128 bits over everything in the shapes: kernels of equal shapes are shared between sizes of pictures.
std::string digest_of(std::span<const ConvTileShape> shapes) {
  uint64_t a = 0xcbf29ce484222325, b = 0x9e3779b97f4a7c15;
  const auto add = [&](int64_t value) {
    a = (a ^ static_cast<uint64_t>(value)) * 0x100000001b3;
    a ^= a >> 29;
    b = (b + static_cast<uint64_t>(value)) * 0xbf58476d1ce4e5b9;
    b ^= b >> 32;
  };
  for (const ConvTileShape& shape : shapes) {
    add(shape.pixels);
    add(shape.taps_in_window);
    for (const int32_t store : shape.stores) add(store);
    add(static_cast<int64_t>(shape.taps.size()));
    for (const ConvTapRun& tap : shape.taps) {
      add(tap.index);
      add(tap.run);
      add(static_cast<int64_t>(tap.uses.size()));
      for (const ConvUse& use : tap.uses) {
        add(use.pixel);
        add(use.source);
      }
    }
  }
  return fmt::format("{:016x}{:016x}", a, b);
}

bool has_all_taps(const ConvTileShape& shape) {
  int taps = 0;
  for (const ConvTapRun& tap : shape.taps) {
    if (static_cast<int>(tap.uses.size()) != shape.pixels) return false;
    taps += tap.run;
  }
  return taps == shape.taps_in_window && taps > 0;
}

// Beside the sums: a broadcast and the weights of all blocks, two lanes each, and, but for the last block, what is
// multiplied.
bool fits_crossed(const ConvInt8Plan& plan, int pixels) {
  if (plan.ahead > 0 || plan.groups % 2 != 0 || plan.tail % 2 != 0) return false;
  const int others = plan.blocks > 1 ? 4 : 2;
  return pixels >= 1 && plan.blocks >= 1 && plan.blocks * (pixels + 2) + others <= vector_registers(plan.isa);
}

}  // namespace

std::string to_string(const ConvInt8Plan& plan) {
  return fmt::format("{} {} b{} u{} g{} t{} a{} p{}{} {} > {}", name_of(plan.isa), to_string(plan.dot), plan.blocks,
                     plan.unroll, plan.groups, plan.tail, plan.ahead, plan.prefetch_lines,
                     plan.bytes == BytesTimesConstants::multiplied  ? ""
                     : plan.bytes == BytesTimesConstants::looked_up ? " by tables"
                                                                    : " inputs by tables",
                     to_string(plan.epilogue), to_string(plan.store));
}

bool fits_registers(const ConvInt8Plan& plan, int pixels) {
  if (!has_dot(plan.isa, plan.dot) || plan.dot == Int8Dot::s8s8 || plan.dot == Int8Dot::s8u8_halved) return false;
  if (plan.dot == Int8Dot::crossed) return fits_crossed(plan, pixels);
  if (has_fours(plan.dot) && plan.ahead > 0) return false;
  // A broadcast, products on their way, and weights or, beside those in memory, ones; by fours all of these twice.
  int others = 1 + dot_needs_temp(plan.isa, plan.dot) + (multiplies_in_16_bits(plan.dot) ? 1 : plan.blocks);
  if (has_fours(plan.dot)) others += 2;
  const int sets = plan.ahead > 0 ? 2 : 1;
  return pixels >= 1 && plan.blocks >= 1 && plan.blocks * pixels * sets + others <= vector_registers(plan.isa);
}

ConvInt8Kernels ConvInt8Kernels::make(const ConvInt8Plan& plan, std::span<const ConvTileShape> shapes) {
  int64_t products = 0;
  for (const ConvTileShape& shape : shapes) {
    if (!fits_registers(plan, shape.pixels)) throw JitError("a convolution tile needs too many registers");
    if (plan.dot == Int8Dot::crossed && !has_all_taps(shape)) throw JitError("crossed products lack taps");
    for (const ConvTapRun& tap : shape.taps) {
      // Halved ones are there four times: by fours, by twos, and both halves.
      const int64_t each = has_fours(plan.dot) ? 4 : 1;
      products += each * static_cast<int64_t>(tap.uses.size()) * tap.run * plan.blocks * (plan.groups + plan.tail);
    }
  }
  if (products > kMostProducts) throw JitError("a convolution needs too much code");
  const std::string key = "conv_int8/" + to_string(plan) + "/" + digest_of(shapes);
  ConvInt8Kernels kernels;
  kernels.prefetch_lines_ = plan.prefetch_lines;
  kernels.pages_ = cached_code(key, [&] { return ConvInt8Emitter(plan).emit(shapes, key); });
  const auto* code = static_cast<const std::byte*>(kernels.pages_->entry());
  const auto* offsets = reinterpret_cast<const uint32_t*>(code + kernels.pages_->bytes()) - shapes.size();
  for (size_t i = 0; i < shapes.size(); ++i) {
    kernels.entries_.push_back(reinterpret_cast<Function*>(reinterpret_cast<uintptr_t>(code + offsets[i])));
    int rounds = 0;
    for (const ConvTapRun& tap : shapes[i].taps) rounds += (tap.run * plan.groups + plan.unroll - 1) / plan.unroll;
    kernels.rounds_.push_back(rounds);
  }
  return kernels;
}

}  // namespace lathe
