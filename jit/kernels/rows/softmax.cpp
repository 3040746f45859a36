#include "jit/kernels/rows/softmax.h"

#include <cstddef>
#include <numbers>

#include "jit/kernels/rows/softmax_emitter.h"

namespace lathe {
namespace {

// 2^x for x in [0, 1), off by 2.6e-6 of it (Lawson fit): enough for what is stored as bytes.
constexpr float kPowerOfTwo[] = {0.0135340961F, 0.0520116054F, 0.241442665F, 0.693003833F, 1.00000262F};
constexpr float kLeastPower = -126;  // of 2 that is a normal number
constexpr int kByteVectors = 4;      // that are packed together

class SoftmaxRowsEmitter : public SoftmaxEmitter {
 public:
  explicit SoftmaxRowsEmitter(const SoftmaxPlan& plan) : SoftmaxEmitter(plan) {}

  void emit() {
    claim();
    begin();
    load_arguments();
    if (has_quick_exponential()) {
      emit_quick();
    } else if (plan_.stores_bytes()) {
      loop_down(rows_, [&] { emit_byte_row(); });
    } else {
      if (looks_ahead()) find_maximum();
      loop_down(rows_, [&] { emit_row(); });
    }
    end();
    emit_constants();
  }

 private:
  void claim() {
    claim_operands();
    if (!plan_.stores_bytes()) {
      next_ = claim_gpr("next row");
      return;
    }
    row_ = claim_gpr("row");
    bytes_at_ = claim_gpr("at bytes");
    if (has_quick_exponential()) {
      at_from_ = claim_gpr("at from");
      at_row_ = claim_gpr("at exponentials");
      three_rows_ = claim_gpr("three times columns");
      quick_.push_back({0, top_, sum_});
      for (int row = 1; row < kSoftmaxRowsTogether; ++row) {
        quick_.push_back({row, claim_vec("maximum, further row"), claim_vec("sum, further row")});
      }
    }
  }

  void load_arguments() {
    load_operands();
    if (plan_.stores_bytes()) mov(row_, ptr[args_ + offsetof(SoftmaxArgs, row)]);
    if (has_quick_exponential()) {
      load_quick_constants();
      temps_ = claim_vecs("temporaries", kByteVectors);
    } else {
      claim_functions(2);
    }
    tops_ = claim_vecs("maxima", std::min(3, free_vecs()));
    if (plan_.stores_bytes()) {
      bytes_ = {x_};
      for (const std::vector<Vec>* more : {&tops_, &temps_}) bytes_.insert(bytes_.end(), more->begin(), more->end());
      bytes_.resize(bytes_.size() >= kByteVectors ? kByteVectors : bytes_.size() >= 2 ? 2 : 1);
    }
  }

  // ---- Rows

  // The next row's maximum is found beside this row's exponentials: its way from memory hides behind them. The last row
  // is its own next one.
  bool looks_ahead() const { return !plan_.stores_bytes() && !tops_.empty(); }

  void emit_row() {
    if (looks_ahead()) {
      lea(next_, ptr[from_ + columns_ * 4]);
      cmp(rows_, 1);
      cmove(next_, from_);
    } else {
      find_maximum();
    }
    sum_exponentials(to_);
    scale_row();
    if (looks_ahead()) vmovaps(top_, tops_[0]);
    lea(from_, ptr[from_ + columns_ * 4]);
    lea(to_, ptr[to_ + columns_ * 4]);
  }

  // Several maxima: vmaxps has a latency of 4 cycles and two run at a time.
  void find_maximum() {
    set_all(spare_, kLowest, temp_);
    vmovaps(top_, spare_);
    for (const Vec& vec : tops_) vmovaps(vec, spare_);
    const auto maximum = [&](int i) { return i == 0 ? top_ : tops_[static_cast<size_t>(i - 1)]; };
    const int unroll = 1 + static_cast<int>(tops_.size());
    for_columns(columns_, offset_, left_, unroll, [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        if (is_tail) {
          load_part(x_, from_ + offset_, true);
          fill_behind_tail(x_, spare_);
          vmaxps(top_, top_, x_);
        } else {
          vmaxps(maximum(i), maximum(i), ptr[from_ + offset_ + i * vec_bytes()]);
        }
      }
    });
    for (const Vec& vec : tops_) vmaxps(top_, top_, vec);
    fold_maximum(top_);
  }

  void fold_maximum(const Vec& top) {
    const auto larger = [&](const auto& into, const auto& a, const auto& b) { vmaxps(into, a, b); };
    fold_lanes(top, spare_, larger, plan_.interleaved);
  }

