#include "jit/expression/compiled_expression.h"

#include <algorithm>

#include "jit/expression/vector_math.h"
#include "jit/expression/vector_program.h"
#include "jit/kernel.h"

namespace lathe {
namespace {

using asmjit::Operand;
namespace Inst = asmjit::x86::Inst;
using Id = asmjit::InstId;

struct ByIsa {
  Id avx2, avx512;
};

ByIsa instruction_of(VecOp op) {
  const auto both = [](Id id) { return ByIsa{id, id}; };
  switch (op) {
    case VecOp::add:
      return both(Inst::kIdVaddps);
    case VecOp::sub:
      return both(Inst::kIdVsubps);
    case VecOp::mul:
      return both(Inst::kIdVmulps);
    case VecOp::div:
      return both(Inst::kIdVdivps);
    case VecOp::min:
      return both(Inst::kIdVminps);
    case VecOp::max:
      return both(Inst::kIdVmaxps);
    case VecOp::bit_and:
      return {Inst::kIdVandps, Inst::kIdVpandd};
    case VecOp::bit_or:
      return {Inst::kIdVorps, Inst::kIdVpord};
    case VecOp::bit_xor:
      return {Inst::kIdVxorps, Inst::kIdVpxord};
    case VecOp::int_add:
      return both(Inst::kIdVpaddd);
    case VecOp::int_sub:
      return both(Inst::kIdVpsubd);
    case VecOp::scale:
      return both(Inst::kIdVscalefps);
    case VecOp::sqrt:
      return both(Inst::kIdVsqrtps);
    case VecOp::round:
      return {Inst::kIdVroundps, Inst::kIdVrndscaleps};
    case VecOp::to_int:
      return both(Inst::kIdVcvtps2dq);
    case VecOp::from_int:
      return both(Inst::kIdVcvtdq2ps);
    case VecOp::shift_left:
      return both(Inst::kIdVpslld);
    case VecOp::shift_right:
      return both(Inst::kIdVpsrad);
    default:
      throw JitError("a vector operation without an instruction");
  }
}

Id fma_of(VecOp op, FmaForm form) {
  const auto pick = [op](Id fma, Id fnma, Id fms) { return op == VecOp::fma ? fma : op == VecOp::fnma ? fnma : fms; };
  if (form == FmaForm::onto_sum) return pick(Inst::kIdVfmadd231ps, Inst::kIdVfnmadd231ps, Inst::kIdVfmsub231ps);
  if (form == FmaForm::onto_product) return pick(Inst::kIdVfmadd213ps, Inst::kIdVfnmadd213ps, Inst::kIdVfmsub213ps);
  return pick(Inst::kIdVfmadd132ps, Inst::kIdVfnmadd132ps, Inst::kIdVfmsub132ps);
}

bool uses_input(const VectorProgram& program, uint32_t number) {
  return std::any_of(program.code.begin(), program.code.end(), [number](const VecInstruction& instruction) {
    return instruction.op == VecOp::input && instruction.immediate == number;
  });
}

constexpr int kSpare = 2;  // vector registers that loads and stores of narrow elements need on the way

// Each constant with the number of instructions that read it, those of most first.
std::vector<std::pair<uint32_t, int>> constants_by_use(const RegisterAssignment& assignment) {
  std::map<uint32_t, int> uses;
  for (const AssignedInstruction& assigned : assignment.code) {
    for (int k = 0; k < operand_count(assigned.instruction.op); ++k) {
      const auto slot = static_cast<size_t>(k);
      if (assigned.registers[slot] < 0) ++uses[assigned.bits[slot]];
    }
  }
  std::vector<std::pair<uint32_t, int>> sorted(uses.begin(), uses.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

}  // namespace

CompiledExpression::CompiledExpression(asmjit::x86::Compiler& compiler, Isa isa, const Expression& expression,
                                       int together)
    : cc_(compiler), isa_(isa) {
  const VectorProgram program = lower_expression(expression, isa);
  assignment_ = assign_registers(program);
  reads_input_0_ = uses_input(program, 0);
  for (int which = 0; which < together; ++which) {
    Evaluation& evaluation = evaluations_.emplace_back();
    for (int i = 0; i < assignment_.registers; ++i) evaluation.registers.push_back(new_vec("value"));
    if (has_masks()) evaluation.mask = cc_.newKw("chosen");
  }
}

int CompiledExpression::together(Isa isa, const Expression& expression, int held, int most) {
  // Shorter ones wait for memory: the CPU finds what it can do by itself.
  constexpr size_t kLong = 12;
  const RegisterAssignment assignment = assign_registers(lower_expression(expression, isa));
  if (assignment.code.size() < kLong) return 1;
  int count = 1;
  while (2 * count <= most && 2 * count * assignment.registers + held + kSpare <= vector_registers(isa)) count *= 2;
  return count;
}

void CompiledExpression::hold_constants(int held) {
  const int taken = static_cast<int>(evaluations_.size()) * assignment_.registers + held + kSpare;
  int left = vector_registers(isa_) - taken;
  for (size_t number = 0; number < assignment_.tables.size() && left > 0; ++number, --left) {
    const Vec into = new_vec("table");
    cc_.vmovups(into, table_in_memory(number));
    held_tables_.emplace(number, into);
  }
  for (const auto& [bits, uses] : constants_by_use(assignment_)) {
    if (left-- <= 0) return;
    const Vec into = new_vec("constant");
    load_constant(into, bits);
    held_constants_.emplace(bits, into);
  }
}

CompiledExpression::Vec CompiledExpression::new_vec(const char* role) {
  if (has_masks()) return cc_.newZmm(role);
  return cc_.newYmm(role);
}

asmjit::x86::Mem CompiledExpression::constant_in_memory(uint32_t bits) {
  if (has_masks()) return cc_.newUInt32Const(asmjit::ConstPoolScope::kLocal, bits)._1to16();
  std::array<uint32_t, 8> lanes;
  lanes.fill(bits);
  return cc_.newConst(asmjit::ConstPoolScope::kLocal, lanes.data(), sizeof lanes);
}

asmjit::x86::Mem CompiledExpression::table_in_memory(size_t number) {
  const LookUpTable& table = assignment_.tables[number];
  return cc_.newConst(asmjit::ConstPoolScope::kLocal, table.data(), sizeof table);
}

Operand CompiledExpression::constant(uint32_t bits) {
  const auto held = held_constants_.find(bits);
  return held == held_constants_.end() ? Operand(constant_in_memory(bits)) : held->second;
}

void CompiledExpression::load_constant(const Vec& target, uint32_t bits) {
  const auto held = held_constants_.find(bits);
  if (held != held_constants_.end())
    cc_.vmovaps(target, held->second);
  else if (bits == 0)
    cc_.vxorps(target.xmm(), target.xmm(), target.xmm());
  else
    cc_.vbroadcastss(target, cc_.newUInt32Const(asmjit::ConstPoolScope::kLocal, bits));
}

void CompiledExpression::bit_and(const Vec& dst, const Vec& src, const Vec& mask) {
  const ByIsa instruction = instruction_of(VecOp::bit_and);
  cc_.emit(has_masks() ? instruction.avx512 : instruction.avx2, dst, src, mask);
}

std::vector<CompiledExpression::Vec> CompiledExpression::apply(
    int count, const std::function<void(int which, int slot, const Vec& into)>& load_input) {
  const auto each = [&](auto body) {
    for (int which = 0; which < count; ++which) body(which, evaluations_[static_cast<size_t>(which)]);
  };
  if (reads_input_0_) each([&](int which, const Evaluation& own) { load_input(which, 0, own.registers[0]); });
  for (const AssignedInstruction& assigned : assignment_.code) {
    each([&](int which, const Evaluation& own) {
      if (assigned.instruction.op != VecOp::input) return emit_assigned(assigned, own);
      const auto target = static_cast<size_t>(assigned.target);
      load_input(which, static_cast<int>(assigned.instruction.immediate), own.registers[target]);
    });
  }
  std::vector<Vec> results;
  each([&](int, const Evaluation& own) {
    results.push_back(own.registers[static_cast<size_t>(std::max(assignment_.result, 0))]);
    if (assignment_.result < 0) load_constant(results.back(), assignment_.result_bits);
  });
  return results;
}

void CompiledExpression::emit_assigned(const AssignedInstruction& assigned, const Evaluation& evaluation) {
  const auto reg = [&](int index) { return evaluation.registers[static_cast<size_t>(index)]; };
  const Vec target = reg(assigned.target);
  const auto moved = static_cast<size_t>(assigned.moved_operand);
  if (assigned.moved_operand >= 0) {
    if (assigned.registers[moved] < 0)
      load_constant(target, assigned.bits[moved]);
    else
      cc_.vmovaps(target, reg(assigned.registers[moved]));
  }
  std::array<Operand, 4> operands;
  for (size_t k = 0; k < static_cast<size_t>(operand_count(assigned.instruction.op)); ++k) {
    if (assigned.moved_operand >= 0 && k == moved)
      operands[k] = target;
    else if (assigned.registers[k] >= 0)
      operands[k] = reg(assigned.registers[k]);
    else if (assigned.instruction.op != VecOp::select || k < 2)
      operands[k] = constant(assigned.bits[k]);
  }
  emit(assigned, evaluation, operands);
}

void CompiledExpression::emit(const AssignedInstruction& assigned, const Evaluation& evaluation,
                              const std::array<Operand, 4>& operands) {
  const Vec target = evaluation.registers[static_cast<size_t>(assigned.target)];
  const VecInstruction& instruction = assigned.instruction;
  const auto id = [&] {
    const ByIsa by_isa = instruction_of(instruction.op);
    return has_masks() ? by_isa.avx512 : by_isa.avx2;
  };
  switch (operand_count(instruction.op)) {
    case 1: {
      if (instruction.op == VecOp::look_up) return look_up(target, operands[0], instruction.immediate);
      const bool has_immediate =
          instruction.op == VecOp::round || instruction.op == VecOp::shift_left || instruction.op == VecOp::shift_right;
      if (has_immediate)
        cc_.emit(id(), target, operands[0], asmjit::imm(instruction.immediate));
      else
        cc_.emit(id(), target, operands[0]);
      return;
    }
    case 2:
      cc_.emit(id(), target, operands[0], operands[1]);
      return;
    case 3: {
      const Id fma = fma_of(instruction.op, assigned.form);
      if (assigned.form == FmaForm::onto_sum) cc_.emit(fma, target, operands[0], operands[1]);
      if (assigned.form == FmaForm::onto_product) cc_.emit(fma, target, operands[1], operands[2]);
      if (assigned.form == FmaForm::onto_product_sum) cc_.emit(fma, target, operands[2], operands[1]);
      return;
    }
    default:
      emit_select(assigned, evaluation, operands);
  }
}

void CompiledExpression::look_up(const Vec& target, const Operand& index, size_t number) {
  const auto held = held_tables_.find(number);
  const Operand table = held == held_tables_.end() ? Operand(table_in_memory(number)) : held->second;
  cc_.emit(Inst::kIdVpermps, target, index, table);
}

void CompiledExpression::emit_select(const AssignedInstruction& assigned, const Evaluation& evaluation,
                                     const std::array<Operand, 4>& operands) {
  const Vec target = evaluation.registers[static_cast<size_t>(assigned.target)];
  const asmjit::Imm immediate(assigned.instruction.immediate);
  const bool yes_is_constant = assigned.registers[2] < 0, no_is_constant = assigned.registers[3] < 0;
  const uint32_t yes = assigned.bits[2], no = assigned.bits[3];
  if (!has_masks()) {
    cc_.emit(Inst::kIdVcmpps, target, operands[0], operands[1], immediate);
    if (yes_is_constant && no_is_constant) {
      cc_.vandps(target, target, constant_in_memory(yes ^ no));
      if (no != 0) cc_.emit(Inst::kIdVxorps, target, target, constant(no));
    } else if (yes_is_constant) {
      cc_.emit(Inst::kIdVblendvps, target, operands[3], constant(yes), target);
    } else {
      cc_.emit(Inst::kIdVblendvps, target, operands[3], operands[2], target);
    }
    return;
  }
  cc_.emit(Inst::kIdVcmpps, evaluation.mask, operands[0], operands[1], immediate);
  if (yes_is_constant && no_is_constant) {
    const asmjit::x86::Mem value = cc_.newUInt32Const(asmjit::ConstPoolScope::kLocal, yes);
    load_constant(target, no);
    cc_.k(evaluation.mask).vbroadcastss(target, value);
  } else if (yes_is_constant) {
    cc_.k(evaluation.mask).emit(Inst::kIdVblendmps, target, operands[3], constant(yes));
  } else {
    cc_.k(evaluation.mask).emit(Inst::kIdVblendmps, target, operands[3], operands[2]);
  }
}

}  // namespace lathe
