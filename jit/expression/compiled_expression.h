#pragma once
// An Expression in code made with asmjit's Compiler: the second back end of VectorProgram. Registers are virtual:
// asmjit spills them when an expression needs more than the machine has.
#include <asmjit/x86.h>

#include <functional>
#include <map>
#include <vector>

#include "jit/expression/register_assignment.h"
#include "src/base/cpu.h"
#include "src/base/expression.h"

namespace lathe {

class CompiledExpression {
 public:
  using Vec = asmjit::x86::Vec;
  // `together`: evaluations that a call of apply() may make at most.
  CompiledExpression(asmjit::x86::Compiler& compiler, Isa isa, const Expression& expression, int together = 1);

  // How many evaluations shall run side by side: a power of two, at most `most`, for which there are registers beside
  // `held` others. 1 where an evaluation is short.
  static int together(Isa isa, const Expression& expression, int held, int most);

  // Emits `count` evaluations over vectors, operation by operation, so that one's latency hides behind the others.
  // `load_input(which, slot, into)` must emit the load of input `slot` of evaluation `which` as float32 lanes. Returns
  // the registers of the results, valid until the next call.
  std::vector<Vec> apply(int count, const std::function<void(int which, int slot, const Vec& into)>& load_input);

  // Emits loads of the constants that evaluations read most often into the registers that are free beside `held`
  // others, in front of the loop that calls apply(): a load each for every vector is more than the CPU has ports for.
  void hold_constants(int held);

  Vec new_vec(const char* role);  // of the ISA's width
  // dst = src & mask, all of them registers.
  void bit_and(const Vec& dst, const Vec& src, const Vec& mask);

 private:
  struct Evaluation {
    std::vector<Vec> registers;
    asmjit::x86::KReg mask;
  };
  void emit_assigned(const AssignedInstruction& assigned, const Evaluation& evaluation);
  void emit(const AssignedInstruction& assigned, const Evaluation& evaluation,
            const std::array<asmjit::Operand, 4>& operands);
  void emit_select(const AssignedInstruction& assigned, const Evaluation& evaluation,
                   const std::array<asmjit::Operand, 4>& operands);
  void look_up(const Vec& target, const asmjit::Operand& index, size_t number);
  asmjit::x86::Mem constant_in_memory(uint32_t bits);  // for an arithmetic operand: broadcast or a whole vector
  asmjit::Operand constant(uint32_t bits);             // the same, or the register that holds it
  asmjit::x86::Mem table_in_memory(size_t number);
  void load_constant(const Vec& target, uint32_t bits);
  bool has_masks() const { return has_avx512(isa_); }

  asmjit::x86::Compiler& cc_;
  Isa isa_;
  RegisterAssignment assignment_;
  bool reads_input_0_ = false;
  std::vector<Evaluation> evaluations_;
  std::map<uint32_t, Vec> held_constants_;
  std::map<size_t, Vec> held_tables_;
};

}  // namespace lathe
