#include "jit/kernels/conv_direct.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace lathe {
namespace {

// Straight code up to this many channels; longer runs loop.
constexpr int kStraightSteps = 8;
// Emitted multiply-adds in one set of tile shapes: beyond this, code would not even fit the caches.
constexpr int64_t kMostMultiplyAdds = 400'000;

struct Rounds {
  int loops;  // rounds of `unroll` steps in a loop
  int rest;   // steps behind it
};

Rounds rounds_of(int steps, int unroll) {
  if (steps <= std::max(kStraightSteps, unroll)) return {0, steps};
  return {steps / unroll, steps % unroll};
}

class DirectEmitter : public Emitter {
 public:
  explicit DirectEmitter(const ConvKernelPlan& plan)
      : Emitter(plan.isa),
        plan_(plan),
        epilogue_(*this, plan.isa, plan.epilogue),
        pool_(claim_vecs("pool", free_vecs())) {}

  std::shared_ptr<const CodePages> emit(std::span<const ConvTileShape> shapes, const std::string& name) {
    std::vector<uint32_t> offsets;
    for (const ConvTileShape& shape : shapes) {
      align(64);
      offsets.push_back(static_cast<uint32_t>(getSize()));
      emit_tile(shape);
    }
    epilogue_.emit_constants();
    // The last words of the code are the entries' offsets, so that cached code can be used without its emitter.
    align(4);
    for (uint32_t offset : offsets) dd(offset);
    return finish(name);
  }

 private:
  void emit_tile(const ConvTileShape& shape) {
    shape_ = &shape;
    begin();
    load_arguments();
    assign_registers();
    Xbyak::Label next_tile;
    align(16);
    L(next_tile);
    load_moving_arguments();
    start_accumulators();
    if (plan_.channels.count > 0) {
      emit_channels();
    } else {
      emit_blocks();
    }
    add_earlier_visits();
    store_tile();
    step();
    jnz(next_tile, T_NEAR);
    end();
  }

  void emit_blocks() {
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
  void emit_channels() {
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
      emit_block(parts[i].count, !is_last || same - i > 1,
                 i + 1 < parts.size() && parts[i + 1].block == parts[i].block);
      ++i;
    }
    if (is_lead_) end_lead();
    first_channel_ = 0;
  }

  void end_lead() {
    is_lead_ = false;
    if (!plan_.has_bias) return;
    mov(scratch_, qword[call_ + offsetof(ConvCall, bias)]);
    load(weight(0, 0), scratch_ + 0);
    for (int pixel = 0; pixel < shape_->pixels; ++pixel)
      vaddps(accumulator(pixel, 0), accumulator(pixel, 0), weight(0, 0));
  }

  void load_moving_arguments() {
    mov(source_, qword[call_ + offsetof(ConvCall, source)]);
    mov(weights_, qword[call_ + offsetof(ConvCall, weights)]);
    mov(target_, qword[call_ + offsetof(ConvCall, target)]);
    mov(blocks_left_, qword[call_ + offsetof(ConvCall, blocks)]);
  }

