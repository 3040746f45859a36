#include "jit/kernels/rows/normalize.h"

#include <cstddef>

#include "jit/kernels/rows/reduce_emitter.h"

namespace lathe {
namespace {

constexpr int kUnroll = 4;  // vaddps: latency 4 cycles (3 on Zen 4), two a cycle; loads bound it to 2 vectors a cycle

// Rows are taken two or four at a time where there are registers for it: one's folds, root and division hide behind the
// others'. A row's sums are the same in whichever company it is.
class NormalizeEmitter : public RowEmitter {
 public:
  explicit NormalizeEmitter(const NormalizePlan& plan) : RowEmitter(plan.isa), plan_(plan) {}

  void emit() {
    claim();
    begin();
    load_arguments();
    if (most_rows() == 4) emit_fours();
    if (most_rows() > 1) while_at_least(rows_, 2, [&] { emit_rows(2); });
    while_at_least(rows_, 1, [&] { emit_rows(1); });
    end();
    emit_tables();
    if (plan_.stores_bytes()) emit_requantization(plan_.store);
  }

 private:
  int most_rows() const { return !has_masks() || plan_.adds_skip ? 1 : joins_passes() ? 2 : 4; }
  bool joins_passes() const { return plan_.centers && plan_.joins_passes; }
  // Partial sums of a row, and vectors of it in a turn of a loop.
  int vectors_of_row() const { return joins_passes() && most_rows() > 1 ? kUnroll / 2 : kUnroll; }

  void claim() {
    args_ = argument(0);
    from_ = claim_gpr("from");
    to_ = claim_gpr("to");
    rows_ = claim_gpr("rows");
    columns_ = claim_gpr("columns");
    offset_ = claim_gpr("offset");
    left_ = claim_gpr("columns left");
    temp_ = claim_gpr("temporary");
    scale_ = claim_gpr("scale");
    bias_ = claim_gpr("bias");
    if (plan_.stores_bytes()) bytes_at_ = claim_gpr("at bytes");
    if (most_rows() > 1) {
      from_here_ = claim_gpr("from, at these columns");
      to_here_ = claim_gpr("to, at these columns");
      row_bytes_3_ = claim_gpr("bytes of three rows");
    }
    if (plan_.adds_skip) {
      skip_ = claim_gpr("skip");
      skip_bias_ = claim_gpr("skip bias");
      sum_ = claim_gpr("sum");
    }
    mean_ = claim_vecs("mean", most_rows());
    deviation_ = claim_vecs("deviation", most_rows());
    spare_ = claim_vec("spare");
    partial_ = claim_vecs("partial sums", most_rows() * vectors_of_row());
    x_ = claim_vecs("x", kUnroll);
    if (joins_passes()) {
      squares_ = claim_vecs("partial squares", kUnroll - (most_rows() > 1 ? 0 : 1));
      if (most_rows() == 1) squares_.push_back(deviation_[0]);
    }
    if (plan_.has_scale && plan_.has_bias && has_masks()) bias_part_ = claim_vec("bias of these columns");
  }

  void load_pointer(const Gpr& into, size_t offset) { mov(into, ptr[args_ + offset]); }

  void load_arguments() {
    load_pointer(from_, offsetof(NormalizeArgs, from));
    load_pointer(to_, offsetof(NormalizeArgs, to));
    load_pointer(rows_, offsetof(NormalizeArgs, rows));
    load_pointer(columns_, offsetof(NormalizeArgs, columns));
    load_pointer(scale_, offsetof(NormalizeArgs, scale));
    load_pointer(bias_, offsetof(NormalizeArgs, bias));
    if (plan_.adds_skip) {
      load_pointer(skip_, offsetof(NormalizeArgs, skip));
      load_pointer(skip_bias_, offsetof(NormalizeArgs, skip_bias));
      load_pointer(sum_, offsetof(NormalizeArgs, sum));
    }
    if (most_rows() > 1) {
      lea(row_bytes_3_, ptr[columns_ + columns_ * 2]);
      shl(row_bytes_3_, 2);
    }
    prepare_tail(columns_, temp_);
  }

