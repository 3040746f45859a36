#include "jit/expression/epilogue.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>

#include "jit/expression/register_assignment.h"
#include "jit/expression/vector_program.h"
#include "jit/kernel.h"
#include "src/base/check.h"

namespace lathe {

using Reg = Xbyak::Xmm;

struct EpilogueEmitter::State {
  State(Xbyak::CodeGenerator& generator, Isa target, const Expression& expression, BytesTimesConstants products)
      : code(generator),
        isa(target),
        assignment(assign_registers(lower_expression(expression, target, products))),
        tables(assignment.tables.size()) {}

  Xbyak::CodeGenerator& code;
  Isa isa;
  RegisterAssignment assignment;
  std::map<uint32_t, size_t> constant_index;
  std::deque<std::pair<uint32_t, Xbyak::Label>> constants;  // labels must not move
  std::deque<Xbyak::Label> tables;

  bool has_masks() const { return has_avx512(isa); }
  Reg vec(int index) const {
    if (has_masks()) return Xbyak::Zmm(index);
    return Xbyak::Ymm(index);
  }

  Xbyak::RegRip place_of(uint32_t bits) {
    const auto [found, is_new] = constant_index.try_emplace(bits, constants.size());
    if (is_new) constants.emplace_back(bits, Xbyak::Label());
    return code.rip + constants[found->second].second;
  }
  Xbyak::Address memory(uint32_t bits) {
    const Xbyak::RegRip place = place_of(bits);
    return has_masks() ? code.ptr_b[place] : code.ptr[place];
  }
  void load_constant(const Reg& target, uint32_t bits) {
    if (bits != 0) {
      code.vbroadcastss(target, code.dword[place_of(bits)]);
    } else {
      const Xbyak::Xmm low(target.getIdx());  // writing the low part clears the rest
      target.getIdx() < 16 ? code.vxorps(low, low, low) : code.vpxord(target, target, target);
    }
  }

