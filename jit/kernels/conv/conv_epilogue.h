#pragma once
// Pointwise work on the outputs of a convolution while they are still in registers.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/expression.h"

namespace lathe {

// How the elements of an extra input (float32) belong to the output.
enum class ConvOperand : uint8_t {
  scalar,       // one element for all
  per_channel,  // one element for each channel, padded to whole blocks
  full,         // as many as the output, in the output's layout
};

struct ConvEpilogue {
  std::optional<Expression> expression;  // input 0: the accumulator
  std::vector<ConvOperand> operands;     // of inputs 1, 2, ...
  static constexpr int kMaxOperands = 8;
  bool has_residual() const { return std::find(operands.begin(), operands.end(), ConvOperand::full) != operands.end(); }
};

std::string to_string(const ConvEpilogue& epilogue);  // for kernel keys

// A larger accumulator never has a smaller result, whatever the operands are, so that a maximum may come before.
bool never_decreases(const ConvEpilogue& epilogue);

}  // namespace lathe
