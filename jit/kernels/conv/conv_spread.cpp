#include "jit/kernels/conv/conv_spread.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "jit/emitter.h"
#include "jit/kernels/conv/conv_epilogue_emitter.h"

namespace lathe {
namespace {

constexpr int kWindow = 4;  // values of a 2x2 window: as many as a 128-bit part of a vector has lanes
constexpr int kPart = kWindow * static_cast<int>(sizeof(float));

// Vectors of pixels at a time: enough independent sums to hide a multiply-add's latency, as many as registers allow.
int vectors_of(const SpreadPlan& plan) {
  if (has_avx512(plan.isa)) return plan.channels == 1 || plan.turns() == 1 ? 4 : 2;
  return 2;
}

class SpreadEmitter : public Emitter {
 public:
  explicit SpreadEmitter(const SpreadPlan& plan)
      : Emitter(plan.isa), plan_(plan), vectors_(vectors_of(plan)), epilogue_(*this, plan.isa, plan.epilogue) {}

  void emit() {
    claim();
    begin();
    load_arguments();
    for_each_tile([&] {
      begin_sums();
      add_blocks();
      turn_back();
      for (int channel = 0; channel < plan_.channels; ++channel) finish_channel(channel);
    });
    end();
    if (has_masks()) emit_picks();
    epilogue_.emit_constants();
  }

 private:
  int parts() const { return lanes() / kWindow; }  // pixels in a vector

  void claim() {
    args_ = argument(0);
    source_ = claim_gpr("source");
    at_ = claim_gpr("pixel");
    last_ = claim_gpr("last tile");
    from_ = claim_gpr("from");
    weights_ = claim_gpr("weights");
    left_ = claim_gpr("blocks left");
    block_bytes_ = claim_gpr("block bytes");
    to_ = claim_gpr("to");
    row_bytes_ = claim_gpr("row bytes");
    operands_ = claim_gpr("operands");
    temp_ = claim_gpr("temporary");
    sums_ = claim_vecs("sums", plan_.channels * vectors_ * plan_.turns());
    pool_ = claim_vecs("pool", free_vecs());
    spare_ = pool_;
    spare_.insert(spare_.end(), sums_.begin() + plan_.channels * vectors_, sums_.end());
    const int beside_sums = plan_.turns() > 1 ? vectors_ + 1 : 2 * vectors_ + 1;
    if (static_cast<int>(pool_.size()) < beside_sums || static_cast<int>(spare_.size()) < epilogue_.temps_needed())
      throw JitError("no registers for " + to_string(plan_));
  }

  void load_arguments() {
    mov(source_, ptr[args_ + offsetof(SpreadArgs, source)]);
    mov(block_bytes_, ptr[args_ + offsetof(SpreadArgs, block_bytes)]);
    mov(row_bytes_, ptr[args_ + offsetof(SpreadArgs, row_bytes)]);
    mov(operands_, ptr[args_ + offsetof(SpreadArgs, operands)]);
    mov(last_, ptr[args_ + offsetof(SpreadArgs, pixels)]);
    sub(last_, plan_.tile_pixels());
  }

  // The last tile is moved back to end with the row.
  template <class Body>
  void for_each_tile(Body body) {
    Xbyak::Label top, done;
    xor_(at_.cvt32(), at_.cvt32());
    align(16);
    L(top);
    body();
    cmp(at_, last_);
    jge(done, T_NEAR);
    add(at_, plan_.tile_pixels());
    cmp(at_, last_);
    cmovg(at_, last_);
    jmp(top, T_NEAR);
    L(done);
  }

  const Vec& sum(int channel, int i, int turn = 0) const {
    return sums_[static_cast<size_t>((turn * plan_.channels + channel) * vectors_ + i)];
  }
  const Vec& pixels(int i) const { return pool_[static_cast<size_t>(i)]; }
  const Vec& value(int i) const { return pool_[static_cast<size_t>(vectors_ + i)]; }
  const Vec& weight() const { return pool_[static_cast<size_t>(2 * vectors_)]; }

  void broadcast_part(const Vec& vec, const Xbyak::RegExp& at) {
    if (has_masks()) {
      vbroadcastf32x4(Xbyak::Zmm(vec.getIdx()), ptr[at]);
    } else {
      vbroadcastf128(Xbyak::Ymm(vec.getIdx()), ptr[at]);
    }
  }

