#include "jit/kernels/rows/normalize.h"

#include <cstddef>

#include "jit/kernels/rows/reduce_emitter.h"

namespace lathe {
namespace {

constexpr int kUnroll = 4;  // vaddps: latency 4 cycles (3 on Zen 4), two a cycle; loads bound it to 2 vectors a cycle

// Rows are taken two at a time where there are registers for it: one's folds, root and division hide behind the other.
class NormalizeEmitter : public RowEmitter {
 public:
  explicit NormalizeEmitter(const NormalizePlan& plan) : RowEmitter(plan.isa), plan_(plan) {}

  void emit() {
    claim();
    begin();
    load_arguments();
    if (takes_pairs()) while_at_least(rows_, 2, [&] { emit_rows(2); });
    while_at_least(rows_, 1, [&] { emit_rows(1); });
    end();
    emit_tables();
    if (plan_.stores_bytes()) emit_requantization(plan_.store);
  }

 private:
  static constexpr int kMostRows = 2;

  bool takes_pairs() const { return has_masks() && !plan_.adds_skip; }
  bool joins_passes() const { return plan_.centers && plan_.joins_passes; }

  void claim() {
    args_ = argument(0);
    from_[0] = claim_gpr("from");
    to_[0] = claim_gpr("to");
    rows_ = claim_gpr("rows");
    columns_ = claim_gpr("columns");
    offset_ = claim_gpr("offset");
    left_ = claim_gpr("columns left");
    temp_ = claim_gpr("temporary");
    scale_ = claim_gpr("scale");
    bias_ = claim_gpr("bias");
    if (plan_.stores_bytes()) bytes_at_ = claim_gpr("at bytes");
    if (takes_pairs()) {
      from_[1] = claim_gpr("from, second row");
      to_[1] = claim_gpr("to, second row");
    }
    if (plan_.adds_skip) {
      skip_ = claim_gpr("skip");
      skip_bias_ = claim_gpr("skip bias");
      sum_ = claim_gpr("sum");
    }
    mean_ = claim_vecs("mean", takes_pairs() ? kMostRows : 1);
    deviation_ = claim_vecs("deviation", takes_pairs() ? kMostRows : 1);
    spare_ = claim_vec("spare");
    partial_ = claim_vecs("partial sums", kUnroll);
    x_ = claim_vecs("x", kUnroll);
    if (joins_passes()) {
      squares_ = claim_vecs("partial squares", kUnroll - (takes_pairs() ? 0 : 1));
      if (!takes_pairs()) squares_.push_back(deviation_[0]);
    }
    if (plan_.has_scale && plan_.has_bias && has_masks()) bias_part_ = claim_vec("bias of these columns");
  }

  void load_pointer(const Gpr& into, size_t offset) { mov(into, ptr[args_ + offset]); }

  void load_arguments() {
    load_pointer(from_[0], offsetof(NormalizeArgs, from));
    load_pointer(to_[0], offsetof(NormalizeArgs, to));
    load_pointer(rows_, offsetof(NormalizeArgs, rows));
    load_pointer(columns_, offsetof(NormalizeArgs, columns));
    load_pointer(scale_, offsetof(NormalizeArgs, scale));
    load_pointer(bias_, offsetof(NormalizeArgs, bias));
    if (plan_.adds_skip) {
      load_pointer(skip_, offsetof(NormalizeArgs, skip));
      load_pointer(skip_bias_, offsetof(NormalizeArgs, skip_bias));
      load_pointer(sum_, offsetof(NormalizeArgs, sum));
    }
    prepare_tail(columns_, temp_);
  }

  void emit_rows(int count) {
    together_ = count;
    if (count == 2) {
      lea(from_[1], ptr[from_[0] + columns_ * 4]);
      lea(to_[1], ptr[to_[0] + columns_ * bytes_stored()]);
    }
    if (joins_passes()) {
      find_both();
    } else {
      find_one_by_one();
    }
    for (int row = 0; row < count; ++row) find_deviation(row);
    if (plan_.writes_statistics) {
      for (int row = 0; row < count; ++row) write_statistics(row);
    }
    if (plan_.writes_rows) write_rows();
    advance();
  }

