#include "jit/expression/register_assignment.h"

#include <algorithm>
#include <set>
#include <utility>

namespace lathe {
namespace {

class LinearScan {
 public:
  explicit LinearScan(const VectorProgram& program)
      : program_(program), last_use_(program.code.size(), -1), register_of_(program.code.size(), -1) {}

  RegisterAssignment run() {
    result_.tables = program_.tables;
    result_.byte_inputs = program_.byte_inputs;
    find_last_uses();
    reserve_accumulator();
    const auto count = static_cast<int>(program_.code.size());
    for (int i = 0; i < count; ++i) {
      if (program_.is_constant(i)) continue;
      if (at(i).op == VecOp::input && at(i).immediate == 0) continue;  // there already
      place(i);
    }
    const int last = count - 1;
    result_.result = register_of_[static_cast<size_t>(last)];
    if (program_.is_constant(last)) result_.result_bits = program_.bits(last);
    return std::move(result_);
  }

 private:
  const VecInstruction& at(int i) const { return program_.code[static_cast<size_t>(i)]; }

  void find_last_uses() {
    for (int i = 0; i < static_cast<int>(program_.code.size()); ++i)
      for (int k = 0; k < operand_count(at(i).op); ++k)
        last_use_[static_cast<size_t>(at(i).operands[static_cast<size_t>(k)])] = i;
    last_use_.back() = static_cast<int>(program_.code.size());
  }

  void reserve_accumulator() {
    for (int i = 0; i < static_cast<int>(program_.code.size()); ++i)
      if (at(i).op == VecOp::input && at(i).immediate == 0) {
        register_of_[static_cast<size_t>(i)] = 0;
        return;
      }
    free_.insert(0);
  }

  int take_free() {
    if (free_.empty()) free_.insert(result_.registers++);
    const int lowest = *free_.begin();
    free_.erase(free_.begin());
    return lowest;
  }

  bool dies(int value, int at_instruction) const {
    return value >= 0 && !program_.is_constant(value) && last_use_[static_cast<size_t>(value)] == at_instruction;
  }

  void place(int i) {
    AssignedInstruction assigned{.instruction = at(i)};
    for (size_t k = 0; k < 4; ++k) {
      const int operand = at(i).operands[k];
      if (operand < 0) continue;
      assigned.registers[k] = register_of_[static_cast<size_t>(operand)];
      if (program_.is_constant(operand)) assigned.bits[k] = program_.bits(operand);
    }
    choose_target(i, assigned);
    register_of_[static_cast<size_t>(i)] = assigned.target;
    for (size_t k = 0; k < 4; ++k)
      if (dies(assigned.instruction.operands[k], i) && assigned.registers[k] != assigned.target)
        free_.insert(assigned.registers[k]);
    if (last_use_[static_cast<size_t>(i)] < 0) free_.insert(assigned.target);
    result_.code.push_back(assigned);
  }

  void choose_target(int i, AssignedInstruction& assigned) {
    switch (at(i).op) {
      case VecOp::input:
        assigned.target = take_free();
        return;
      case VecOp::fma:
      case VecOp::fnma:
      case VecOp::fms:
        return choose_fma(i, assigned);
      case VecOp::select:
        return choose_select(i, assigned);
      default:
        break;
    }
    if (assigned.registers[0] <
        0) {  // a constant minuend and the like is loaded into the target before the rest is read
      assigned.target = take_free();
      assigned.moved_operand = 0;
      return;
    }
    assigned.target = dying_register(i, assigned, {0, 1});
    if (assigned.target < 0) assigned.target = take_free();
  }

  int dying_register(int i, const AssignedInstruction& assigned, std::initializer_list<size_t> candidates) const {
    int best = -1;
    for (const size_t k : candidates)
      if (dies(at(i).operands[k], i) && (best < 0 || assigned.registers[k] < best)) best = assigned.registers[k];
    return best;
  }

  void choose_fma(int i, AssignedInstruction& assigned) {
    const bool b_is_constant = assigned.registers[1] < 0, sum_is_constant = assigned.registers[2] < 0;
    const auto overwrite = [&](size_t operand, FmaForm form) {
      assigned.form = form;
      if (dies(at(i).operands[operand], i)) {
        assigned.target = assigned.registers[operand];
      } else {
        assigned.target = take_free();
        assigned.moved_operand = static_cast<int>(operand);
      }
    };
    if (b_is_constant && sum_is_constant) {  // target = b, then target = a * target + sum
      swap_factors(assigned);
      assigned.form = FmaForm::onto_product;
      assigned.target = take_free();
      assigned.moved_operand = 0;
      return;
    }
    const bool sum_dies = dies(at(i).operands[2], i), a_dies = dies(at(i).operands[0], i);
    if (b_is_constant)
      return !sum_dies && a_dies ? overwrite(0, FmaForm::onto_product_sum) : overwrite(2, FmaForm::onto_sum);
    if (!sum_is_constant && (sum_dies || (!a_dies && !dies(at(i).operands[1], i))))
      return overwrite(2, FmaForm::onto_sum);
    if (!a_dies && dies(at(i).operands[1], i)) {
      swap_factors(assigned);
      assigned.form = FmaForm::onto_product;
      assigned.target = assigned.registers[0];
      return;
    }
    overwrite(0, FmaForm::onto_product);
  }

  static void swap_factors(AssignedInstruction& assigned) {
    std::swap(assigned.instruction.operands[0], assigned.instruction.operands[1]);
    std::swap(assigned.registers[0], assigned.registers[1]);
    std::swap(assigned.bits[0], assigned.bits[1]);
  }

  // The target holds the mask on AVX2, so it must not be one of the chosen values.
  void choose_select(int i, AssignedInstruction& assigned) {
    const auto is_chosen = [&](int reg) { return reg == assigned.registers[2] || reg == assigned.registers[3]; };
    for (const size_t k : {size_t{0}, size_t{1}})
      if (dies(at(i).operands[k], i) && !is_chosen(assigned.registers[k])) {
        assigned.target = assigned.registers[k];
        return;
      }
    assigned.target = take_free();
  }

  const VectorProgram& program_;
  std::vector<int> last_use_, register_of_;
  std::set<int> free_;
  RegisterAssignment result_;
};

}  // namespace

RegisterAssignment assign_registers(const VectorProgram& program) { return LinearScan(program).run(); }

}  // namespace lathe
