#pragma once
// How a call of jit/kernels/conv/conv_int8.h goes from tile to tile and from panel to panel: all addresses are in the
// call's arguments, which move. Only conv_int8_emitter.h includes it.
#include <cstddef>
#include <vector>

#include "jit/kernels/conv/conv_int8.h"
#include "jit/kernels/conv/conv_int8_outputs.h"

namespace lathe {

class ConvInt8Walk : public ConvInt8Outputs {
 protected:
  explicit ConvInt8Walk(const ConvInt8Plan& plan)
      : ConvInt8Outputs(plan.isa, plan.epilogue, plan.store, plan.bytes), plan_(plan) {}

  void load_arguments() {
    mov(source_block_, qword[call_ + offsetof(ConvInt8Call, source_block_bytes)]);
    mov(target_block_, qword[call_ + offsetof(ConvInt8Call, target_block_bytes)]);
    copy(offsetof(ConvInt8Call, ends_left), offsetof(ConvInt8Call, tiles_in_panel));
    copy(offsetof(ConvInt8Call, starts_left), offsetof(ConvInt8Call, tiles_in_panel));
    inc(qword[call_ + offsetof(ConvInt8Call, starts_left)]);  // counted before a tile, not behind it
    begin_prefetches();
  }
  void copy(size_t to, size_t from) {
    mov(scratch_, qword[call_ + from]);
    mov(qword[call_ + to], scratch_);
  }
  void begin_prefetches() {
    if (plan_.prefetch_lines == 0) return;
    mov(prefetch_, qword[call_ + offsetof(ConvInt8Call, prefetch)]);
    mov(prefetch_step_, qword[call_ + offsetof(ConvInt8Call, prefetch_step)]);
    copy(offsetof(ConvInt8Call, prefetches_left), offsetof(ConvInt8Call, prefetch_until));
  }
  void count_prefetches() {
    if (plan_.prefetch_lines == 0) return;
    Xbyak::Label goes_on;
    dec(qword[call_ + offsetof(ConvInt8Call, prefetches_left)]);
    jnz(goes_on, T_NEAR);
    xor_(prefetch_step_.cvt32(), prefetch_step_.cvt32());
    L(goes_on);
  }

  // The next tile's source, in source_.
  void enter_source() {
    turn(offsetof(ConvInt8Call, starts_left), [&] { turn_sources(); });
    count_prefetches();
    mov(source_, qword[call_ + offsetof(ConvInt8Call, source)]);
    move_on(offsetof(ConvInt8Call, source), offsetof(ConvInt8Call, source_step));
    if (!is_halved()) return;
    mov(large_, qword[call_ + offsetof(ConvInt8Call, large)]);
    inc(qword[call_ + offsetof(ConvInt8Call, large)]);
  }
  // At a panel's end.
  template <class Body>
  void turn(size_t counter, Body body) {
    Xbyak::Label goes_on;
    dec(qword[call_ + counter]);
    jnz(goes_on, T_NEAR);
    copy(counter, offsetof(ConvInt8Call, tiles_in_panel));
    body();
    L(goes_on);
  }
  void turn_sources() {
    move_on(offsetof(ConvInt8Call, source), offsetof(ConvInt8Call, source_turn));
    if (is_crossed()) move_on(offsetof(ConvInt8Call, terms), offsetof(ConvInt8Call, terms_turn));
    if (is_halved()) move_on(offsetof(ConvInt8Call, large), offsetof(ConvInt8Call, large_turn));
    move_on(offsetof(ConvInt8Call, weights), offsetof(ConvInt8Call, weights_turn));
    move_on(offsetof(ConvInt8Call, init), offsetof(ConvInt8Call, init_turn));
    move_on(offsetof(ConvInt8Call, prefetch), offsetof(ConvInt8Call, weights_turn));
    begin_prefetches();
  }
  void turn_targets() {
    move_on(offsetof(ConvInt8Call, target), offsetof(ConvInt8Call, target_turn));
    for (size_t i = 0; i < operands().size(); ++i) {
      if (operands()[i] == ConvOperand::scalar) continue;
      move_on(offsetof(ConvInt8Call, operands) + 8 * i, offsetof(ConvInt8Call, operand_turn) + 8 * i);
    }
  }
  void move_on(size_t place, size_t step) {
    mov(scratch_, qword[call_ + step]);
    add(qword[call_ + place], scratch_);
  }
  // Everything that belongs to the outputs goes on to the next tile.
  void advance_target() {
    move_on(offsetof(ConvInt8Call, target), offsetof(ConvInt8Call, target_step));
    for (size_t i = 0; i < operands().size(); ++i) {
      if (operands()[i] != ConvOperand::full) continue;
      move_on(offsetof(ConvInt8Call, operands) + 8 * i, offsetof(ConvInt8Call, operand_step) + 8 * i);
    }
    turn(offsetof(ConvInt8Call, ends_left), [&] { turn_targets(); });
  }

  bool is_crossed() const { return plan_.dot == Int8Dot::crossed; }
  bool keeps_ones() const { return multiplies_in_16_bits(plan_.dot); }
  bool is_halved() const { return lathe::is_halved(plan_.dot); }
  const std::vector<ConvOperand>& operands() const { return plan_.epilogue.operands; }

  static constexpr int kCacheLine = 64;

  const ConvInt8Plan& plan_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), target_ = claim_gpr("target");
  const Gpr source_block_ = claim_gpr("source block"), target_block_ = claim_gpr("target block");
  const Gpr scratch_ = claim_gpr("scratch");
  const Gpr prefetch_ = claim_gpr("prefetch"), prefetch_step_ = claim_gpr("prefetch step");
  const Gpr large_ = is_halved() ? claim_gpr("large") : scratch_;
};

}  // namespace lathe
