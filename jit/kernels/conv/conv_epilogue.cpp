#include "jit/kernels/conv/conv_epilogue.h"

#include <algorithm>

namespace lathe {

std::string to_string(const ConvEpilogue& epilogue) {
  if (!epilogue.expression) return "none";
  std::string text = to_string(*epilogue.expression) + ":";
  for (ConvOperand operand : epilogue.operands) text += "scf"[static_cast<size_t>(operand)];
  return text;
}

bool never_decreases(const ConvEpilogue& epilogue) {
  if (!epilogue.expression) return true;
  if (epilogue.has_residual()) return false;  // pixels differ
  // How a node goes with the accumulator.
  enum class Course : uint8_t { level, rises, unknown };
  const std::vector<ExprNode>& nodes = epilogue.expression->nodes;
  std::vector<Course> courses;
  for (const ExprNode& node : nodes) {
    const auto course = [&](int of) { return of < 0 ? Course::level : courses[static_cast<size_t>(of)]; };
    const auto is_positive = [&](int of) {
      return nodes[static_cast<size_t>(of)].op == ExprOp::constant && nodes[static_cast<size_t>(of)].value > 0;
    };
    if (node.op == ExprOp::input || node.op == ExprOp::constant) {
      courses.push_back(node.op == ExprOp::input && node.a == 0 ? Course::rises : Course::level);
      continue;
    }
    const Course most = std::max({course(node.a), course(node.b), course(node.c)});
    bool keeps = node.op == ExprOp::add || node.op == ExprOp::min || node.op == ExprOp::max;
    keeps |= node.op == ExprOp::sub && course(node.b) == Course::level;
    keeps |= node.op == ExprOp::mul && (is_positive(node.a) || is_positive(node.b));
    keeps |= node.op == ExprOp::div && is_positive(node.b);
    courses.push_back(keeps || most == Course::level ? most : Course::unknown);
  }
  return courses.empty() || courses.back() != Course::unknown;
}

}  // namespace lathe
