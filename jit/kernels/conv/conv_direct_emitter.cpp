#include "jit/kernels/conv/conv_direct_emitter.h"

#include <algorithm>
#include <cstddef>

namespace lathe {

ConvRounds rounds_of(int steps, int unroll) {
  if (steps <= std::max(kStraightSteps, unroll)) return {0, steps};
  return {steps / unroll, steps % unroll};
}

std::shared_ptr<const CodePages> DirectEmitter::emit(std::span<const ConvTileShape> shapes, const std::string& name) {
  for (const ConvTileShape& shape : shapes) {
    begin_entry();
    emit_tile(shape);
  }
  epilogue_.emit_constants();
  return finish(name);
}

void DirectEmitter::emit_tile(const ConvTileShape& shape) {
  shape_ = &shape;
  begin();
  load_arguments();
  assign_registers();
  if (shared_.is_on()) shared_.load_masks(scratch_);
  Xbyak::Label next_tile;
  align(16);
  L(next_tile);
  load_moving_arguments();
  plan_.dots > 0 ? zero_dots() : start_accumulators();
  if (plan_.channels.count > 0) {
    emit_channels();
  } else {
    emit_blocks();
  }
  if (shared_.is_on()) part_shared();
  if (plan_.dots > 0) {
    plan_.has_narrow_groups ? sum_groups() : sum_dots();
    if (plan_.has_bias) add_bias_to_dots();
  }
  add_earlier_visits();
  store_tile();
  step();
  jnz(next_tile, T_NEAR);
  end();
}

void DirectEmitter::emit_blocks() {
  Xbyak::Label whole_done, done;
  if (plan_.tail > 0) {
    test(blocks_left_, blocks_left_);
    jz(whole_done, T_NEAR);
  }
  if (plan_.ahead_lines > 0) xor_(ahead_, ahead_);
  loop_down(blocks_left_, [&] {
    if (plan_.ahead_lines > 0) prefetch_ahead();
    for (int line = 0; line < plan_.source_lines; ++line) prefetcht1(ptr[source_ + 64 * (plan_.source_lines + line)]);
    prefetch_below();
    emit_block(plan_.lanes, true);
  });
  if (plan_.tail > 0) {
    L(whole_done);
    cmp(qword[call_ + offsetof(ConvCall, has_tail)], 0);
    je(done, T_NEAR);
    emit_block(plan_.tail, false);
    L(done);
  }
}

// The parts of the lead come first; then the other half of the sums, cleared by them, gets the bias.
void DirectEmitter::emit_channels() {
  const std::vector<ConvChannelPart> parts = parts_of(plan_.channels, plan_.lanes);
  is_lead_ = plan_.channels.lead > 0;
  for (size_t i = 0; i < parts.size();) {
    if (is_lead_ && !parts[i].is_lead) end_lead();
    size_t same = i + 1;
    while (same < parts.size() && parts[same].first == parts[i].first && parts[same].count == parts[i].count &&
           parts[same].is_lead == parts[i].is_lead)
      ++same;
    const bool is_whole = parts[i].count == plan_.lanes, is_last = same == parts.size();
    first_channel_ = parts[i].first;
    if (is_whole && same - i > 1) {
      mov(blocks_left_, static_cast<uint32_t>(same - i));
      loop_down(blocks_left_, [&] { emit_block(plan_.lanes, true); });
      i = same;
      continue;
    }
    emit_block(parts[i].count, !is_last || same - i > 1, i + 1 < parts.size() && parts[i + 1].block == parts[i].block);
    ++i;
  }
  if (is_lead_) end_lead();
  first_channel_ = 0;
}

void DirectEmitter::end_lead() {
  is_lead_ = false;
  if (!plan_.has_bias) return;
  mov(scratch_, qword[call_ + offsetof(ConvCall, bias)]);
  load(weight(0, 0), scratch_ + 0);
  for (int pixel = 0; pixel < shape_->pixels; ++pixel)
    vaddps(accumulator(pixel, 0), accumulator(pixel, 0), weight(0, 0));
}

void DirectEmitter::load_moving_arguments() {
  mov(source_, qword[call_ + offsetof(ConvCall, source)]);
  mov(weights_, qword[call_ + offsetof(ConvCall, weights)]);
  mov(target_, qword[call_ + offsetof(ConvCall, target)]);
  mov(blocks_left_, qword[call_ + offsetof(ConvCall, blocks)]);
}

// Leaves the zero flag set behind the last tile.
void DirectEmitter::step() {
  mov(scratch_, qword[call_ + offsetof(ConvCall, source_step_bytes)]);
  add(qword[call_ + offsetof(ConvCall, source)], scratch_);
  mov(scratch_, qword[call_ + offsetof(ConvCall, target_step_bytes)]);
  add(qword[call_ + offsetof(ConvCall, target)], scratch_);
  for (size_t i = 0; i < plan_.epilogue.operands.size(); ++i) {
    if (plan_.epilogue.operands[i] == ConvOperand::full)
      add(qword[call_ + offsetof(ConvCall, operands) + 8 * static_cast<int>(i)], scratch_);
  }
  dec(qword[call_ + offsetof(ConvCall, tiles)]);
}

void DirectEmitter::load_arguments() {
  mov(source_block_, qword[call_ + offsetof(ConvCall, source_block_bytes)]);
  mov(target_block_, qword[call_ + offsetof(ConvCall, target_block_bytes)]);
  if (plan_.prefetch_lines > 0) {
    mov(prefetch_, qword[call_ + offsetof(ConvCall, prefetch)]);
    mov(prefetch_step_, qword[call_ + offsetof(ConvCall, prefetch_step)]);
  }
}

// Accumulators first, then broadcasts, then weights at the end. Registers of sums that others hold are free for
// broadcasts until the sums are parted.
void DirectEmitter::assign_registers() {
  const int all = static_cast<int>(pool_.size());
  accumulators_ = shape_->pixels * plan_.blocks;
  const int left = all - accumulators_;
  weight_sets_ = 1;
  if (plan_.embedded) {
    weight_sets_ = std::clamp(left / plan_.blocks, 1, 2);
  } else if (left >= 2 * plan_.blocks + 2) {
    weight_sets_ = 2;
  }
  first_weight_ = all - weight_sets_ * plan_.blocks;
  broadcasts_.assign(pool_.begin() + accumulators_, pool_.begin() + first_weight_);
  for (int pixel = 0; pixel < shape_->pixels; ++pixel) {
    if (!shared_.is_holder(pixel)) broadcasts_.push_back(accumulator(pixel, plan_.blocks - 1));
  }
  next_set_ = next_broadcast_ = 0;
}

void DirectEmitter::prefetch_below() {
  const ConvBelow& below = plan_.below;
  for (int row = 0; row < below.rows; ++row) {
    const auto at = static_cast<int>(below.first_byte + row * below.row_bytes);
    for (int line = 0; line < below.lines; ++line) prefetcht1(ptr[source_ + at + 64 * line]);
  }
}

// What the end of the tile reads and writes, a few lines at a time. Past the tile they are those of the next one.
void DirectEmitter::prefetch_ahead() {
  const auto each_block = [&](auto touch) {
    for (int block = 0; block < plan_.blocks; ++block) {
      if (block > 0) add(scratch_, target_block_);
      for (int line = 0; line < plan_.ahead_lines; ++line) touch(ptr[scratch_ + 64 * line]);
    }
  };
  lea(scratch_, ptr[target_ + ahead_]);
  each_block([&](const Xbyak::Address& at) { prefetchw(at); });
  for (size_t i = 0; i < plan_.epilogue.operands.size(); ++i) {
    if (plan_.epilogue.operands[i] != ConvOperand::full) continue;
    mov(scratch_, qword[call_ + offsetof(ConvCall, operands) + 8 * static_cast<int>(i)]);
    add(scratch_, ahead_);
    each_block([&](const Xbyak::Address& at) { prefetcht0(at); });
  }
  add(ahead_, 64 * plan_.ahead_lines);
}

// All taps of `lanes` channels of one input block, from first_channel_ on. Positions of the moving registers are
// known at emission, so they are put right once, at the end.
void DirectEmitter::emit_block(int lanes, bool more_follow, bool stays_in_block) {
  if (plan_.dots > 0) return add_dots(lanes, more_follow);
  source_moved_ = weights_moved_ = 0;
  const int step_bytes = plan_.blocks * vec_bytes();
  for (const ConvTapRun& tap : shape_->taps) {
    const int64_t weights_at = int64_t{tap.index} * lanes * step_bytes;
    const int steps = tap.run * lanes;
    const ConvRounds rounds = rounds_of(steps, plan_.unroll);
    if (rounds.loops > 0) loop_tap(tap, weights_at, rounds.loops);
    const int first = rounds.loops * plan_.unroll;
    for (int step = 0; step < rounds.rest; ++step) {
      if (step % plan_.unroll == 0) begin_round();
      emit_step(tap, weights_at + int64_t{first + step} * step_bytes, (first + step) * 4, step % plan_.unroll);
      if (step % plan_.unroll == plan_.unroll - 1 || step == rounds.rest - 1) end_round();
    }
  }
  if (!more_follow) return;
  if (source_moved_ != 0) sub(source_, static_cast<uint32_t>(source_moved_));
  if (!stays_in_block) add(source_, source_block_);
  const int64_t all = int64_t{window_taps()} * lanes * step_bytes - weights_moved_;
  if (all != 0) add(weights_, static_cast<uint32_t>(all));
}

void DirectEmitter::loop_tap(const ConvTapRun& tap, int64_t weights_at, int loops) {
  const int step_bytes = plan_.blocks * vec_bytes();
  mov(steps_left_.cvt32(), loops);
  Xbyak::Label top;
  align(32);
  L(top);
  begin_round();
  for (int step = 0; step < plan_.unroll; ++step) emit_step(tap, weights_at + step * step_bytes, step * 4, step);
  end_round();
  add(source_, plan_.unroll * 4);
  add(weights_, plan_.unroll * step_bytes);
  dec(steps_left_.cvt32());
  jnz(top, T_NEAR);
  source_moved_ += loops * plan_.unroll * 4;
  weights_moved_ += int64_t{loops} * plan_.unroll * step_bytes;
}

void DirectEmitter::end_round() {
  if (plan_.prefetch_lines > 0) {
    while (prefetched_ < plan_.prefetch_lines) prefetch_line();
    add(prefetch_, prefetch_step_);
  }
}

// One input channel of all pixels times the weights of all output blocks. `source_at`: bytes from the tap's first.
void DirectEmitter::emit_step(const ConvTapRun& tap, int64_t weights_at, int source_at, int step) {
  const int set = next_set_++ % weight_sets_;
  const int due = plan_.prefetch_lines * (step + 1) / plan_.unroll;
  while (prefetched_ < due) prefetch_line();
  for (int block = 0; block < plan_.blocks; ++block) {
    load_block(used(weight(set, block), block), block,
               weights_ + static_cast<int>(weights_at - weights_moved_ + block * vec_bytes()));
  }
  if (shared_.is_on()) return multiply_shared(tap, 4 * first_channel_ + source_at - source_moved_, set);
  for (const ConvUse& use : tap.uses) {
    const Xbyak::RegExp at = source_ + static_cast<int>(use.source + 4 * first_channel_ + source_at - source_moved_);
    if (plan_.embedded) {
      for (int block = 0; block < plan_.blocks; ++block) {
        vfmadd231ps(used(accumulator(use.pixel, block), block), used(weight(set, block), block), ptr_b[at]);
      }
      continue;
    }
    const Vec value = next_broadcast();
    broadcast(value, at);
    for (int block = 0; block < plan_.blocks; ++block) {
      vfmadd231ps(used(accumulator(use.pixel, block), block), used(weight(set, block), block), used(value, block));
    }
  }
}

}  // namespace lathe
