#include "graph/spelled_expression.h"

namespace lathe {

const char* onnx_name(ExprOp op) {
  switch (op) {
    case ExprOp::neg:
      return "Neg";
    case ExprOp::abs:
      return "Abs";
    case ExprOp::sqrt:
      return "Sqrt";
    case ExprOp::reciprocal:
      return "Reciprocal";
    case ExprOp::exp:
      return "Exp";
    case ExprOp::log:
      return "Log";
    case ExprOp::erf:
      return "Erf";
    case ExprOp::tanh:
      return "Tanh";
    case ExprOp::sigmoid:
      return "Sigmoid";
    case ExprOp::floor:
      return "Floor";
    case ExprOp::ceil:
      return "Ceil";
    case ExprOp::round_even:
      return "Round";
    case ExprOp::sin:
      return "Sin";
    case ExprOp::cos:
      return "Cos";
    case ExprOp::sign:
      return "Sign";
    case ExprOp::logical_not:
      return "Not";
    case ExprOp::is_nan:
      return "IsNaN";
    case ExprOp::add:
      return "Add";
    case ExprOp::sub:
      return "Sub";
    case ExprOp::mul:
      return "Mul";
    case ExprOp::div:
      return "Div";
    case ExprOp::min:
      return "Min";
    case ExprOp::max:
      return "Max";
    case ExprOp::pow:
      return "Pow";
    case ExprOp::equal:
      return "Equal";
    case ExprOp::less:
      return "Less";
    case ExprOp::less_equal:
      return "LessOrEqual";
    case ExprOp::logical_and:
      return "And";
    case ExprOp::logical_or:
      return "Or";
    case ExprOp::select:
      return "Where";
    case ExprOp::input:
    case ExprOp::constant:
      break;
  }
  return nullptr;
}

bool gives_truth(ExprOp op) {
  return op == ExprOp::logical_not || op == ExprOp::is_nan || op == ExprOp::equal || op == ExprOp::less ||
         op == ExprOp::less_equal || op == ExprOp::logical_and || op == ExprOp::logical_or;
}
bool takes_truth(ExprOp op) {
  return op == ExprOp::logical_not || op == ExprOp::logical_and || op == ExprOp::logical_or;
}

}  // namespace lathe