  // Rows of which four fit L1, with the next four and the results: else these drive one another out.
  void emit_fours() {
    constexpr int kBytes = 28 << 10;
    Xbyak::Label too_wide;
    cmp(columns_, kBytes / (4 * (2 * static_cast<int>(sizeof(float)) + bytes_stored())));
    jg(too_wide, T_NEAR);
    while_at_least(rows_, 4, [&] { emit_rows(4); });
    L(too_wide);
  }

  void emit_rows(int count) {
    together_ = count;
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

  const Vec& of(const std::vector<Vec>& vecs, int row, int i) const {
    return vecs[static_cast<size_t>(row * vectors_of_row() + i)];
  }
  const Vec& partial(int row, int i) const { return of(partial_, row, i); }
  const Vec& mean(int row) const { return mean_[static_cast<size_t>(row)]; }
  const Vec& deviation(int row) const { return deviation_[static_cast<size_t>(row)]; }
  int bytes_stored() const { return plan_.stores_bytes() ? 1 : 4; }

  // Where a row that is taken with others lies, whose first is `here`.
  Xbyak::RegExp row_at(const Gpr& here, int row) const {
    switch (row) {
      case 0:
        return here;
      case 1:
        return here + columns_ * 4;
      case 2:
        return here + columns_ * 8;
      default:
        return here + row_bytes_3_;
    }
  }

  // The mean, and in the first partial sum the variance.
  void find_one_by_one() {
    if (plan_.centers) {
      accumulate([&](int row, int i, const Vec& x, bool) { vaddps(partial(row, i), partial(row, i), x); }, true);
      for (int row = 0; row < together_; ++row) vmulps(mean(row), partial(row, 0), mean_share());
    }
    accumulate(
        [&](int row, int i, const Vec& x, bool is_tail) {
          if (plan_.centers) move_by_mean(row, x, is_tail);
          vfmadd231ps(partial(row, i), x, x);
        },
        !plan_.centers);
    for (int row = 0; row < together_; ++row) vmulps(partial(row, 0), partial(row, 0), mean_share());
  }

  void find_both() {
    for (int row = 0; row < together_; ++row) vbroadcastss(mean(row), dword[row_at(from_, row)]);
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
  const Gpr& source() const { return plan_.adds_skip ? sum_ : from_; }

  // The first partial sum of each row = the sum over all columns, in all lanes. The first pass over a row also adds and
  // stores the skip.
  template <class Add>
  void accumulate(Add add_to, bool is_first) {
    for (const Vec& vec : partial_) zero(vec);
    for_columns(columns_, offset_, left_, vectors_of_row(), [&](int vectors, bool is_tail) {
      if (together_ > 1) lea(from_here_, ptr[from_ + offset_]);
      for (int i = 0; i < vectors; ++i) {
        for (int row = 0; row < together_; ++row) {
          const Vec& x = x_[static_cast<size_t>((row * vectors_of_row() + i) % kUnroll)];
          const int ahead = i * vec_bytes();
          if (is_first && plan_.adds_skip) {
            add_skip(x, offset_ + ahead, is_tail);
          } else {
            load_row(x, row, ahead, is_tail);
          }
          add_to(row, i, x, is_tail);
        }
      }
      if (!is_first || !plan_.centers) prefetch(false, vectors);
    });
    for (int row = 0; row < together_; ++row) add_up(partial_, row);
  }

  void load_row(const Vec& x, int row, int ahead, bool is_tail) {
    load_part(x, (together_ > 1 ? row_at(from_here_, row) : source() + offset_) + ahead, is_tail);
  }

  // In the last two passes over rows that are taken together: where the results go, and the next rows, half in each.
  void prefetch(bool is_last_pass, int vectors) {
    if (together_ == 1) return;
    const int half = together_ / 2;
    if (!is_last_pass && plan_.writes_rows && !plan_.stores_bytes()) {
      lea(temp_, ptr[to_ + offset_]);
      for (int row = 0; row < together_; ++row) {
        for (int i = 0; i < vectors; ++i) prefetchw(ptr[row_at(temp_, row) + i * vec_bytes()]);
      }
    }
    lea(temp_, ptr[from_here_ + columns_ * 8]);
    if (together_ == 4) lea(temp_, ptr[temp_ + columns_ * 8]);
    for (int row = 0; row < half; ++row) {
      for (int i = 0; i < vectors; ++i) {
        prefetcht0(ptr[row_at(temp_, is_last_pass ? row : row + half) + i * vec_bytes()]);
      }
    }
  }

  // All lanes of all vectors of a row, in all lanes of the first.
  void add_up(const std::vector<Vec>& sums, int row) {
    const Vec& all = of(sums, row, 0);
    for (int i = 1; i < vectors_of_row(); ++i) vaddps(all, all, of(sums, row, i));
    fold_lanes(all, spare_, [&](const auto& into, const auto& a, const auto& b) { vaddps(into, a, b); });
  }

  void add_skip(const Vec& x, const Xbyak::RegExp& at, bool is_tail) {
    load_part(x, from_ + at, is_tail);
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

  // In registers that no sums need any more.
  const Vec& written(int row, int i) const { return of(partial_, row, i); }

  void write_rows() {
    for_columns(columns_, offset_, left_, vectors_of_row(), [&](int vectors, bool is_tail) {
      if (together_ > 1) {
        lea(from_here_, ptr[from_ + offset_]);
        if (!plan_.stores_bytes()) lea(to_here_, ptr[to_ + offset_]);
      }
      for (int i = 0; i < vectors; ++i) write_columns(i, is_tail);
      if (plan_.stores_bytes()) write_bytes(vectors, is_tail);
      prefetch(true, vectors);
    });
  }

  void write_bytes(int vectors, bool is_tail) {
    vbroadcastss(spare_, dword[args_ + offsetof(NormalizeArgs, factor)]);
    for (int row = 0; row < together_; ++row) {
      for (int i = 0; i < vectors; ++i) vmulps(written(row, i), written(row, i), spare_);
    }
    for (int row = 0; row < together_; ++row) {
      if (row == 1) mov(to_here_, to_);
      if (row >= 1) add(to_here_, columns_);
      const std::span<const Vec> vecs(&written(row, 0), static_cast<size_t>(vectors));
      store_bytes({row == 0 ? to_ : to_here_, offset_, bytes_at_, left_}, vecs, is_tail, plan_.store, spare_);
    }
  }

  // One vector of columns of each row.
  void write_columns(int i, bool is_tail) {
    const int ahead = i * vec_bytes();
    const Xbyak::RegExp at = offset_ + ahead;
    const bool is_joined = plan_.has_scale && plan_.has_bias && has_masks();
    if (is_joined) {
      load_part(spare_, scale_ + at, is_tail);
      load_part(bias_part_, bias_ + at, is_tail);
    }
    for (int row = 0; row < together_; ++row) {
      const Vec& x = written(row, i);
      load_row(x, row, ahead, is_tail);
      if (plan_.centers) vsubps(x, x, mean(row));
      vmulps(x, x, deviation(row));
      if (is_joined) {
        vfmadd213ps(x, spare_, bias_part_);
      } else {
        apply_scale(x, at, is_tail);
      }
      if (!plan_.stores_bytes())
        store_part((together_ > 1 ? row_at(to_here_, row) : to_ + offset_) + ahead, x, is_tail);
    }
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
    for (int row = 0; row < together_; ++row) {
      lea(from_, ptr[from_ + columns_ * 4]);
      lea(to_, ptr[to_ + columns_ * bytes_stored()]);
    }
    if (!plan_.adds_skip) return;
    lea(skip_, ptr[skip_ + columns_ * 4]);
    lea(sum_, ptr[sum_ + columns_ * 4]);
  }

  NormalizePlan plan_;
  int together_ = 1;
  Gpr args_, from_, to_, from_here_, to_here_, row_bytes_3_, rows_, columns_, offset_, left_, temp_, scale_, bias_,
      skip_, skip_bias_, sum_, bytes_at_;
  Vec spare_, bias_part_;
  std::vector<Vec> mean_, deviation_, partial_, x_, squares_;
};

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
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  return Kernel<NormalizeFn>(cached_code(key, [&] {
    NormalizeEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
