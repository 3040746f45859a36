#include "ops/recurrent/recurrent_product.h"

#include <fmt/format.h>

#include "src/base/thread_team.h"

namespace lathe {
namespace {

GemmProblem problem_of(const RecurrentProductTask& task) {
  GemmProblem problem;
  problem.m = task.batch;
  problem.n = task.columns;
  problem.k = task.hidden;
  problem.isa = task.isa;
  problem.threads = task.shares;
  if (!task.adds) return problem;
  Expression sum;
  sum.inputs = {DType::f32, DType::f32};
  const int product = sum.add({.op = ExprOp::input, .a = 0}), added = sum.add({.op = ExprOp::input, .a = 1});
  sum.add({.op = ExprOp::add, .a = product, .b = added});
  problem.epilogue = GemmEpilogue{std::move(sum), {GemmInputAccess::columns}};
  return problem;
}

GemmProduct product_of(const GemmProblem& problem, PlanSource& plans) {
  return GemmProduct(problem, choose_gemm_plan(problem, plans));
}

// The panels of a share from the last one to the first, each as one of `panels` shares.
template <class Product, class Operands>
void run_backwards(const Product& product, const Operands& operands, int panels, int share, int shares) {
  const Range mine = split_evenly(panels, share, shares);
  for (auto panel = static_cast<int>(mine.end); panel-- > mine.begin;) product.run(operands, panel, panels);
}

}  // namespace

ValueRange range_of_rows(const ConstHiddenRows& rows, int64_t count, int64_t hidden) noexcept {
  ValueRange range;
  for (int64_t row = 0; row < count; ++row) range.include(range_of(rows.data + row * rows.stride, hidden));
  return range;
}

FloatRecurrentProduct::FloatRecurrentProduct(const RecurrentProductTask& task, PlanSource& plans)
    : task_(task), product_(product_of(problem_of(task), plans)) {}

std::string FloatRecurrentProduct::packed_text() const {
  const PanelFormat format = product_.format();
  return fmt::format("recurrent {}+{} x {} panels {} lanes {}", task_.first_column, task_.columns, task_.hidden,
                     format.panel_columns, format.lanes);
}

int64_t FloatRecurrentProduct::packed_bytes() const {
  return product_.format().elements(task_.hidden, task_.columns) * int64_t{sizeof(float)};
}

void FloatRecurrentProduct::pack(const void* r, const ByteZeros&, void* out) const noexcept {
  const PanelFormat format = product_.format();
  const auto* rows = static_cast<const float*>(r) + task_.first_column * task_.hidden;
  pack_panels({rows, task_.hidden, task_.columns, 1, task_.hidden}, format, 0, format.panels(task_.columns), 1,
              static_cast<float*>(out));
}

void FloatRecurrentProduct::run(const RecurrentProductArgs& args, int share, int shares) const noexcept {
  GemmOperands operands;
  operands.a = args.hidden.data;
  operands.a_stride = args.hidden.stride;
  operands.b = static_cast<const float*>(args.weights);
  operands.c = args.gates;
  operands.c_stride = args.gates_stride;
  operands.inputs[0] = args.added;
  operands.input_strides[0] = args.added_stride;
  if (!args.goes_back || product_.plan().split == GemmSplit::rows) return product_.run(operands, share, shares);
  run_backwards(product_, operands, static_cast<int>(product_.format().panels(task_.columns)), share, shares);
}

DynamicRecurrentProduct::DynamicRecurrentProduct(const RecurrentProductTask& task, const ByteWeights& weights,
                                                 PlanSource& plans)
    : batch_(task.batch),
      hidden_(task.hidden),
      product_({.m = task.batch,
                .n = task.columns,
                .k = task.hidden,
                .b = weights,
                .added = task.adds ? 1 : 0,
                .isa = task.isa,
                .threads = task.shares},
               plans) {}

// Every share rounds all of H for itself: an exchange would take longer.
void DynamicRecurrentProduct::run(const RecurrentProductArgs& args, int share, int shares) const noexcept {
  const Quantization q =
      quantization_of(args.range != nullptr ? *args.range : range_of_rows(args.hidden, batch_, hidden_));
  DynamicOperands operands;
  operands.rows = args.own;
  operands.weights = args.weights;
  operands.b_scale = args.r_scale;
  operands.c = args.gates;
  operands.c_stride = args.gates_stride;
  operands.added[0] = args.added;
  operands.added_strides[0] = args.added_stride;
  product_.quantize_rows(args.hidden.data, args.hidden.stride, {0, static_cast<long>(batch_)}, q, args.own);
  product_.begin(q, operands, args.own);
  if (!args.goes_back || product_.panels() == 1) return product_.run(operands, share, shares);
  run_backwards(product_, operands, product_.panels(), share, shares);
}

}  // namespace lathe
