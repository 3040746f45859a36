#pragma once
// What the emitters of Softmax over rows and over columns share: operands, and what becomes of a sum of exponentials.
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "jit/expression/epilogue.h"
#include "jit/kernels/common/exponential_emitter.h"
#include "jit/kernels/rows/softmax.h"

namespace lathe {

class SoftmaxEmitter : public ExponentialEmitter {
 protected:
  static constexpr float kLowest = -std::numeric_limits<float>::infinity();

  explicit SoftmaxEmitter(const SoftmaxPlan& plan)
      : ExponentialEmitter(plan.isa), plan_(plan), log_(*this, plan.isa, unary_expression(ExprOp::log)) {}

  void claim_operands() {
    args_ = argument(0);
    from_ = claim_gpr("from");
    to_ = claim_gpr("to");
    rows_ = claim_gpr("rows");
    columns_ = claim_gpr("columns");
    offset_ = claim_gpr("offset");
    left_ = claim_gpr("columns left");
    temp_ = claim_gpr("temporary");
    top_ = claim_vec("maximum");
    sum_ = claim_vec("sum");
    x_ = claim_vec("x");
    spare_ = claim_vec("spare");
  }

  void load_operands() {
    mov(from_, ptr[args_ + offsetof(SoftmaxArgs, from)]);
    mov(to_, ptr[args_ + offsetof(SoftmaxArgs, to)]);
    mov(rows_, ptr[args_ + offsetof(SoftmaxArgs, rows)]);
    mov(columns_, ptr[args_ + offsetof(SoftmaxArgs, columns)]);
    prepare_tail(columns_, temp_);
  }

  void claim_functions(int left) {
    claim_exponential(temp_, plan_.is_log ? log_.temps_needed() : 0, left);
    temps_ = temporaries();
  }

  // Behind the code's end.
  void emit_constants() {
    emit_tables();
    if (plan_.stores_bytes()) emit_requantization(plan_.store);
    emit_exponential_constants();
    log_.emit_constants();
  }

  // The sum becomes its logarithm or its reciprocal.
  void finish_sum(const Vec& sum) {
    if (plan_.is_log) {
      log_.apply(sum, temps_, [](int, const Xbyak::Xmm&) {});
    } else {
      set_all(spare_, 1.0f, temp_);
      vdivps(sum, spare_, sum);
    }
  }

  // Of elements, for a logarithm, else of exponentials.
  void scale(const Xbyak::RegExp& from, const Xbyak::RegExp& to, const Vec& top, const Vec& sum, bool is_tail) {
    load_part(x_, from, is_tail);
    if (plan_.is_log) {
      vsubps(x_, x_, top);
      vsubps(x_, x_, sum);
    } else {
      vmulps(x_, x_, sum);
    }
    store_part(to, x_, is_tail);
  }

  const SoftmaxPlan plan_;
  EpilogueEmitter log_;
  Gpr args_, from_, to_, rows_, columns_, offset_, left_, temp_;
  Vec top_, sum_, x_, spare_;
  std::vector<Vec> temps_;
};

// The code of a strided plan.
std::shared_ptr<const CodePages> emit_softmax_columns(const SoftmaxPlan& plan, const std::string& key);

}  // namespace lathe
