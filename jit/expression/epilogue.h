#pragma once
// An Expression applied to accumulators inside a hand-scheduled kernel.
#include <xbyak/xbyak.h>

#include <functional>
#include <memory>
#include <span>

#include "jit/expression/vector_program.h"
#include "src/base/cpu.h"
#include "src/base/expression.h"

namespace lathe {

class EpilogueEmitter {
 public:
  // Input 0 of `expression` is the accumulator. Throws JitError when the expression has no vector form.
  EpilogueEmitter(Xbyak::CodeGenerator& code, Isa isa, const Expression& expression,
                  BytesTimesConstants products = BytesTimesConstants::multiplied);
  ~EpilogueEmitter();

  // Vector registers needed besides the accumulator, inputs included. A kernel short of registers first spills
  // accumulators to its stack frame.
  int temps_needed() const;

  // Emits accumulator = expression(accumulator, inputs...). `load_input(slot, into)` must emit the load of input `slot`
  // (>= 1) as float32 lanes into a register. `temps`: at least temps_needed() registers, clobbered. Opmask k7 is
  // clobbered on AVX-512, no general register is.
  void apply(const Xbyak::Xmm& accumulator, std::span<const Xbyak::Xmm> temps,
             const std::function<void(int slot, const Xbyak::Xmm& into)>& load_input);

  // The same in parts, one instruction or two each, that other code may come between: all of them, in order.
  size_t parts() const;
  void apply_part(size_t part, const Xbyak::Xmm& accumulator, std::span<const Xbyak::Xmm> temps,
                  const std::function<void(int slot, const Xbyak::Xmm& into)>& load_input);
  // load_input() must give this input as it is, a byte in each lane of 32 bits (BytesTimesConstants).
  bool takes_bytes(int slot) const;

  // The same for several accumulators at a time, operation by operation, so that one's latency hides behind the others.
  // `temps`: temps_needed() for each. `load_input(which, slot, into)`: for the accumulator of this number.
  void apply(std::span<const Xbyak::Xmm> accumulators, std::span<const Xbyak::Xmm> temps,
             const std::function<void(size_t which, int slot, const Xbyak::Xmm& into)>& load_input);

  // The constants that apply() addresses by rip. Call once, behind the code's last instruction.
  void emit_constants();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lathe