  void look_ahead(int vector, bool is_tail) {
    const Vec& top = tops_[static_cast<size_t>(vector) % tops_.size()];
    const Xbyak::RegExp at = next_ + offset_ + vector * vec_bytes();
    if (!is_tail) return vmaxps(top, top, ptr[at]);
    load_part(x_, at, true);
    fill_behind_tail(x_, spare_);
    vmaxps(top, top, x_);
  }

  void sum_exponentials(const Gpr& to) {
    zero(sum_);
    if (looks_ahead()) {
      set_all(spare_, kLowest, temp_);
      for (const Vec& vec : tops_) vmovaps(vec, spare_);
    }
    for_columns(columns_, offset_, left_, 4, [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        const Xbyak::RegExp at = offset_ + i * vec_bytes();
        if (looks_ahead()) look_ahead(i, is_tail);
        load_part(x_, from_ + at, is_tail);
        vsubps(x_, x_, top_);
        exponential(x_);
        if (is_tail) clear_behind_tail(x_);
        vaddps(sum_, sum_, x_);
        if (!plan_.is_log) store_part(to + at, x_, is_tail);
      }
    });
    const auto sum_of = [&](const auto& into, const auto& a, const auto& b) { vaddps(into, a, b); };
    fold_lanes(sum_, spare_, sum_of, plan_.interleaved);
    if (!looks_ahead()) return;
    for (size_t i = 1; i < tops_.size(); ++i) vmaxps(tops_[0], tops_[0], tops_[i]);
    fold_maximum(tops_[0]);
  }