  // Of the rows that are taken together, and vectors of each in a turn of a loop.
  int vectors_of_row() const { return kUnroll / together_; }
  const Vec& of(const std::vector<Vec>& vecs, int row, int i) const {
    return vecs[static_cast<size_t>(row * vectors_of_row() + i)];
  }
  const Vec& partial(int row, int i) const { return of(partial_, row, i); }
  const Vec& mean(int row) const { return mean_[static_cast<size_t>(row)]; }
  const Vec& deviation(int row) const { return deviation_[static_cast<size_t>(row)]; }
  int bytes_stored() const { return plan_.stores_bytes() ? 1 : 4; }

  // The mean, and in the first partial sum the variance.
  void find_one_by_one() {
    if (plan_.centers) {
      accumulate([&](int row, int i, const Vec& x, bool) { vaddps(partial(row, i), partial(row, i), x); }, true);
      for (int row = 0; row < together_; ++row) vmulps(mean(row), partial(row, 0), mean_share());
    }
    const bool reads_first = !plan_.centers;
    point_at_next(1);
    accumulate(
        [&](int row, int i, const Vec& x, bool is_tail) {
          if (plan_.centers) move_by_mean(row, x, is_tail);
          vfmadd231ps(partial(row, i), x, x);
          if (together_ < 2) return;
          if (plan_.writes_rows && !plan_.stores_bytes()) prefetchw(ptr[to_[row] + offset_ + i * vec_bytes()]);
          if (row == 1) prefetcht0(ptr[temp_ + offset_ + i * vec_bytes()]);
        },
        reads_first);
    for (int row = 0; row < together_; ++row) vmulps(partial(row, 0), partial(row, 0), mean_share());
  }

  // temp_ = a row of the next pair, which comes while this one is computed.
  void point_at_next(int row) {
    if (together_ < 2) return;
    lea(temp_, ptr[from_[1] + columns_ * 4]);
    if (row == 1) lea(temp_, ptr[temp_ + columns_ * 4]);
  }

  void find_both() {
    for (int row = 0; row < together_; ++row) vbroadcastss(mean(row), dword[from_[row]]);
    for (const Vec& vec : squares_) zero(vec);
    accumulate(
        [&](int row, int i, const Vec& x, bool is_tail) {
          move_by_mean(row, x, is_tail);
          vaddps(partial(row, i), partial(row, i), x);
          vfmadd231ps(of(squares_, row, i), x, x);
        },
        true);
    for (int row = 0; row < together_; ++row) {
      add_up(squares_, row);
      const Vec &sum = partial(row, 0), &square = of(squares_, row, 0);
      const Vec share = mean_share();
      vmulps(square, square, share);
      vmulps(sum, sum, share);
      vaddps(mean(row), mean(row), sum);
      vfnmadd231ps(square, sum, sum);
      // In this order a NaN stays one.
      zero(spare_);
      vmaxps(sum, spare_, square);
    }
  }

  void move_by_mean(int row, const Vec& x, bool is_tail) {
    vsubps(x, x, mean(row));
    if (is_tail) clear_behind_tail(x);
  }

  // Where the row lies once the skip is added.
  const Gpr& source(int row) const { return plan_.adds_skip ? sum_ : from_[row]; }

  // The first partial sum of each row = the sum over all columns, in all lanes. The first pass over a row also adds and
  // stores the skip.
  template <class Add>
  void accumulate(Add add_to, bool is_first) {
    for (const Vec& vec : partial_) zero(vec);
    for_columns(columns_, offset_, left_, vectors_of_row(), [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        for (int row = 0; row < together_; ++row) {
          const Vec& x = of(x_, row, i);
          const Xbyak::RegExp at = offset_ + i * vec_bytes();
          if (is_first && plan_.adds_skip) {
            add_skip(x, at, is_tail);
          } else {
            load_part(x, source(row) + at, is_tail);
          }
          add_to(row, i, x, is_tail);
        }
      }
    });
    for (int row = 0; row < together_; ++row) add_up(partial_, row);
  }