  void begin_sums() {
    mov(temp_, ptr[args_ + offsetof(SpreadArgs, bias)]);
    for (int channel = 0; channel < plan_.channels; ++channel) {
      broadcast_part(sum(channel, 0), temp_ + channel * kPart);
      for (int i = 1; i < vectors_; ++i) vmovaps(sum(channel, i), sum(channel, 0));
      for (int turn = 1; turn < plan_.turns(); ++turn) {
        for (int i = 0; i < vectors_; ++i) zero(sum(channel, i, turn));
      }
    }
    mov(weights_, ptr[args_ + offsetof(SpreadArgs, weights)]);
    mov(from_, at_);
    shl(from_, lanes() == 16 ? 6 : 5);
    add(from_, source_);
  }

  void add_blocks() {
    const int blocks = plan_.in_channels / lanes(), rest = plan_.in_channels % lanes();
    const auto whole = [&] {
      add_channels(lanes());
      add(from_, block_bytes_);
      add(weights_, lanes() * plan_.channels * kPart);
    };
    if (blocks == 1) whole();
    if (blocks > 1) {
      mov(left_, blocks);
      loop_down(left_, whole);
    }
    if (rest > 0) add_channels(rest);
  }

  // Four channels of each pixel in a part.
  void add_channels(int count) {
    prefetch();
    for (int first = 0; first < count; first += kWindow) {
      for (int i = 0; i < vectors_; ++i) load_pixels(pixels(i), from_ + i * parts() * vec_bytes() + first * 4);
      if (plan_.turns() > 1) {
        add_turns(first);
        continue;
      }
      // One of them at a time is spread over the part.
      for (int c = first; c < std::min(count, first + kWindow); ++c) {
        for (int i = 0; i < vectors_; ++i) vpermilps(value(i), pixels(i), static_cast<uint8_t>((c - first) * 0x55));
        for (int channel = 0; channel < plan_.channels; ++channel) {
          broadcast_part(weight(), weights_ + (c * plan_.channels + channel) * kPart);
          for (int i = 0; i < vectors_; ++i) vfmadd231ps(sum(channel, i), value(i), weight());
        }
      }
    }
  }

  // Pictures of this size come from beyond L2, a page of each block at a time.
  void prefetch() {
    constexpr int kLine = 64, kAhead = 6 << 10;
    for (int at = 0; at < plan_.tile_pixels() * vec_bytes(); at += kLine) prefetcht0(ptr[from_ + kAhead + at]);
  }

  void add_turns(int first) {
    for (int turn = 0; turn < kWindow; ++turn) {
      for (int channel = 0; channel < plan_.channels; ++channel) {
        broadcast_part(pool_.back(), weights_ + ((first + turn) * plan_.channels + channel) * kPart);
        for (int i = 0; i < vectors_; ++i) vfmadd231ps(sum(channel, i, turn), pixels(i), pool_.back());
      }
    }
  }

  void turn_back() {
    for (int turn = 1; turn < plan_.turns(); ++turn) {
      int lanes = 0;
      for (int lane = 0; lane < kWindow; ++lane) lanes |= (lane + kWindow - turn) % kWindow << (2 * lane);
      for (int channel = 0; channel < plan_.channels; ++channel) {
        for (int i = 0; i < vectors_; ++i) {
          const Vec& turned = sum(channel, i, turn);
          vpermilps(turned, turned, static_cast<uint8_t>(lanes));
          vaddps(sum(channel, i), sum(channel, i), turned);
        }
      }
    }
  }

  void load_pixels(const Vec& vec, const Xbyak::RegExp& at) {
    vmovups(Xbyak::Xmm(vec.getIdx()), ptr[at]);
    for (int part = 1; part < parts(); ++part) {
      const Xbyak::Address pixel = ptr[at + part * vec_bytes()];
      if (has_masks()) {
        vinsertf32x4(Xbyak::Zmm(vec.getIdx()), Xbyak::Zmm(vec.getIdx()), pixel, static_cast<uint8_t>(part));
      } else {
        vinsertf128(Xbyak::Ymm(vec.getIdx()), Xbyak::Ymm(vec.getIdx()), pixel, static_cast<uint8_t>(part));
      }
    }
  }

