#pragma once
// Expressions as vector code, by EpilogueEmitter: what their tests run.
#include <gtest/gtest.h>

#include <vector>

#include "jit/emitter.h"
#include "jit/expression/epilogue.h"
#include "tests/isas_here.h"

namespace lathe::testing {

inline constexpr int kMaxInputs = 4;
using Loop = void(const float* const* inputs, float* out, int64_t vectors);

// out[i] = expression(inputs[0][i], inputs[1][i], ...), by EpilogueEmitter on one accumulator.
class EpilogueLoop : public Emitter {
 public:
  EpilogueLoop(Isa target, const Expression& expression, BytesTimesConstants products = BytesTimesConstants::multiplied)
      : Emitter(target), epilogue_(*this, target, expression, products) {
    emit(static_cast<int>(expression.inputs.size()));
  }
  int temps_needed() const { return epilogue_.temps_needed(); }

 private:
  void emit(int inputs) {
    const Gpr table = argument(0), out = argument(1), left = argument(2);
    const Gpr offset = claim_gpr("offset"), row = claim_gpr("row");
    const Vec accumulator = claim_vec("accumulator");
    const std::vector<Vec> temps = claim_vecs("temps", epilogue_.temps_needed());
    begin();
    xor_(offset, offset);
    const auto load_input = [&](int slot, const Vec& into) {
      mov(row, ptr[table + slot * 8]);
      load(into, row + offset);
      if (epilogue_.takes_bytes(slot)) vcvtps2dq(into, into);
    };
    loop_down(left, [&] {
      if (inputs > 0) load_input(0, accumulator);
      epilogue_.apply(accumulator, temps, load_input);
      store(out + offset, accumulator);
      add(offset, vec_bytes());
    });
    end();
    epilogue_.emit_constants();
  }

  EpilogueEmitter epilogue_;
};

inline std::vector<float> run(Isa isa, const Expression& expression, const std::vector<std::vector<float>>& inputs,
                              BytesTimesConstants products = BytesTimesConstants::multiplied) {
  const Kernel<Loop> kernel(EpilogueLoop(isa, expression, products).finish("test"));
  const size_t count = inputs[0].size();
  EXPECT_EQ(count % 16, 0U);
  const float* table[kMaxInputs] = {};
  for (size_t i = 0; i < inputs.size(); ++i) table[i] = inputs[i].data();
  std::vector<float> out(count);
  kernel(static_cast<const float* const*>(table), out.data(), static_cast<int64_t>(count) / vector_lanes(isa));
  return out;
}

inline Expression unary(ExprOp op) {
  Expression expression{.inputs = {DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = op, .a = 0});
  return expression;
}

inline Expression binary(ExprOp op) {
  Expression expression{.inputs = {DType::f32, DType::f32}};
  expression.add({.op = ExprOp::input, .a = 0});
  expression.add({.op = ExprOp::input, .a = 1});
  expression.add({.op = op, .a = 0, .b = 1});
  return expression;
}

}  // namespace lathe::testing
