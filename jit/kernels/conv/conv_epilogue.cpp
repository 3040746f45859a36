#include "jit/kernels/conv/conv_epilogue.h"

namespace lathe {

std::string to_string(const ConvEpilogue& epilogue) {
  if (!epilogue.expression) return "none";
  std::string text = to_string(*epilogue.expression) + ":";
  for (ConvOperand operand : epilogue.operands) text += "scf"[static_cast<size_t>(operand)];
  return text;
}

}  // namespace lathe
