#pragma once
// Which vector register holds each value of a VectorProgram: a linear scan. Register 0 holds input 0 at the beginning
// and the result at the end; constants live in memory.
#include <array>
#include <vector>

#include "jit/expression/vector_program.h"

namespace lathe {

// How fma and its kin are encoded: which operand is overwritten.
enum class FmaForm : uint8_t {
  none,
  onto_sum,          // result is the sum's register: 231(sum, a, b)
  onto_product,      // result is a's register: 213(a, b, sum)
  onto_product_sum,  // result is a's register, b in memory: 132(a, sum, b)
};

struct AssignedInstruction {
  VecInstruction instruction;
  int target = -1;
  std::array<int, 4> registers = {-1, -1, -1, -1};  // of the operands; -1: a constant
  std::array<uint32_t, 4> bits = {};                // of constant operands
  FmaForm form = FmaForm::none;
  // An operand that is moved (or, if constant, loaded) into `target` first; then target is its register.
  int moved_operand = -1;
};

struct RegisterAssignment {
  std::vector<AssignedInstruction> code;
  int registers = 1;  // used, register 0 included
  int result = 0;     // register of the result: move it to 0; -1: a constant with these bits
  uint32_t result_bits = 0;
  std::vector<LookUpTable> tables;
  std::vector<int> byte_inputs;
};

RegisterAssignment assign_registers(const VectorProgram& program);

}  // namespace lathe