  // All lanes of all vectors of a row, in all lanes of the first.
  void add_up(const std::vector<Vec>& sums, int row) {
    const Vec& all = of(sums, row, 0);
    for (int i = 1; i < vectors_of_row(); ++i) vaddps(all, all, of(sums, row, i));
    fold_lanes(all, spare_, [&](const auto& into, const auto& a, const auto& b) { vaddps(into, a, b); });
  }

  void add_skip(const Vec& x, const Xbyak::RegExp& at, bool is_tail) {
    load_part(x, from_[0] + at, is_tail);
    load_part(spare_, skip_ + at, is_tail);
    vaddps(x, x, spare_);
    if (plan_.adds_bias) {
      load_part(spare_, skip_bias_ + at, is_tail);
      vaddps(x, x, spare_);
    }
    store_part(sum_ + at, x, is_tail);
  }

  // 1 / columns in all lanes.
  Vec mean_share() {
    vbroadcastss(spare_, dword[args_ + offsetof(NormalizeArgs, column_share)]);
    return spare_;
  }

  void find_deviation(int row) {
    const Vec& variance = partial(row, 0);
    vbroadcastss(spare_, dword[args_ + offsetof(NormalizeArgs, epsilon)]);
    vaddps(variance, variance, spare_);
    // One lane of the narrowest vectors: wide roots and divisions take several times as long.
    const Xbyak::Xmm root(variance.getIdx()), one(spare_.getIdx());
    vsqrtss(root, root, root);
    set_all(spare_, 1.0f, temp_);
    vdivss(one, one, root);
    vbroadcastss(deviation(row), one);
  }

  void write_statistics(int row) {
    if (plan_.centers) write_statistic(mean(row), offsetof(NormalizeArgs, means));
    write_statistic(deviation(row), offsetof(NormalizeArgs, deviations));
  }

  // The place moves on in the argument block: rows are few against columns.
  void write_statistic(const Vec& vec, size_t offset) {
    load_pointer(temp_, offset);
    vmovss(dword[temp_], Xbyak::Xmm(vec.getIdx()));
    add(temp_, 4);
    mov(ptr[args_ + offset], temp_);
  }

  void write_rows() {
    point_at_next(0);
    for_columns(columns_, offset_, left_, vectors_of_row(), [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) write_columns(i, is_tail);
      if (!plan_.stores_bytes()) return;
      vbroadcastss(spare_, dword[args_ + offsetof(NormalizeArgs, factor)]);
      for (int row = 0; row < together_; ++row) {
        const std::span<const Vec> vecs(&of(x_, row, 0), static_cast<size_t>(vectors));
        for (const Vec& vec : vecs) vmulps(vec, vec, spare_);
      }
      for (int row = 0; row < together_; ++row) {
        const std::span<const Vec> vecs(&of(x_, row, 0), static_cast<size_t>(vectors));
        store_bytes({to_[row], offset_, bytes_at_, left_}, vecs, is_tail, plan_.store, spare_);
      }
    });
  }

  // One vector of columns of each row.
  void write_columns(int i, bool is_tail) {
    const Xbyak::RegExp at = offset_ + i * vec_bytes();
    const bool is_joined = plan_.has_scale && plan_.has_bias && has_masks();
    if (is_joined) {
      load_part(spare_, scale_ + at, is_tail);
      load_part(bias_part_, bias_ + at, is_tail);
    }
    for (int row = 0; row < together_; ++row) {
      const Vec& x = of(x_, row, i);
      load_part(x, source(row) + at, is_tail);
      if (plan_.centers) vsubps(x, x, mean(row));
      vmulps(x, x, deviation(row));
      if (is_joined) {
        vfmadd213ps(x, spare_, bias_part_);
      } else {
        apply_scale(x, at, is_tail);
      }
      if (!plan_.stores_bytes()) store_part(to_[row] + at, x, is_tail);
    }
    if (together_ == 2) prefetcht0(ptr[temp_ + at]);
  }

  void apply_scale(const Vec& x, const Xbyak::RegExp& at, bool is_tail) {
    if (plan_.has_scale) {
      load_part(spare_, scale_ + at, is_tail);
      vmulps(x, x, spare_);
    }
    if (plan_.has_bias) {
      load_part(spare_, bias_ + at, is_tail);
      vaddps(x, x, spare_);
    }
  }

