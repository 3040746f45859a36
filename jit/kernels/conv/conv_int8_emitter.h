#pragma once
// The code of jit/kernels/conv/conv_int8.h. Its own header, so that what surrounds it stays short; nobody else includes
// it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <optional>

#include "jit/kernels/conv/conv_int8_walk.h"

namespace lathe {

class ConvInt8Emitter : public ConvInt8Walk {
 public:
  explicit ConvInt8Emitter(const ConvInt8Plan& plan) : ConvInt8Walk(plan), pool_(claim_vecs("pool", free_vecs())) {}

  std::shared_ptr<const CodePages> emit(std::span<const ConvTileShape> shapes, const std::string& name) {
    std::vector<uint32_t> offsets;
    for (const ConvTileShape& shape : shapes) {
      align(64);
      offsets.push_back(static_cast<uint32_t>(getSize()));
      emit_tiles(shape);
    }
    emit_dot_constants(plan_.dot);
    emit_output_constants();
    // The last words of the code are the entries' offsets, so that cached code can be used without its emitter.
    align(4);
    for (uint32_t offset : offsets) dd(offset);
    return finish(name);
  }

 private:
  void emit_tiles(const ConvTileShape& shape) {
    shape_ = &shape;
    begin();
    load_arguments();
    assign_registers();
    plan_.ahead > 0 ? emit_overlapped() : emit_one_by_one();
    if (plan_.prefetch_lines > 0) mov(qword[call_ + offsetof(ConvInt8Call, prefetch)], prefetch_);
    end();
    emit_aside();
  }

  void emit_one_by_one() {
    Xbyak::Label next_tile;
    L(next_tile);
    start_tile();
    mov(blocks_left_, qword[call_ + offsetof(ConvInt8Call, blocks)]);
    loop_down(blocks_left_, [&] { multiply_block(plan_.groups, true); });
    if (plan_.tail > 0) multiply_block(plan_.tail, false);
    finish_outputs();
    dec(qword[call_ + offsetof(ConvInt8Call, tiles)]);
    jnz(next_tile, T_NEAR);
  }

  // Two sets of accumulators take turns: while one sums up, the outputs of the other are finished.
  void emit_overlapped() {
    Xbyak::Label next_pair, last[2], done;
    set_ = 0;
    straight_uses_ = 0;
    for (const ConvTapRun& tap : shape_->taps) {
      straight_uses_ += plan_.ahead * tap.run * plan_.groups * static_cast<int>(tap.uses.size());
    }
    start_tile();
    sum_up();
    L(next_pair);
    for (int set = 0; set < 2; ++set) {
      dec(qword[call_ + offsetof(ConvInt8Call, tiles)]);
      jz(last[set], T_NEAR);
      queue_outputs(set);
      set_ = 1 - set;
      start_tile();
      sum_up();
    }
    jmp(next_pair, T_NEAR);
    for (int set = 0; set < 2; ++set) {
      L(last[set]);
      queue_outputs(set);
      run_queue(1, 1);
      if (set == 0) jmp(done, T_NEAR);
    }
    L(done);
  }

  // The first input blocks as straight code, with what is queued in between; the others in a loop.
  void sum_up() {
    Xbyak::Label done;
    uses_done_ = 0;
    for (int block = 0; block < plan_.ahead; ++block) emit_block(plan_.groups, true);
    run_queue(1, 1);
    mov(blocks_left_, qword[call_ + offsetof(ConvInt8Call, blocks)]);
    sub(blocks_left_, plan_.ahead);
    jz(done, T_NEAR);
    loop_down(blocks_left_, [&] { emit_block(plan_.groups, true); });
    L(done);
  }

  // What finishes the outputs of a set, in small parts.
  void queue_outputs(int set) {
    queue_.clear();
    queue_done_ = 0;
    for (int block = 0; block < plan_.blocks; ++block) {
      queue_.emplace_back([this, block] { enter_block(block); });
      for (int pixel = 0; pixel < shape_->pixels;) {
        const int count = together(pixel);
        std::vector<Vec> sums;
        for (int i = 0; i < count; ++i) {
          sums.push_back(accumulator(set, pixel + i, block));
          const size_t parts = is_spread() ? 1 : parts_of_sum();
          for (size_t part = 0; part < parts_of_sum(); part += parts) {
            queue_.emplace_back([this, part, parts, sum = sums.back(), pixel, i, block] {
              for (size_t p = part; p < part + parts; ++p) apply_epilogue(p, sum, pixel + i, block);
            });
          }
        }
        queue_.emplace_back([this, sums, pixel] { store_pixels(sums, pixel); });
        pixel += count;
      }
    }
    queue_.emplace_back([this] { advance_target(); });
  }
  // Part by part: a long epilogue at a time would keep the multipliers waiting for their place in the schedulers.
  bool is_spread() const {
    constexpr size_t kShort = 4;
    return parts_of_sum() > kShort;
  }
  // As much of the queue as is due after `done` of `all`.
  void run_queue(int done, int all) {
    const auto due = queue_.size() * static_cast<size_t>(done) / static_cast<size_t>(all);
    while (queue_done_ < due) queue_[queue_done_++]();
  }

