#include "jit/kernels/rows/reduce.h"

#include <cstddef>
#include <limits>
#include <optional>

#include "jit/expression/epilogue.h"
#include "jit/kernels/rows/reduce_emitter.h"

namespace lathe {
namespace {

constexpr int kUnroll = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float neutral_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return 1;
    case ReduceOp::maximum:
      return -kInfinity;
    case ReduceOp::minimum:
      return kInfinity;
    default:
      return 0;
  }
}

class ReduceEmitter : public RowEmitter {
 public:
  explicit ReduceEmitter(const ReducePlan& plan) : RowEmitter(plan.isa), plan_(plan) {
    if (plan.finish == ReduceFinish::logarithm)
      log_.emplace(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa, unary_expression(ExprOp::log));
  }

  void emit() {
    claim();
    begin();
    load_arguments();
    if (plan_.is_strided) {
      emit_columns();
    } else {
      loop_down(rows_, [&] { emit_row(); });
    }
    end();
    emit_tables();
    if (log_) log_->emit_constants();
  }

 private:
  bool is_order() const { return plan_.op == ReduceOp::maximum || plan_.op == ReduceOp::minimum; }

  void claim() {
    args_ = argument(0);
    from_ = claim_gpr("from");
    to_ = claim_gpr("to");
    rows_ = claim_gpr("rows");
    columns_ = claim_gpr("columns");
    offset_ = claim_gpr("offset");
    left_ = claim_gpr("left");
    temp_ = claim_gpr("temporary");
    stride_ = claim_gpr("stride");
    at_ = claim_gpr("at");
    x_ = claim_vec("x");
    constant_ = claim_vec("constant");  // neutral element, or the mask of absolute values
    partial_ = claim_vecs("partial", kUnroll);
    if (is_order()) nans_ = claim_vecs("NaNs", kUnroll);
  }

  void load_arguments() {
    mov(from_, ptr[args_ + offsetof(ReduceArgs, from)]);
    mov(to_, ptr[args_ + offsetof(ReduceArgs, to)]);
    mov(rows_, ptr[args_ + offsetof(ReduceArgs, rows)]);
    mov(columns_, ptr[args_ + offsetof(ReduceArgs, columns)]);
    mov(stride_, ptr[args_ + offsetof(ReduceArgs, stride_bytes)]);
    prepare_tail(columns_, temp_);
    if (log_) temps_ = claim_vecs("temporaries", log_->temps_needed());
  }

  void reset(int vectors) {
    set_all(constant_, neutral_of(plan_.op), temp_);
    for (int i = 0; i < vectors; ++i) {
      vmovaps(partial_[static_cast<size_t>(i)], constant_);
      if (is_order()) zero(nans_[static_cast<size_t>(i)]);
    }
  }

  // partial_[i] = partial_[i] op x_
  void accumulate(int i) {
    const Vec& partial = partial_[static_cast<size_t>(i)];
    switch (plan_.op) {
      case ReduceOp::sum:
        vaddps(partial, partial, x_);
        break;
      case ReduceOp::sum_squares:
        vfmadd231ps(partial, x_, x_);
        break;
      case ReduceOp::sum_absolutes:
        clear_sign(x_);
        vaddps(partial, partial, x_);
        break;
      case ReduceOp::product:
        vmulps(partial, partial, x_);
        break;
      case ReduceOp::maximum:
      case ReduceOp::minimum:
        order(partial, nans_[static_cast<size_t>(i)]);
        break;
    }
  }

  void clear_sign(const Vec& vec) {
    vpslld(vec, vec, 1);
    vpsrld(vec, vec, 1);
  }

  // vmaxps loses a NaN of one side: they are kept apart.
  void order(const Vec& partial, const Vec& nans) {
    if (plan_.op == ReduceOp::maximum) {
      vmaxps(partial, partial, x_);
    } else {
      vminps(partial, partial, x_);
    }
    constexpr uint8_t kUnordered = 3;
    if (has_masks()) {
      vcmpps(k2, x_, x_, kUnordered);
      vmovaps(nans | k2, x_);
    } else {
      vcmpps(x_, x_, x_, kUnordered);
      vorps(nans, nans, x_);
    }
  }