  void finish_channel(int channel) {
    apply_epilogue(channel);
    lea(to_, ptr[at_ * 8]);  // two values a row of the window
    add(to_, ptr[args_ + offsetof(SpreadArgs, target)]);
    if (channel > 0) {
      mov(temp_, ptr[args_ + offsetof(SpreadArgs, plane_bytes)]);
      imul(temp_, temp_, channel);
      add(to_, temp_);
    }
    for (int i = 0; i < vectors_; i += 2) {
      for (const bool is_lower : {false, true}) {
        const Xbyak::RegExp at = to_ + i / 2 * vec_bytes();
        pick_row(pool_[0], sum(channel, i), sum(channel, i + 1), is_lower);
        store(is_lower ? at + row_bytes_ : at, pool_[0]);
      }
    }
  }

  void apply_epilogue(int channel) {
    if (epilogue_.is_empty()) return;
    const int temps = epilogue_.temps_needed();
    const int together = temps == 0 ? vectors_ : std::clamp(static_cast<int>(spare_.size()) / temps, 1, vectors_);
    for (int i = 0; i < vectors_; i += together) {
      const int count = std::min(together, vectors_ - i);
      epilogue_.apply(
          std::span(&sum(channel, i), static_cast<size_t>(count)), spare_, operands_, temp_,
          [&](size_t) { return Xbyak::RegExp(temp_); }, 0);
    }
  }

  // One row of the windows of two vectors of pixels, side by side.
  void pick_row(const Vec& into, const Vec& first, const Vec& second, bool is_lower) {
    if (has_masks()) {
      vmovups(into, ptr[rip + picks_[is_lower ? 1 : 0]]);
      vpermi2pd(into, first, second);
      return;
    }
    is_lower ? vunpckhpd(into, first, second) : vunpcklpd(into, first, second);
    vpermpd(Xbyak::Ymm(into.getIdx()), Xbyak::Ymm(into.getIdx()), 0xd8);
  }

  void emit_picks() {
    for (int row = 0; row < 2; ++row) {
      align(64);
      L(picks_[row]);
      for (uint64_t i = 0; i < 8; ++i) dq(2 * i + static_cast<uint64_t>(row));
    }
  }

  const SpreadPlan plan_;
  const int vectors_;
  ConvEpilogueEmitter epilogue_;
  Gpr args_, source_, at_, last_, from_, weights_, left_, block_bytes_, to_, row_bytes_, operands_, temp_;
  std::vector<Vec> sums_, pool_, spare_;  // spare_: what is free when sums are done
  Xbyak::Label picks_[2];
};

}  // namespace

int SpreadPlan::turns() const { return channels <= (has_avx512(isa) ? 3 : 1) ? kWindow : 1; }

int64_t packed_weight(const SpreadPlan& plan, int64_t place) {
  const int64_t value = place % kWindow, channel = place / kWindow % plan.channels;
  int64_t from = place / kWindow / plan.channels, of_window = value;
  if (plan.turns() > 1) {
    of_window = (value + from) % kWindow;
    from = from / kWindow * kWindow + value;
  }
  return from < plan.in_channels ? (from * plan.channels + channel) * kWindow + of_window : -1;
}

int SpreadPlan::tile_pixels() const { return vectors_of(*this) * vector_lanes(isa) / kWindow; }

bool SpreadPlan::is_valid() const {
  return in_channels >= 1 && channels >= 1 && channels <= 4 &&
         std::all_of(epilogue.operands.begin(), epilogue.operands.end(),
                     [](ConvOperand operand) { return operand == ConvOperand::scalar; });
}

std::string to_string(const SpreadPlan& plan) {
  return "spread " + vector_set(plan.isa) + " " + std::to_string(plan.in_channels) + ">" +
         std::to_string(plan.channels) + " 2x2 | " + to_string(plan.epilogue);
}

Kernel<SpreadFn> spread_kernel(const SpreadPlan& plan) {
  const std::string key = to_string(plan);
  if (!plan.is_valid()) throw JitError("not valid: " + key);
  return Kernel<SpreadFn>(cached_code(key, [&] {
    SpreadEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