  void start_tile() {
    enter_source();
    mov(weights_, qword[call_ + offsetof(ConvInt8Call, weights)]);
    if (keeps_ones()) load_ones(ones());
    is_crossed() ? start_with_terms() : start_accumulators();
  }

  // Accumulators first, then broadcasts, then weights, then what products pass through, then ones; and, where outputs
  // are finished in between, their temporaries. Weights of products in 16 bits stay in memory.
  void assign_registers() {
    set_ = 0;
    const int last = static_cast<int>(pool_.size()) - (plan_.ahead > 0 ? temps_needed() : 0);
    ones_at_ = last - 1;
    products_ = last - lanes_of(plan_.dot) - keeps_ones();
    const int all = is_crossed() ? products_ + (plan_.blocks == 1 ? 2 : 0)
                                 : last - keeps_ones() - dot_needs_temp(plan_.isa, plan_.dot);
    accumulators_ = shape_->pixels * plan_.blocks * (plan_.ahead > 0 ? 2 : 1);
    const int weights = keeps_ones() ? 0 : plan_.blocks;
    if (accumulators_ + weights + 1 > all) throw JitError("the epilogue leaves too few registers for products");
    weight_sets_ = all - accumulators_ >= 2 * weights + 2 ? 2 : 1;
    first_weight_ = all - weight_sets_ * weights;
    broadcasts_ = (first_weight_ - accumulators_) / lanes_of(plan_.dot) * lanes_of(plan_.dot);
    next_set_ = next_broadcast_ = 0;
  }

  const Vec& ones() const { return pool_[static_cast<size_t>(ones_at_)]; }
  const Vec& accumulator(int set, int pixel, int block) const {
    return pool_[static_cast<size_t>((set * shape_->pixels + pixel) * plan_.blocks + block)];
  }
  const Vec& weight(int set, int block) const {
    return pool_[static_cast<size_t>(first_weight_ + set * plan_.blocks + block)];
  }

  void start_accumulators() {
    mov(scratch_, qword[call_ + offsetof(ConvInt8Call, init)]);
    for (int block = 0; block < plan_.blocks; ++block) {
      const Vec& first = accumulator(set_, 0, block);
      load(first, scratch_ + block * vec_bytes());
      for (int pixel = 1; pixel < shape_->pixels; ++pixel) vmovaps(accumulator(set_, pixel, block), first);
    }
  }

  void start_with_terms() {
    mov(scratch_, qword[call_ + offsetof(ConvInt8Call, init)]);
    for (int block = 0; block < plan_.blocks; ++block) load(weight(0, block), scratch_ + block * vec_bytes());
    mov(scratch_, qword[call_ + offsetof(ConvInt8Call, terms)]);
    const Vec& term = pool_[static_cast<size_t>(accumulators_)];
    for (const ConvUse& use : shape_->taps[0].uses) {
      vpbroadcastd(term, dword[scratch_ + use.source / plan_.groups]);
      for (int block = 0; block < plan_.blocks; ++block) {
        vpsubd(accumulator(set_, use.pixel, block), weight(0, block), term);
      }
    }
    move_on(offsetof(ConvInt8Call, terms), offsetof(ConvInt8Call, terms_step));
  }

  void multiply_block(int groups, bool more_follow) {
    if (!is_halved()) return emit_block(groups, more_follow);
    emit_by_size(plan_.dot, large_, [=, this] { emit_block(groups, more_follow); });
    if (more_follow) add(large_, qword[call_ + offsetof(ConvInt8Call, large_block_bytes)]);
  }

  // All taps of one input block of `groups`, as straight code.
  void emit_block(int groups, bool more_follow) {
    const int step_bytes = plan_.blocks * vec_bytes();
    for (const ConvTapRun& tap : shape_->taps) {
      const int64_t weights_at = int64_t{tap.index} * groups * step_bytes;
      const int steps = tap.run * groups, together = adds_fours() && groups % 2 == 0 ? 2 : lanes_of(plan_.dot);
      for (int step = 0; step < steps; step += together) {
        if (step % plan_.unroll == 0) prefetched_ = 0;
        const int due = plan_.prefetch_lines * (step % plan_.unroll + together) / plan_.unroll;
        while (prefetched_ < due) prefetch_line();
        const auto at = static_cast<int>(weights_at + int64_t{step} * step_bytes);
        is_crossed()   ? emit_crossed(tap, at, step * 4)
        : together > 1 ? emit_fours(tap, at, step * 4)
                       : emit_step(tap, at, step * 4);
        if ((step + together) % plan_.unroll == 0 || step + together == steps) end_round();
      }
    }
    if (!more_follow) return;
    add(source_, source_block_);
    add(weights_, static_cast<uint32_t>(shape_->taps_in_window * groups * step_bytes));
  }