  template <class Registers>
  void emit_assigned(const AssignedInstruction& assigned, Registers reg);
  void emit(const AssignedInstruction& assigned, const Reg& target, std::span<const Reg> operands);
  void emit_fma(const AssignedInstruction& assigned, const Reg& target, std::span<const Reg> operands);
  void emit_select(const AssignedInstruction& assigned, const Reg& target, std::span<const Reg> operands);
  void emit_bitwise(VecOp op, const Reg& target, const Reg& a, const Xbyak::Operand& b);
  void emit_unary(const VecInstruction& instruction, const Reg& target, const Reg& a);
  void emit_binary(VecOp op, const Reg& target, const Reg& a, const Xbyak::Operand& b);
};

void EpilogueEmitter::State::emit_bitwise(VecOp op, const Reg& target, const Reg& a, const Xbyak::Operand& b) {
  switch (op) {
    case VecOp::bit_and:
      return has_masks() ? code.vpandd(target, a, b) : code.vandps(target, a, b);
    case VecOp::bit_or:
      return has_masks() ? code.vpord(target, a, b) : code.vorps(target, a, b);
    default:
      return has_masks() ? code.vpxord(target, a, b) : code.vxorps(target, a, b);
  }
}

void EpilogueEmitter::State::emit_binary(VecOp op, const Reg& target, const Reg& a, const Xbyak::Operand& b) {
  switch (op) {
    case VecOp::add:
      return code.vaddps(target, a, b);
    case VecOp::sub:
      return code.vsubps(target, a, b);
    case VecOp::mul:
      return code.vmulps(target, a, b);
    case VecOp::div:
      return code.vdivps(target, a, b);
    case VecOp::min:
      return code.vminps(target, a, b);
    case VecOp::max:
      return code.vmaxps(target, a, b);
    case VecOp::bit_and:
    case VecOp::bit_or:
    case VecOp::bit_xor:
      return emit_bitwise(op, target, a, b);
    case VecOp::int_add:
      return code.vpaddd(target, a, b);
    case VecOp::int_sub:
      return code.vpsubd(target, a, b);
    case VecOp::scale:
      return code.vscalefps(target, a, b);
    default:
      throw JitError("not a vector operation of two operands");
  }
}

void EpilogueEmitter::State::emit_unary(const VecInstruction& instruction, const Reg& target, const Reg& a) {
  const auto immediate = static_cast<uint8_t>(instruction.immediate);
  switch (instruction.op) {
    case VecOp::sqrt:
      return code.vsqrtps(target, a);
    case VecOp::round:
      return has_masks() ? code.vrndscaleps(target, a, immediate) : code.vroundps(target, a, immediate);
    case VecOp::to_int:
      return code.vcvtps2dq(target, a);
    case VecOp::from_int:
      return code.vcvtdq2ps(target, a);
    case VecOp::look_up:
      return code.vpermps(Xbyak::Zmm(target.getIdx()), Xbyak::Zmm(a.getIdx()),
                          code.ptr[code.rip + tables[instruction.immediate]]);
    case VecOp::shift_left:
      return code.vpslld(target, a, immediate);
    case VecOp::shift_right:
      return code.vpsrad(target, a, immediate);
    default:
      throw JitError("not a vector operation of one operand");
  }
}

void EpilogueEmitter::State::emit_fma(const AssignedInstruction& assigned, const Reg& target,
                                      std::span<const Reg> operands) {
  const Reg& b = operands[1];
  const Reg& sum = operands[2];
  const VecOp op = assigned.instruction.op;
  // The last operand of each form may lie in memory.
  const auto emit_form = [&](auto fma, auto fnma, auto fms, const Reg& second, size_t last) {
    const auto with = [&](const Xbyak::Operand& operand) {
      if (op == VecOp::fma) return (code.*fma)(target, second, operand);
      if (op == VecOp::fnma) return (code.*fnma)(target, second, operand);
      (code.*fms)(target, second, operand);
    };
    assigned.registers[last] < 0 ? with(memory(assigned.bits[last])) : with(operands[last]);
  };
  using Code = Xbyak::CodeGenerator;
  if (assigned.form == FmaForm::onto_sum)
    emit_form(&Code::vfmadd231ps, &Code::vfnmadd231ps, &Code::vfmsub231ps, operands[0], 1);
  else if (assigned.form == FmaForm::onto_product)
    emit_form(&Code::vfmadd213ps, &Code::vfnmadd213ps, &Code::vfmsub213ps, b, 2);
  else
    emit_form(&Code::vfmadd132ps, &Code::vfnmadd132ps, &Code::vfmsub132ps, sum, 1);
}

void EpilogueEmitter::State::emit_select(const AssignedInstruction& assigned, const Reg& target,
                                         std::span<const Reg> operands) {
  const auto immediate = static_cast<uint8_t>(assigned.instruction.immediate);
  const bool yes_is_constant = assigned.registers[2] < 0, no_is_constant = assigned.registers[3] < 0;
  const uint32_t yes = assigned.bits[2], no = assigned.bits[3];
  const Xbyak::Address b_memory = assigned.registers[1] < 0 ? memory(assigned.bits[1]) : code.ptr[code.rsp];
  const Xbyak::Operand& b = assigned.registers[1] < 0 ? static_cast<const Xbyak::Operand&>(b_memory) : operands[1];
  if (has_masks()) {
    code.vcmpps(code.k7, operands[0], b, immediate);
    if (yes_is_constant && no_is_constant) {
      if (no != 0) {
        load_constant(target, no);
        code.vbroadcastss(target | code.k7, code.dword[place_of(yes)]);
      } else {
        code.vbroadcastss(target | code.k7 | Xbyak::util::T_z, code.dword[place_of(yes)]);
      }
    } else if (yes_is_constant) {
      code.vblendmps(target | code.k7, operands[3], memory(yes));
    } else {
      code.vblendmps(target | code.k7, operands[3], operands[2]);
    }
    return;
  }
  const Xbyak::Ymm mask(target.getIdx());
  code.vcmpps(mask, Xbyak::Ymm(operands[0].getIdx()), b, immediate);
  if (yes_is_constant && no_is_constant) {
    code.vandps(mask, mask, memory(yes ^ no));
    if (no != 0) code.vxorps(mask, mask, memory(no));
  } else if (yes_is_constant) {
    code.vblendvps(mask, Xbyak::Ymm(operands[3].getIdx()), memory(yes), mask);
  } else {
    code.vblendvps(mask, Xbyak::Ymm(operands[3].getIdx()), operands[2], mask);
  }
}

void EpilogueEmitter::State::emit(const AssignedInstruction& assigned, const Reg& target,
                                  std::span<const Reg> operands) {
  const VecInstruction& instruction = assigned.instruction;
  const int count = operand_count(instruction.op);
  if (instruction.op == VecOp::select) return emit_select(assigned, target, operands);
  if (count == 3) return emit_fma(assigned, target, operands);
  if (count == 1) return emit_unary(instruction, target, operands[0]);
  if (assigned.registers[1] < 0) return emit_binary(instruction.op, target, operands[0], memory(assigned.bits[1]));
  emit_binary(instruction.op, target, operands[0], operands[1]);
}

// `reg`: the register of an index.
template <class Registers>
void EpilogueEmitter::State::emit_assigned(const AssignedInstruction& assigned, Registers reg) {
  const Reg target = reg(assigned.target);
  std::array<Reg, 4> operands = {target, target, target, target};
  for (size_t k = 0; k < 4; ++k)
    if (assigned.registers[k] >= 0) operands[k] = reg(assigned.registers[k]);
  if (assigned.moved_operand >= 0) {
    const auto moved = static_cast<size_t>(assigned.moved_operand);
    if (assigned.registers[moved] < 0)
      load_constant(target, assigned.bits[moved]);
    else
      code.vmovaps(target, operands[moved]);
    operands[moved] = target;
  }
  emit(assigned, target, operands);
}

EpilogueEmitter::EpilogueEmitter(Xbyak::CodeGenerator& code, Isa isa, const Expression& expression,
                                 BytesTimesConstants products)
    : state_(std::make_unique<State>(code, isa, expression, products)) {}

EpilogueEmitter::~EpilogueEmitter() = default;

int EpilogueEmitter::temps_needed() const { return state_->assignment.registers - 1; }

// Moving the result to its register comes last.
size_t EpilogueEmitter::parts() const { return state_->assignment.code.size() + 1; }

bool EpilogueEmitter::takes_bytes(int slot) const {
  const std::vector<int>& inputs = state_->assignment.byte_inputs;
  return std::find(inputs.begin(), inputs.end(), slot) != inputs.end();
}

void EpilogueEmitter::apply_part(size_t part, const Xbyak::Xmm& accumulator, std::span<const Xbyak::Xmm> temps,
                                 const std::function<void(int slot, const Xbyak::Xmm& into)>& load_input) {
  LATHE_CHECK(temps.size() >= static_cast<size_t>(temps_needed()), "an epilogue got too few registers");
  const auto reg = [&](int index) {
    return state_->vec(index == 0 ? accumulator.getIdx() : temps[static_cast<size_t>(index) - 1].getIdx());
  };
  if (part == state_->assignment.code.size()) {
    const int result = state_->assignment.result;
    if (result < 0) state_->load_constant(reg(0), state_->assignment.result_bits);
    if (result > 0) state_->code.vmovaps(reg(0), reg(result));
    return;
  }
  const AssignedInstruction& assigned = state_->assignment.code[part];
  if (assigned.instruction.op == VecOp::input) {
    return load_input(static_cast<int>(assigned.instruction.immediate), reg(assigned.target));
  }
  state_->emit_assigned(assigned, reg);
}

void EpilogueEmitter::apply(const Xbyak::Xmm& accumulator, std::span<const Xbyak::Xmm> temps,
                            const std::function<void(int slot, const Xbyak::Xmm& into)>& load_input) {
  for (size_t part = 0; part < parts(); ++part) apply_part(part, accumulator, temps, load_input);
}

void EpilogueEmitter::apply(std::span<const Xbyak::Xmm> accumulators, std::span<const Xbyak::Xmm> temps,
                            const std::function<void(size_t which, int slot, const Xbyak::Xmm& into)>& load_input) {
  const auto needed = static_cast<size_t>(temps_needed());
  LATHE_CHECK(temps.size() >= needed * accumulators.size(), "an epilogue got too few registers");
  for (size_t part = 0; part < parts(); ++part) {
    for (size_t which = 0; which < accumulators.size(); ++which) {
      apply_part(part, accumulators[which], temps.subspan(which * needed, needed),
                 [&](int slot, const Xbyak::Xmm& into) { load_input(which, slot, into); });
    }
  }
}

void EpilogueEmitter::emit_constants() {
  constexpr int kVectorBytes = 32;
  state_->code.align(kVectorBytes);
  const int copies = state_->has_masks() ? 1 : kVectorBytes / 4;  // AVX2 has no broadcast inside an operation
  for (auto& [bits, label] : state_->constants) {
    state_->code.L(label);
    for (int i = 0; i < copies; ++i) state_->code.dd(bits);
  }
  for (size_t i = 0; i < state_->tables.size(); ++i) {
    state_->code.align(64);
    state_->code.L(state_->tables[i]);
    for (const float value : state_->assignment.tables[i]) state_->code.dd(std::bit_cast<uint32_t>(value));
  }
}

}  // namespace lathe
