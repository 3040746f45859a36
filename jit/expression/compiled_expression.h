#pragma once
// An Expression in code made with asmjit's Compiler: the second back end of VectorProgram. Registers are virtual:
// asmjit spills them when an expression needs more than the machine has.
#include <asmjit/x86.h>

#include <functional>

#include "jit/expression/register_assignment.h"
#include "src/base/cpu.h"
#include "src/base/expression.h"

namespace lathe {

class CompiledExpression {
 public:
  using Vec = asmjit::x86::Vec;
  CompiledExpression(asmjit::x86::Compiler& compiler, Isa isa, const Expression& expression);

  // Emits one evaluation over vectors. `load_input(slot, into)` must emit the load of input `slot` as float32 lanes.
  // Returns the register of the result, valid until the next call.
  Vec apply(const std::function<void(int slot, const Vec& into)>& load_input);

  Vec new_vec(const char* role);             // of the ISA's width
  asmjit::x86::Mem constant(uint32_t bits);  // for an arithmetic operand: broadcast or a whole vector
  void load_constant(const Vec& target, uint32_t bits);
  // dst = src & mask, all of them registers.
  void bit_and(const Vec& dst, const Vec& src, const Vec& mask);

 private:
  void emit(const AssignedInstruction& assigned, const Vec& target, const std::array<asmjit::Operand, 4>& operands);
  void emit_select(const AssignedInstruction& assigned, const Vec& target,
                   const std::array<asmjit::Operand, 4>& operands);
  void look_up(const Vec& target, const asmjit::Operand& index, size_t number);
  bool has_masks() const { return has_avx512(isa_); }

  asmjit::x86::Compiler& cc_;
  Isa isa_;
  RegisterAssignment assignment_;
  bool reads_input_0_ = false;
  std::vector<Vec> registers_;
  asmjit::x86::KReg mask_;
};

}  // namespace lathe