  void end_round() {
    if (plan_.prefetch_lines == 0) return;
    while (prefetched_ < plan_.prefetch_lines) prefetch_line();
    add(prefetch_, prefetch_step_);
  }
  void prefetch_line() { prefetcht1(ptr[prefetch_ + kCacheLine * prefetched_++]); }

  // One group of channels of all pixels times the weights of all output blocks.
  void emit_step(const ConvTapRun& tap, int weights_at, int source_at) {
    const int set = next_set_++ % weight_sets_;
    const auto weights_of = [&](int block) { return weights_ + (weights_at + block * vec_bytes()); };
    if (!keeps_ones()) {
      for (int block = 0; block < plan_.blocks; ++block) load(weight(set, block), weights_of(block));
    }
    const auto multiply = [&](const ConvUse& use, std::optional<Half> half) {
      const Vec& value = pool_[static_cast<size_t>(accumulators_ + next_broadcast_++ % broadcasts_)];
      vpbroadcastd(value, dword[source_ + (use.source + source_at)]);
      if (half) take_half(plan_.dot, value, *half);
      const Vec& temp = pool_[static_cast<size_t>(products_)];
      for (int block = 0; block < plan_.blocks; ++block) {
        const Vec& sum = accumulator(set_, use.pixel, block);
        keeps_ones() ? dot_in_16_bits(sum, value, weights_of(block), {temp, temp, ones()})
                     : dot(plan_.dot, sum, value, weight(set, block), temp);
      }
    };
    for (const ConvUse& use : tap.uses) {
      for_halves([&](std::optional<Half> half) { multiply(use, half); });
      ++uses_done_;
      const bool is_last = &use == &tap.uses.back();
      if (plan_.ahead > 0 && (is_spread() || is_last)) run_queue(std::min(uses_done_, straight_uses_), straight_uses_);
    }
  }

  // Two groups of channels.
  void emit_fours(const ConvTapRun& tap, int weights_at, int source_at) {
    const auto other = [&](int i) { return pool_[static_cast<size_t>(accumulators_ + i)]; };
    const std::array<Vec, 2> values = {other(0), other(1)};
    for (const ConvUse& use : tap.uses) {
      for (int group = 0; group < 2; ++group) {
        vpbroadcastd(values[static_cast<size_t>(group)], dword[source_ + (use.source + source_at + 4 * group)]);
      }
      for (int block = 0; block < plan_.blocks; ++block) {
        const auto at = [&](int group) {
          return weights_ + (weights_at + (group * plan_.blocks + block) * vec_bytes());
        };
        dot_of_fours(accumulator(set_, use.pixel, block), values, {at(0), at(1)}, {other(2), other(3), ones()});
      }
    }
  }

  // Two groups, whose weights are the two sets. The last block's sums take the place of the broadcasts.
  void emit_crossed(const ConvTapRun& tap, int weights_at, int source_at) {
    for (int lane = 0; lane < 2; ++lane) {
      for (int block = 0; block < plan_.blocks; ++block) {
        load(weight(lane, block), weights_ + (weights_at + (lane * plan_.blocks + block) * vec_bytes()));
      }
    }
    const auto pair_at = [&](int first) {
      return std::array{pool_[static_cast<size_t>(first)], pool_[static_cast<size_t>(first + 1)]};
    };
    for (const ConvUse& use : tap.uses) {
      const std::array<Vec, 2> values = pair_at(accumulators_ + next_broadcast_ % broadcasts_);
      next_broadcast_ += 2;
      for (int lane = 0; lane < 2; ++lane) {
        vpbroadcastd(values[static_cast<size_t>(lane)], dword[source_ + (use.source + source_at + 4 * lane)]);
      }
      for (int block = 0; block < plan_.blocks; ++block) {
        const bool is_last = block == plan_.blocks - 1;
        cross(accumulator(set_, use.pixel, block), values, {weight(0, block), weight(1, block)},
              is_last ? values : pair_at(products_));
      }
    }
  }

  // --- Outputs. Accumulators that the epilogue needs as temporaries wait on the stack.
  void finish_outputs() {
    const int temps = temps_needed(), all = static_cast<int>(pool_.size());
    if (accumulators_ + temps <= all) {
      queue_outputs(0);
      return run_queue(1, 1);
    }
    // One register more, to bring the waiting ones back into.
    const int kept = all - temps - 1;
    if (kept < 0) throw JitError("the epilogue needs too many registers");
    mov(scratch_, rsp);
    sub(rsp, kCacheLine + (accumulators_ - kept) * vec_bytes());
    and_(rsp, -kCacheLine);
    mov(ptr[rsp], scratch_);
    for (int i = kept; i < accumulators_; ++i) store(rsp + waiting(i - kept), pool_[static_cast<size_t>(i)]);
    finish_with_waiting(kept);
    mov(rsp, ptr[rsp]);
    advance_target();
  }
  int waiting(int i) const { return kCacheLine + i * vec_bytes(); }