  void scale_row() {
    finish_sum(sum_);
    for_columns(columns_, offset_, left_, 4, [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i)
        scale((plan_.is_log ? from_ : to_) + offset_ + i * vec_bytes(), to_ + offset_ + i * vec_bytes(), top_, sum_,
              is_tail);
    });
  }

  // ---- Rows of bytes: the exponentials wait in `row`

  void emit_byte_row() {
    find_maximum();
    sum_exponentials(row_);
    find_factor(sum_);
    store_row(to_, row_, sum_);
    lea(from_, ptr[from_ + columns_ * 4]);
    add(to_, ptr[args_ + offsetof(SoftmaxArgs, stride_bytes)]);
  }

  // What exponentials are multiplied by before they are rounded to bytes, from their sum in all lanes.
  void find_factor(const Vec& sum) {
    const Xbyak::Xmm low(sum.getIdx()), one(spare_.getIdx());
    set_all(spare_, 1.0f, temp_);
    vdivss(low, one, low);
    vmulss(low, low, dword[args_ + offsetof(SoftmaxArgs, factor)]);
    vbroadcastss(sum, low);
  }

  void store_row(const Gpr& to, const Gpr& row, const Vec& factor) {
    for_columns(columns_, offset_, left_, static_cast<int>(bytes_.size()), [&](int vectors, bool is_tail) {
      const std::span<const Vec> vecs(bytes_.data(), static_cast<size_t>(vectors));
      for (int i = 0; i < vectors; ++i) {
        const Vec& vec = vecs[static_cast<size_t>(i)];
        load_part(vec, row + offset_ + i * vec_bytes(), is_tail);
        vmulps(vec, vec, factor);
      }
      store_bytes({to, offset_, bytes_at_, left_}, vecs, is_tail, plan_.store, spare_);
    });
  }

  // 2^(x * log2(e) - top * log2(e)) by its whole and its broken part.
  bool has_quick_exponential() const { return plan_.stores_bytes() && has_masks(); }

  void load_quick_constants() {
    const auto constant = [&](const char* role, float value) {
      const Vec vec = claim_vec(role);
      set_all(vec, value, temp_);
      return vec;
    };
    log2_e_ = constant("log2 e", std::numbers::log2e_v<float>);
    for (const float coefficient : kPowerOfTwo) power_of_two_.push_back(constant("of 2^x", coefficient));
    least_power_ = constant("least exponent", kLeastPower);
    broken_ = claim_vec("broken part");
  }

  // Rows side by side: what one waits for, its folds and its division, hides behind the others. Long rows wait little,
  // and many of them leave L1.
  void emit_quick() {
    constexpr int kLongRow = 2048;
    Xbyak::Label is_long;
    lea(three_rows_, ptr[columns_ + columns_ * 2]);
    cmp(columns_, kLongRow);
    jg(is_long, T_NEAR);
    while_at_least(rows_, 4, [&] { emit_quick_rows(4); });
    L(is_long);
    while_at_least(rows_, 2, [&] { emit_quick_rows(2); });
    while_at_least(rows_, 1, [&] { emit_quick_rows(1); });
  }

  struct QuickRow {
    int number;
    Vec top, sum;
  };
  // Of a matrix of float32 at `base`.
  Xbyak::RegExp row_at(const Gpr& base, const QuickRow& row) const {
    if (row.number == 0) return Xbyak::RegExp(base);
    return row.number == 3 ? base + three_rows_ * 4 : base + columns_ * (4 * row.number);
  }

  void emit_quick_rows(int count) {
    const std::span<const QuickRow> rows = std::span<const QuickRow>(quick_).first(static_cast<size_t>(count));
    find_maxima(rows);
    sum_quick_exponentials(rows);
    for (const QuickRow& row : rows) find_factor(row.sum);
    mov(at_row_, row_);
    for (const QuickRow& row : rows) {
      store_row(to_, at_row_, row.sum);
      lea(from_, ptr[from_ + columns_ * 4]);
      lea(at_row_, ptr[at_row_ + columns_ * 4]);
      add(to_, ptr[args_ + offsetof(SoftmaxArgs, stride_bytes)]);
    }
  }

  void find_maxima(std::span<const QuickRow> rows) {
    set_all(spare_, kLowest, temp_);
    // Two for each row: the other is where its sum will be.
    for (const QuickRow& row : rows) {
      vmovaps(row.top, spare_);
      vmovaps(row.sum, spare_);
    }
    for_columns(columns_, offset_, left_, 2, [&](int vectors, bool is_tail) {
      lea(at_from_, ptr[from_ + offset_]);
      for (int i = 0; i < vectors; ++i) {
        for (const QuickRow& row : rows) {
          const Vec& top = i == 0 ? row.top : row.sum;
          const Xbyak::RegExp at = row_at(at_from_, row) + i * vec_bytes();
          if (is_tail) {
            load_part(x_, at, true);
            fill_behind_tail(x_, spare_);
            vmaxps(top, top, x_);
          } else {
            vmaxps(top, top, ptr[at]);
          }
        }
      }
    });
    for (const QuickRow& row : rows) {
      vmaxps(row.top, row.top, row.sum);
      fold_lanes(row.top, spare_, [&](const auto& into, const auto& a, const auto& b) { vmaxps(into, a, b); });
    }
  }

  void sum_quick_exponentials(std::span<const QuickRow> rows) {
    constexpr int kFloor = 9;  // of vreduceps: the distance from the largest integer below, no exceptions
    for (const QuickRow& row : rows) {
      vmulps(row.top, row.top, log2_e_);
      zero(row.sum);
    }
    for_columns(columns_, offset_, left_, 2, [&](int vectors, bool is_tail) {
      lea(at_from_, ptr[from_ + offset_]);
      lea(at_row_, ptr[row_ + offset_]);
      for (int i = 0; i < vectors; ++i) {
        for (const QuickRow& row : rows) {
          load_part(x_, row_at(at_from_, row) + i * vec_bytes(), is_tail);
          vfmsub213ps(x_, log2_e_, row.top);
          find_normal(x_, least_power_);
          vreduceps(broken_, x_, kFloor);
          vmovaps(spare_, power_of_two_[0]);
          for (size_t k = 1; k < power_of_two_.size(); ++k) vfmadd213ps(spare_, broken_, power_of_two_[k]);
          vscalefps(x_ | normal_ | T_z, spare_, x_);  // by its floor
          if (is_tail) clear_behind_tail(x_);
          vaddps(row.sum, row.sum, x_);
          store_part(row_at(at_row_, row) + i * vec_bytes(), x_, is_tail);
        }
      }
    });
    for (const QuickRow& row : rows)
      fold_lanes(row.sum, spare_, [&](const auto& into, const auto& a, const auto& b) { vaddps(into, a, b); });
  }

  std::vector<QuickRow> quick_;
  Gpr at_from_, row_, bytes_at_, at_row_, three_rows_, next_;
  Vec log2_e_, least_power_, broken_;
  std::vector<Vec> tops_, bytes_, power_of_two_;
};

}  // namespace

std::string to_string(const SoftmaxPlan& plan) {
  return std::string(plan.is_log ? "log_softmax" : "softmax") + (plan.is_strided ? " strided" : " rows") +
         (plan.keeps_columns ? ", columns kept" : "") +
         (plan.interleaved > 1 ? " interleaved by " + std::to_string(plan.interleaved) : "") +
         (plan.stores_bytes() ? " " + to_string(plan.store) : "");
}

Kernel<SoftmaxFn> softmax_kernel(const SoftmaxPlan& plan) {
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  if (plan.stores_bytes() && (plan.is_log || plan.is_strided || plan.interleaved > 1))
    throw JitError("no bytes from this form: " + key);
  return Kernel<SoftmaxFn>(cached_code(key, [&] {
    if (plan.is_strided) return emit_softmax_columns(plan, key);
    SoftmaxRowsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
