#include "jit/kernels/rows/attention_softmax.h"

#include <cstddef>
#include <limits>

#include "jit/kernels/common/exponential_emitter.h"

namespace lathe {
namespace {

// Finite, so that -inf - top is -inf and not NaN in a row that so far has nothing but -inf.
constexpr float kLowest = std::numeric_limits<float>::lowest();

class AttentionSoftmaxEmitter : public ExponentialEmitter {
 public:
  explicit AttentionSoftmaxEmitter(const AttentionSoftmaxPlan& plan) : ExponentialEmitter(plan.isa), plan_(plan) {}

  void emit() {
    claim();
    begin();
    load_arguments();
    loop_down(rows_, [&] {
      find_maximum();
      if (plan_.continues) find_factor();
      sum_exponentials();
      store_row();
    });
    end();
    emit_tables();
    emit_exponential_constants();
  }

 private:
  void claim() {
    args_ = argument(0);
    scores_ = claim_gpr("scores");
    rows_ = claim_gpr("rows");
    columns_ = claim_gpr("columns");
    stride_ = claim_gpr("stride");
    tops_at_ = claim_gpr("tops");
    sums_at_ = claim_gpr("sums");
    factors_at_ = claim_gpr("factors");
    offset_ = claim_gpr("offset");
    left_ = claim_gpr("columns left");
    temp_ = claim_gpr("temporary");
    top_ = claim_vec("maximum");
    sum_ = claim_vec("sum");
    factor_ = claim_vec("factor");
    x_ = claim_vec("x");
    spare_ = claim_vec("spare");
  }

  void load_arguments() {
    mov(scores_, ptr[args_ + offsetof(AttentionSoftmaxArgs, scores)]);
    mov(rows_, ptr[args_ + offsetof(AttentionSoftmaxArgs, rows)]);
    mov(columns_, ptr[args_ + offsetof(AttentionSoftmaxArgs, columns)]);
    mov(stride_, ptr[args_ + offsetof(AttentionSoftmaxArgs, stride_bytes)]);
    mov(tops_at_, ptr[args_ + offsetof(AttentionSoftmaxArgs, tops)]);
    mov(sums_at_, ptr[args_ + offsetof(AttentionSoftmaxArgs, sums)]);
    if (plan_.continues) mov(factors_at_, ptr[args_ + offsetof(AttentionSoftmaxArgs, factors)]);
    prepare_tail(columns_, temp_);
    claim_exponential(temp_);
    maxima_ = claim_vecs("maxima", std::min(3, free_vecs()));
  }

  // Several maxima: vmaxps has a latency of 4 cycles and two run at a time.
  void find_maximum() {
    set_all(spare_, kLowest, temp_);
    vmovaps(top_, spare_);
    for (const Vec& vec : maxima_) vmovaps(vec, spare_);
    const auto maximum = [&](int i) { return i == 0 ? top_ : maxima_[static_cast<size_t>(i - 1)]; };
    for_columns(columns_, offset_, left_, 1 + static_cast<int>(maxima_.size()), [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        if (is_tail) {
          load_part(x_, scores_ + offset_, true);
          fill_behind_tail(x_, spare_);
          vmaxps(top_, top_, x_);
        } else {
          vmaxps(maximum(i), maximum(i), ptr[scores_ + offset_ + i * vec_bytes()]);
        }
      }
    });
    for (const Vec& vec : maxima_) vmaxps(top_, top_, vec);
    fold_lanes(top_, spare_, [&](const auto& into, const auto& a, const auto& b) { vmaxps(into, a, b); });
  }

  void find_factor() {
    vbroadcastss(factor_, ptr[tops_at_]);
    vmaxps(top_, top_, factor_);
    vsubps(factor_, factor_, top_);
    exponential(factor_);
  }

  void sum_exponentials() {
    zero(sum_);
    for_columns(columns_, offset_, left_, 4, [&](int vectors, bool is_tail) {
      if (plan_.narrows) {
        mov(temp_, offset_);
        shr(temp_, 1);
      }
      for (int i = 0; i < vectors; ++i) {
        const Xbyak::RegExp at = scores_ + offset_ + i * vec_bytes();
        load_part(x_, at, is_tail);
        vsubps(x_, x_, top_);
        exponential(x_);
        if (is_tail) clear_behind_tail(x_);
        vaddps(sum_, sum_, x_);
        plan_.narrows ? store_narrowed(i) : store_part(at, x_, is_tail);
      }
    });
    fold_lanes(sum_, spare_, [&](const auto& into, const auto& a, const auto& b) { vaddps(into, a, b); });
  }

  // Where the row's own scores have been read already.
  void store_narrowed(int vector) {
    const Xbyak::Ymm half(x_.getIdx());
    vcvtneps2bf16(half, x_);
    vmovups(ptr[scores_ + temp_ + vector * vec_bytes() / 2], half);
  }

  void store_row() {
    const auto store_one = [&](const Gpr& at, const Vec& vec) {
      vmovss(ptr[at], Xbyak::Xmm(vec.getIdx()));
      add(at, 4);
    };
    if (plan_.continues) {
      vbroadcastss(x_, ptr[sums_at_]);
      vmulps(x_, x_, factor_);
      vaddps(sum_, sum_, x_);
      store_one(factors_at_, factor_);
    }
    store_one(tops_at_, top_);
    store_one(sums_at_, sum_);
    add(scores_, stride_);
  }

  AttentionSoftmaxPlan plan_;
  Gpr args_, scores_, rows_, columns_, stride_, tops_at_, sums_at_, factors_at_, offset_, left_, temp_;
  Vec top_, sum_, factor_, x_, spare_;
  std::vector<Vec> maxima_;
};

}  // namespace

std::string to_string(const AttentionSoftmaxPlan& plan) {
  return std::string("attention_softmax ") + (plan.continues ? "continued" : "first") +
         (plan.narrows ? " to bf16" : "");
}

Kernel<AttentionSoftmaxFn> attention_softmax_kernel(const AttentionSoftmaxPlan& plan) {
  if (plan.narrows && plan.isa != Isa::avx512_bf16) throw JitError("no bfloat16 here: " + to_string(plan));
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  return Kernel<AttentionSoftmaxFn>(cached_code(key, [&] {
    AttentionSoftmaxEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