  // Registers of pixels that are done take those that wait.
  void finish_with_waiting(int kept) {
    std::vector<Vec> free = {pool_[static_cast<size_t>(kept)]};
    for (int block = 0; block < plan_.blocks; ++block) {
      enter_block(block);
      for (int pixel = 0; pixel < shape_->pixels;) {
        int count = together(pixel);
        const auto index = [&](int i) { return (pixel + i) * plan_.blocks + block; };
        const auto missing = [&] {
          int waiting = 0;
          for (int i = 0; i < count; ++i) waiting += index(i) >= kept;
          return waiting > static_cast<int>(free.size());
        };
        while (missing()) count /= 2;
        std::vector<Vec> sums;
        for (int i = 0; i < count; ++i) {
          if (index(i) < kept) {
            sums.push_back(pool_[static_cast<size_t>(index(i))]);
          } else {
            sums.push_back(free.back());
            free.pop_back();
            load(sums.back(), rsp + waiting(index(i) - kept));
          }
          for (size_t part = 0; part < parts_of_sum(); ++part) apply_epilogue(part, sums.back(), pixel + i, block);
        }
        store_pixels(sums, pixel);
        free.insert(free.end(), sums.begin(), sums.end());
        pixel += count;
      }
    }
  }

  int together(int pixel) const { return stored_together(shape_->stores, pixel); }

  void apply_epilogue(size_t part, const Vec& sum, int pixel, int block) {
    const int element = shape_->stores[static_cast<size_t>(pixel)] / (bits_of(plan_.store.dtype) / 8);
    finish_sum(part, sum, temps(),
               [&](size_t operand, const Vec& into) { load_element(operand, into, element, block); });
  }
  std::span<const Vec> temps() const { return std::span<const Vec>(pool_).last(static_cast<size_t>(temps_needed())); }

  void store_pixels(std::span<const Vec> sums, int pixel) {
    store_finished(target_ + shape_->stores[static_cast<size_t>(pixel)], sums, temps());
  }

  // Target and operands point into this output block.
  void enter_block(int block) {
    block == 0 ? mov(target_, qword[call_ + offsetof(ConvInt8Call, target)]) : add(target_, target_block_);
    for (size_t i = 0; i < std::min(operands().size(), held_.size()); ++i) {
      if (block == 0) mov(held_[i], qword[call_ + offsetof(ConvInt8Call, operands) + 8 * i]);
      if (block == 0 || operands()[i] != ConvOperand::full) continue;
      add(held_[i], qword[call_ + offsetof(ConvInt8Call, operand_block_bytes) + 8 * i]);
    }
  }
  // The operand's address in this block.
  const Gpr& operand_at(size_t operand, int block) {
    if (operand < held_.size()) return held_[operand];
    mov(scratch_, qword[call_ + offsetof(ConvInt8Call, operands) + 8 * operand]);
    for (int i = 0; i < block && operands()[operand] == ConvOperand::full; ++i) {
      add(scratch_, qword[call_ + offsetof(ConvInt8Call, operand_block_bytes) + 8 * operand]);
    }
    return scratch_;
  }

  void load_element(size_t operand, const Vec& into, int element, int block) {
    const int bytes = operand_bytes(operand);
    const Gpr& at = operand_at(operand, block);
    const int offset = operands()[operand] == ConvOperand::per_channel ? block * lanes() * bytes : element * bytes;
    load_operand(operand, into, at + (operands()[operand] == ConvOperand::scalar ? 0 : offset));
  }
  const Gpr weights_ = claim_gpr("weights"), blocks_left_ = claim_gpr("blocks left");
  // Addresses of the first operands, in the output block that is being finished.
  const std::array<Gpr, 3> held_ = {claim_gpr("operand"), claim_gpr("operand"), claim_gpr("operand")};
  const std::vector<Vec> pool_;
  const ConvTileShape* shape_ = nullptr;
  int set_ = 0;  // of the accumulators that sum up
  int accumulators_ = 0, weight_sets_ = 1, first_weight_ = 0, broadcasts_ = 0, products_ = 0, ones_at_ = 0;
  std::vector<std::function<void()>> queue_;
  size_t queue_done_ = 0;
  int uses_done_ = 0, straight_uses_ = 1;  // broadcasts among which a queue is spread
  int next_set_ = 0, next_broadcast_ = 0, prefetched_ = 0;
};

}  // namespace lathe
