#include "jit/kernels/conv/conv_finish.h"

#include <fmt/format.h>

#include <cstddef>

#include "jit/emitter.h"
#include "jit/kernels/conv/conv_epilogue_emitter.h"

namespace lathe {
namespace {

class ConvFinishEmitter : public Emitter {
 public:
  explicit ConvFinishEmitter(const ConvFinishPlan& plan)
      : Emitter(plan.isa), plan_(plan), epilogue_(*this, plan.isa, plan.epilogue) {
    if (epilogue_.temps_needed() > free_vecs()) throw JitError("the epilogue needs too many registers");
    temps_ = claim_vecs("temp", epilogue_.temps_needed());
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    mov(target_, qword[call_ + offsetof(ConvFinishCall, target)]);
    if (plan_.has_bias) {
      mov(scratch_, qword[call_ + offsetof(ConvFinishCall, bias)]);
      load(bias_, scratch_ + 0);
    }
    xor_(at_, at_);
    Xbyak::Label next;
    align(32);
    L(next);
    load(value_, target_ + at_);
    if (plan_.has_bias) vaddps(value_, value_, bias_);
    if (!epilogue_.is_empty())
      epilogue_.apply(value_, temps_, call_ + offsetof(ConvFinishCall, operands), scratch_, Xbyak::RegExp(at_), 0);
    store(target_ + at_, value_);
    add(at_, vec_bytes());
    cmp(at_, qword[call_ + offsetof(ConvFinishCall, bytes)]);
    jl(next, T_NEAR);
    end();
    epilogue_.emit_constants();
    return finish(name);
  }

 private:
  const ConvFinishPlan& plan_;
  ConvEpilogueEmitter epilogue_;
  const Gpr call_ = argument(0);
  const Gpr target_ = claim_gpr("target"), at_ = claim_gpr("byte"), scratch_ = claim_gpr("scratch");
  const Vec value_ = claim_vec("value"), bias_ = claim_vec("bias");
  std::vector<Vec> temps_;
};

}  // namespace

std::string to_string(const ConvFinishPlan& plan) {
  return fmt::format("conv_finish {} bias={} then {}", name_of(plan.isa), plan.has_bias ? 1 : 0,
                     to_string(plan.epilogue));
}

ConvFinish conv_finish(const ConvFinishPlan& plan) {
  const std::string key = to_string(plan);
  return ConvFinish(cached_code(key, [&] { return ConvFinishEmitter(plan).emit(key); }));
}

}  // namespace lathe