  // Combines two partial results, at any width.
  template <class V>
  void combine(const V& into, const V& a, const V& b) {
    switch (plan_.op) {
      case ReduceOp::product:
        vmulps(into, a, b);
        break;
      case ReduceOp::maximum:
        vmaxps(into, a, b);
        break;
      case ReduceOp::minimum:
        vminps(into, a, b);
        break;
      default:
        vaddps(into, a, b);
        break;
    }
  }

  void emit_row() {
    reset(kUnroll);
    for_columns(columns_, offset_, left_, kUnroll, [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        load_part(x_, from_ + offset_ + i * vec_bytes(), is_tail);
        if (is_tail && neutral_of(plan_.op) != 0) fill_behind_tail(x_, constant_);
        accumulate(i);
      }
    });
    for (size_t i = 1; i < kUnroll; ++i) {
      combine(partial_[0], partial_[0], partial_[i]);
      if (is_order()) bit_or(nans_[0], nans_[0], nans_[i]);
    }
    fold_lanes(partial_[0], x_, [&](const auto& into, const auto& a, const auto& b) { combine(into, a, b); });
    if (is_order()) {
      fold_lanes(nans_[0], x_, [&](const auto& into, const auto& a, const auto& b) { vorps(into, a, b); });
    }
    finish_vector(0);
    vmovss(dword[to_], Xbyak::Xmm(partial_[0].getIdx()));
    add(to_, 4);
    lea(from_, ptr[from_ + columns_ * 4]);
  }

  void bit_or(const Vec& into, const Vec& a, const Vec& b) {
    if (has_masks()) {
      vpord(into, a, b);
    } else {
      vorps(into, a, b);
    }
  }

  void finish_vector(int i) {
    const Vec& partial = partial_[static_cast<size_t>(i)];
    if (is_order()) bit_or(partial, partial, nans_[static_cast<size_t>(i)]);
    switch (plan_.finish) {
      case ReduceFinish::none:
        break;
      case ReduceFinish::scale:
        vbroadcastss(x_, dword[args_ + offsetof(ReduceArgs, scale)]);
        vmulps(partial, partial, x_);
        break;
      case ReduceFinish::square_root:
        vsqrtps(partial, partial);
        break;
      case ReduceFinish::logarithm:
        log_->apply(partial, temps_, [](int, const Xbyak::Xmm&) {});
        break;
    }
  }

  void emit_columns() {
    for_columns(columns_, offset_, left_, kUnroll, [&](int vectors, bool is_tail) {
      reset(vectors);
      lea(at_, ptr[from_ + offset_]);
      mov(temp_, rows_);
      loop_down(temp_, [&] {
        for (int i = 0; i < vectors; ++i) {
          load_part(x_, at_ + i * vec_bytes(), is_tail);
          accumulate(i);
        }
        add(at_, stride_);
      });
      for (int i = 0; i < vectors; ++i) {
        finish_vector(i);
        store_part(to_ + offset_ + i * vec_bytes(), partial_[static_cast<size_t>(i)], is_tail);
      }
    });
  }

  ReducePlan plan_;
  std::optional<EpilogueEmitter> log_;
  Gpr args_, from_, to_, rows_, columns_, offset_, left_, temp_, stride_, at_;
  Vec x_, constant_;
  std::vector<Vec> partial_, nans_, temps_;
};

}  // namespace

std::string to_string(const ReducePlan& plan) {
  constexpr const char* kOps[] = {"sum", "sum_squares", "sum_absolutes", "product", "maximum", "minimum"};
  constexpr const char* kFinishes[] = {"", " scale", " square_root", " logarithm"};
  return std::string("reduce ") + kOps[static_cast<size_t>(plan.op)] + kFinishes[static_cast<size_t>(plan.finish)] +
         (plan.is_strided ? " strided" : " rows");
}

Kernel<ReduceFn> reduce_kernel(const ReducePlan& plan) {
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  return Kernel<ReduceFn>(cached_code(key, [&] {
    ReduceEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