  void advance() {
    const int last = together_ - 1;
    lea(from_[0], ptr[from_[last] + columns_ * 4]);
    lea(to_[0], ptr[to_[last] + columns_ * bytes_stored()]);
    if (!plan_.adds_skip) return;
    lea(skip_, ptr[skip_ + columns_ * 4]);
    lea(sum_, ptr[sum_ + columns_ * 4]);
  }

  NormalizePlan plan_;
  int together_ = 1;
  Gpr args_, from_[kMostRows], to_[kMostRows], rows_, columns_, offset_, left_, temp_, scale_, bias_, skip_, skip_bias_,
      sum_, bytes_at_;
  Vec spare_, bias_part_;
  std::vector<Vec> mean_, deviation_, partial_, x_, squares_;
};

class AffineEmitter : public RowEmitter {
 public:
  explicit AffineEmitter(Isa isa) : RowEmitter(isa) {}

  void emit() {
    const Gpr args = argument(0), from = claim_gpr("from"), to = claim_gpr("to"), rows = claim_gpr("rows"),
              columns = claim_gpr("columns"), offset = claim_gpr("offset"), left = claim_gpr("columns left"),
              temp = claim_gpr("temporary"), row = claim_gpr("row");
    const Vec center = claim_vec("center"), scale = claim_vec("scale"), shift = claim_vec("shift");
    const std::vector<Vec> x = claim_vecs("x", kUnroll);
    begin();
    mov(from, ptr[args + offsetof(AffineArgs, from)]);
    mov(to, ptr[args + offsetof(AffineArgs, to)]);
    mov(rows, ptr[args + offsetof(AffineArgs, rows)]);
    mov(columns, ptr[args + offsetof(AffineArgs, columns)]);
    prepare_tail(columns, temp);
    xor_(row.cvt32(), row.cvt32());
    const auto scalar = [&](const Vec& into, size_t place) {
      mov(temp, ptr[args + place]);
      vbroadcastss(into, dword[temp + row * 4]);
    };
    loop_down(rows, [&] {
      scalar(center, offsetof(AffineArgs, centers));
      scalar(scale, offsetof(AffineArgs, scales));
      scalar(shift, offsetof(AffineArgs, shifts));
      for_columns(columns, offset, left, kUnroll, [&](int vectors, bool is_tail) {
        for (int i = 0; i < vectors; ++i) {
          const Vec& value = x[static_cast<size_t>(i)];
          load_part(value, from + offset + i * vec_bytes(), is_tail);
          vsubps(value, value, center);
          vfmadd213ps(value, scale, shift);
          store_part(to + offset + i * vec_bytes(), value, is_tail);
        }
      });
      inc(row);
      lea(from, ptr[from + columns * 4]);
      lea(to, ptr[to + columns * 4]);
    });
    end();
    emit_tables();
  }
};

const char* isa_text(Isa isa) { return has_avx512(isa) ? "avx512 " : "avx2 "; }

}  // namespace

std::string to_string(const NormalizePlan& plan) {
  std::string text = plan.centers ? "normalize mean" : "normalize rms";
  if (plan.centers && plan.joins_passes) text += " one-pass";
  if (plan.adds_skip) text += " skip";
  if (plan.adds_bias) text += "+bias";
  if (plan.has_scale) text += " scale";
  if (plan.has_bias) text += " bias";
  if (!plan.writes_rows) text += " no-rows";
  if (plan.writes_statistics) text += " statistics";
  if (plan.stores_bytes()) text += " " + to_string(plan.store);
  return text;
}

Kernel<NormalizeFn> normalize_kernel(const NormalizePlan& plan) {
  const std::string key = isa_text(plan.isa) + to_string(plan);
  return Kernel<NormalizeFn>(cached_code(key, [&] {
    NormalizeEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

Kernel<AffineFn> affine_rows_kernel(Isa isa) {
  const std::string key = std::string(isa_text(isa)) + "affine rows";
  return Kernel<AffineFn>(cached_code(key, [&] {
    AffineEmitter emitter(isa);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