  // Leaves the zero flag set behind the last tile.
  void step() {
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

  void load_arguments() {
    mov(source_block_, qword[call_ + offsetof(ConvCall, source_block_bytes)]);
    mov(target_block_, qword[call_ + offsetof(ConvCall, target_block_bytes)]);
    if (plan_.prefetch_lines > 0) {
      mov(prefetch_, qword[call_ + offsetof(ConvCall, prefetch)]);
      mov(prefetch_step_, qword[call_ + offsetof(ConvCall, prefetch_step)]);
    }
  }

  // Accumulators first, then broadcasts, then weights at the end.
  void assign_registers() {
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
    broadcasts_ = first_weight_ - accumulators_;
    next_set_ = next_broadcast_ = 0;
  }

  const Vec& accumulator(int pixel, int block) const {
    return pool_[static_cast<size_t>(pixel * plan_.blocks + block)];
  }
  const Vec& weight(int set, int block) const {
    return pool_[static_cast<size_t>(first_weight_ + set * plan_.blocks + block)];
  }

  // Multiply-adds of half a vector take half the time; they leave zeros in the other half.
  Vec used(const Vec& vec, int block) const {
    return is_lead_ || (plan_.half_last && block == plan_.blocks - 1) ? Vec(Xbyak::Ymm(vec.getIdx())) : vec;
  }

  // body(pixel, block, offset from target) for each accumulator, with block_at_ moving along.
  template <class Body>
  void for_outputs(Body body) {
    for (int block = 0; block < plan_.blocks; ++block) {
      if (block == 1) mov(block_at_, target_block_);
      if (block > 1) add(block_at_, target_block_);
      for (int pixel = 0; pixel < shape_->pixels; ++pixel) body(pixel, block);
    }
  }
  Xbyak::RegExp output_at(int pixel, int block) const {
    const int32_t offset = shape_->stores[static_cast<size_t>(pixel)];
    return block == 0 ? target_ + offset : target_ + block_at_ + offset;
  }
  Xbyak::RegExp operand_at(int pixel, int block) const {
    const int32_t offset = shape_->stores[static_cast<size_t>(pixel)];
    return block == 0 ? Xbyak::RegExp() + offset : block_at_ + offset;
  }

  void start_accumulators() {
    Xbyak::Label from_zero, started;
    const bool adds_bias = plan_.has_bias && plan_.channels.lead == 0;
    if (adds_bias) {
      cmp(qword[call_ + offsetof(ConvCall, accumulate)], 0);
      jne(from_zero, T_NEAR);
    }
    if (adds_bias) mov(scratch_, qword[call_ + offsetof(ConvCall, bias)]);
    for (int block = 0; block < plan_.blocks; ++block) {
      for (int pixel = 0; pixel < shape_->pixels; ++pixel) {
        if (!adds_bias) {
          zero(accumulator(pixel, block));
        } else if (pixel == 0) {
          load(accumulator(0, block), scratch_ + block * vec_bytes());
        } else {
          vmovaps(accumulator(pixel, block), accumulator(0, block));
        }
      }
    }
    if (!adds_bias) return;
    jmp(started, T_NEAR);
    L(from_zero);
    for (int i = 0; i < accumulators_; ++i) zero(pool_[static_cast<size_t>(i)]);
    L(started);
  }

  // Earlier visits' sums come last: of two short sums the rounding errors are smaller than of one long one.
  void add_earlier_visits() {
    Xbyak::Label done;
    cmp(qword[call_ + offsetof(ConvCall, accumulate)], 0);
    je(done, T_NEAR);
    for_outputs([&](int pixel, int block) {
      const Vec& sum = accumulator(pixel, block);
      vaddps(sum, sum, ptr[output_at(pixel, block)]);
    });
    L(done);
  }

  void prefetch_below() {
    const ConvBelow& below = plan_.below;
    for (int row = 0; row < below.rows; ++row) {
      const auto at = static_cast<int>(below.first_byte + row * below.row_bytes);
      for (int line = 0; line < below.lines; ++line) prefetcht1(ptr[source_ + at + 64 * line]);
    }
  }

  // What the end of the tile reads and writes, a few lines at a time. Past the tile they are those of the next one.
  void prefetch_ahead() {
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
  void emit_block(int lanes, bool more_follow, bool stays_in_block = false) {
    source_moved_ = weights_moved_ = 0;
    const int step_bytes = plan_.blocks * vec_bytes();
    for (const ConvTapRun& tap : shape_->taps) {
      const int64_t weights_at = int64_t{tap.index} * lanes * step_bytes;
      const int steps = tap.run * lanes;
      const Rounds rounds = rounds_of(steps, plan_.unroll);
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
    const int64_t all = int64_t{plan_taps()} * lanes * step_bytes - weights_moved_;
    if (all != 0) add(weights_, static_cast<uint32_t>(all));
  }

  // Taps of the whole window, border or not: their weights are skipped.
  int plan_taps() const { return shape_->taps_in_window; }

  void loop_tap(const ConvTapRun& tap, int64_t weights_at, int loops) {
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

  void begin_round() { prefetched_ = 0; }
  void end_round() {
    if (plan_.prefetch_lines > 0) {
      while (prefetched_ < plan_.prefetch_lines) prefetch_line();
      add(prefetch_, prefetch_step_);
    }
  }
  void prefetch_line() { prefetcht1(ptr[prefetch_ + 64 * prefetched_++]); }

  // One input channel of all pixels times the weights of all output blocks. `source_at`: bytes from the tap's first.
  void emit_step(const ConvTapRun& tap, int64_t weights_at, int source_at, int step) {
    const int set = next_set_++ % weight_sets_;
    const int due = plan_.prefetch_lines * (step + 1) / plan_.unroll;
    while (prefetched_ < due) prefetch_line();
    for (int block = 0; block < plan_.blocks; ++block) {
      load(used(weight(set, block), block),
           weights_ + static_cast<int>(weights_at - weights_moved_ + block * vec_bytes()));
    }
    for (const ConvUse& use : tap.uses) {
      const Xbyak::RegExp at = source_ + static_cast<int>(use.source + 4 * first_channel_ + source_at - source_moved_);
      if (plan_.embedded) {
        for (int block = 0; block < plan_.blocks; ++block) {
          vfmadd231ps(used(accumulator(use.pixel, block), block), used(weight(set, block), block), ptr_b[at]);
        }
        continue;
      }
      const Vec& value = pool_[static_cast<size_t>(accumulators_ + next_broadcast_++ % broadcasts_)];
      broadcast(value, at);
      for (int block = 0; block < plan_.blocks; ++block) {
        vfmadd231ps(used(accumulator(use.pixel, block), block), used(weight(set, block), block), used(value, block));
      }
    }
  }

  void store_tile() {
    Xbyak::Label finish_tile, done;
    if (!epilogue_.is_empty()) {
      cmp(qword[call_ + offsetof(ConvCall, finish)], 0);
      jne(finish_tile, T_NEAR);
    }
    for_outputs([&](int pixel, int block) { store(output_at(pixel, block), accumulator(pixel, block)); });
    if (epilogue_.is_empty()) return;
    jmp(done, T_NEAR);
    L(finish_tile);
    apply_epilogue();
    L(done);
  }

  // Accumulators that the epilogue needs as temporaries wait in the target, where they belong anyway.
  void apply_epilogue() {
    const auto all = pool_.size(), temps = static_cast<size_t>(epilogue_.temps_needed());
    const auto accumulators = static_cast<size_t>(accumulators_);
    std::vector<Vec> free(pool_.begin() + accumulators_, pool_.end());
    const size_t waiting = temps > free.size() ? temps - free.size() : 0;
    if (waiting >= accumulators || all < temps + 1) throw JitError("the epilogue needs too many registers");
    std::vector<Output> outputs;
    for_outputs([&](int pixel, int block) {
      const bool waits = outputs.size() + waiting >= accumulators;
      const Vec& value = accumulator(pixel, block);
      if (waits) {
        store(output_at(pixel, block), value);
        free.push_back(value);
      }
      outputs.push_back({pixel, block, waits});
    });
    int block_there = plan_.blocks - 1;
    for (size_t first = 0; first < outputs.size();) {
      const size_t last = first + group_size(std::span(outputs).subspan(first), free.size(), temps);
      const int block = outputs[first].block;
      if (block != block_there) move_to_block(block, block_there);
      block_there = block;
      finish_outputs(std::span(outputs).subspan(first, last - first), free);
      first = last;
    }
  }

  struct Output {
    int pixel, block;
    bool waits;  // in the target
  };

  // How many of the next outputs are finished together: of one block, with registers for all.
  static size_t group_size(std::span<const Output> outputs, size_t free, size_t temps) {
    constexpr size_t kMost = 6;
    const size_t each = temps + (outputs[0].waits ? 1 : 0);
    size_t size = 1;
    while (size < std::min(kMost, outputs.size()) && (size + 1) * each <= free &&
           outputs[size].block == outputs[0].block && outputs[size].waits == outputs[0].waits)
      ++size;
    return size;
  }

  void move_to_block(int block, int block_there) {
    if (block == 1) {
      mov(block_at_, target_block_);
    } else if (block > 1) {
      for (int i = block_there; i < block; ++i) add(block_at_, target_block_);
    }
  }

  // `free` registers become more by those of the outputs that are done.
  void finish_outputs(std::span<const Output> outputs, std::vector<Vec>& free) {
    std::vector<Vec> values;
    for (const Output& output : outputs) {
      Vec value = accumulator(output.pixel, output.block);
      if (output.waits) {
        value = free.back();
        free.pop_back();
        load(value, output_at(output.pixel, output.block));
      }
      values.push_back(value);
    }
    const auto at = [&](size_t which) { return operand_at(outputs[which].pixel, outputs[which].block); };
    epilogue_.apply(values, free, call_ + offsetof(ConvCall, operands), scratch_, at, outputs[0].block * vec_bytes());
    for (size_t i = 0; i < values.size(); ++i) {
      store(output_at(outputs[i].pixel, outputs[i].block), values[i]);
      free.push_back(values[i]);
    }
  }

  const ConvKernelPlan& plan_;
  ConvEpilogueEmitter epilogue_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), weights_ = claim_gpr("weights"), target_ = claim_gpr("target");
  const Gpr source_block_ = claim_gpr("source block"), target_block_ = claim_gpr("target block");
  const Gpr block_at_ = claim_gpr("block at"), scratch_ = claim_gpr("scratch");
  const Gpr blocks_left_ = claim_gpr("blocks left"), steps_left_ = claim_gpr("steps left");
  const Gpr prefetch_ = claim_gpr("prefetch"), prefetch_step_ = claim_gpr("prefetch step");
  const Gpr ahead_ = claim_gpr("bytes ahead");
  const std::vector<Vec> pool_;
  const ConvTileShape* shape_ = nullptr;
  int accumulators_ = 0, weight_sets_ = 1, first_weight_ = 0, broadcasts_ = 0;
  int next_set_ = 0, next_broadcast_ = 0, prefetched_ = 0;
  int first_channel_ = 0;  // of the input block
  bool is_lead_ = false;
  int64_t source_moved_ = 0, weights_moved_ = 0;
};

// 128 bits over everything in the shapes: kernels of equal shapes are shared between sizes of pictures.
struct Digest {
  uint64_t a = 0xcbf29ce484222325, b = 0x9e3779b97f4a7c15;
  void add(uint64_t value) {
    a = (a ^ value) * 0x100000001b3;
    a ^= a >> 29;
    b = (b + value) * 0xbf58476d1ce4e5b9;
    b ^= b >> 32;
  }
};

std::string digest_of(std::span<const ConvTileShape> shapes) {
  Digest digest;
  for (const ConvTileShape& shape : shapes) {
    digest.add(static_cast<uint64_t>(shape.pixels));
    digest.add(static_cast<uint64_t>(shape.taps_in_window));
    for (int32_t store : shape.stores) digest.add(static_cast<uint32_t>(store));
    digest.add(shape.taps.size());
    for (const ConvTapRun& tap : shape.taps) {
      digest.add(static_cast<uint64_t>(tap.index));
      digest.add(static_cast<uint64_t>(tap.run));
      digest.add(tap.uses.size());
      for (const ConvUse& use : tap.uses) {
        digest.add(static_cast<uint64_t>(use.pixel));
        digest.add(static_cast<uint32_t>(use.source));
      }
    }
  }
  return fmt::format("{:016x}{:016x}", digest.a, digest.b);
}

int rounds_in(const ConvKernelPlan& plan, const ConvTileShape& shape) {
  std::vector<int> counts{plan.lanes};
  if (plan.channels.count > 0) {
    counts.clear();
    for (const ConvChannelPart& part : parts_of(plan.channels, plan.lanes)) counts.push_back(part.count);
  }
  int rounds = 0;
  for (const int count : counts) {
    for (const ConvTapRun& tap : shape.taps) {
      const Rounds r = rounds_of(tap.run * count, plan.unroll);
      rounds += r.loops + (r.rest + plan.unroll - 1) / plan.unroll;
    }
  }
  return rounds;
}

int64_t multiply_adds(const ConvKernelPlan& plan, std::span<const ConvTileShape> shapes) {
  int64_t sum = 0;
  for (const ConvTileShape& shape : shapes) {
    for (const ConvTapRun& tap : shape.taps) {
      const int64_t steps = std::min(tap.run * plan.lanes, plan.unroll + kStraightSteps);
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
  if (b.rows > 0) extras += fmt::format(" below {}+{}*{} lines {}", b.first_byte, b.row_bytes, b.rows, b.lines);
  return fmt::format("{} blocks={} {} unroll={} lanes={}+{}{} prefetch={}+{}+{}{} bias={} then {}", name_of(plan.isa),
                     plan.blocks, plan.embedded ? "embedded" : "separate", plan.unroll, plan.lanes, plan.tail, extras,
                     plan.prefetch_lines, plan.ahead_lines, plan.source_lines, plan.half_last ? " half" : "",
                     plan.has_bias ? 1 : 0, to_string(plan.epilogue));
}

bool fits_registers(const ConvKernelPlan& plan, int pixels) {
  if ((plan.embedded || plan.half_last) && !has_avx512(plan.isa)) return false;
  const int broadcasts = plan.embedded ? 0 : 1;
  return pixels >= 1 && plan.blocks >= 1 && plan.blocks * (pixels + 1) + broadcasts <= vector_registers(plan.isa);
}

ConvKernels ConvKernels::make(const ConvKernelPlan& plan, std::span<const ConvTileShape> shapes) {
  for (const ConvTileShape& shape : shapes) {
    if (!fits_registers(plan, shape.pixels)) throw JitError("a convolution tile needs too many registers");
  }
  if (multiply_adds(plan, shapes) > kMostMultiplyAdds) throw JitError("a convolution needs too much code");
  const std::string key = "conv_direct/" + to_string(plan) + "/" + digest_of(shapes);
  ConvKernels kernels;
  kernels.prefetch_lines_ = plan.prefetch_lines;
  kernels.pages_ = cached_code(key, [&] { return DirectEmitter(plan).emit(shapes, key); });
  const auto* code = static_cast<const std::byte*>(kernels.pages_->entry());
  const auto* offsets = reinterpret_cast<const uint32_t*>(code + kernels.pages_->bytes()) - shapes.size();
  for (size_t i = 0; i < shapes.size(); ++i) {
    kernels.entries_.push_back(reinterpret_cast<Function*>(reinterpret_cast<uintptr_t>(code + offsets[i])));
    kernels.rounds_.push_back(rounds_in(plan, shapes[i]));
  }
  return kernels;
}

}  // namespace lathe
