#include "jit/kernels/normalize.h"

#include <cstddef>

#include "jit/kernels/reduce_emitter.h"

namespace lathe {
namespace {

constexpr int kUnroll = 4;  // vaddps: latency 4 cycles (3 on Zen 4), two a cycle; loads bound it to 2 vectors a cycle

class NormalizeEmitter : public RowEmitter {
 public:
  explicit NormalizeEmitter(const NormalizePlan& plan) : RowEmitter(plan.isa), plan_(plan) {}

  void emit() {
    claim();
    begin();
    load_arguments();
    loop_down(rows_, [&] { emit_row(); });
    end();
    emit_tables();
    if (plan_.stores_bytes()) emit_requantization(plan_.store);
  }

 private:
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
    if (plan_.adds_skip) {
      skip_ = claim_gpr("skip");
      skip_bias_ = claim_gpr("skip bias");
      sum_ = claim_gpr("sum");
    }
    mean_ = claim_vec("mean");
    deviation_ = claim_vec("deviation");
    spare_ = claim_vec("spare");
    partial_ = claim_vecs("partial sums", kUnroll);
    x_ = claim_vecs("x", kUnroll);
    if (joins_passes()) {
      squares_ = claim_vecs("partial squares", kUnroll - 1);
      squares_.push_back(deviation_);
    }
  }

  bool joins_passes() const { return plan_.centers && plan_.joins_passes; }

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
    prepare_tail(columns_, temp_);
  }

  void emit_row() {
    if (joins_passes()) {
      find_both();
    } else {
      find_one_by_one();
    }
    find_deviation();
    if (plan_.writes_statistics) write_statistics();
    if (plan_.writes_rows) write_row();
    advance();
  }

  // The mean, and in partial_[0] the variance.
  void find_one_by_one() {
    if (plan_.centers) {
      accumulate([&](int i, const Vec& x, bool) { vaddps(partial(i), partial(i), x); }, true);
      vmulps(mean_, partial_[0], mean_share());
    }
    const bool reads_first = !plan_.centers;
    accumulate(
        [&](int i, const Vec& x, bool is_tail) {
          if (plan_.centers) move_by_mean(x, is_tail);
          vfmadd231ps(partial(i), x, x);
        },
        reads_first);
    vmulps(partial_[0], partial_[0], mean_share());
  }

  void find_both() {
    vbroadcastss(mean_, dword[from_]);
    for (const Vec& vec : squares_) zero(vec);
    accumulate(
        [&](int i, const Vec& x, bool is_tail) {
          move_by_mean(x, is_tail);
          vaddps(partial(i), partial(i), x);
          vfmadd231ps(squares_[static_cast<size_t>(i)], x, x);
        },
        true);
    add_up(squares_);
    vmulps(squares_[0], squares_[0], mean_share());
    vmulps(partial_[0], partial_[0], spare_);
    vaddps(mean_, mean_, partial_[0]);
    vfnmadd231ps(squares_[0], partial_[0], partial_[0]);
    // In this order a NaN stays one.
    zero(spare_);
    vmaxps(partial_[0], spare_, squares_[0]);
  }

  void move_by_mean(const Vec& x, bool is_tail) {
    vsubps(x, x, mean_);
    if (is_tail) clear_behind_tail(x);
  }
  const Vec& partial(int i) const { return partial_[static_cast<size_t>(i)]; }

  // Where the row lies once the skip is added.
  const Gpr& source() const { return plan_.adds_skip ? sum_ : from_; }

  // partial_[0] = the sum over all columns, in all lanes. The first pass over a row also adds and stores the skip.
  template <class Add>
  void accumulate(Add add_to, bool is_first) {
    for (const Vec& vec : partial_) zero(vec);
    for_columns(columns_, offset_, left_, kUnroll, [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        const Vec& x = x_[static_cast<size_t>(i)];
        const Xbyak::RegExp at = offset_ + i * vec_bytes();
        if (is_first && plan_.adds_skip) {
          add_skip(x, at, is_tail);
        } else {
          load_part(x, source() + at, is_tail);
        }
        add_to(i, x, is_tail);
      }
    });
    add_up(partial_);
  }

  // All lanes of all vectors, in all lanes of the first.
  void add_up(const std::vector<Vec>& sums) {
    for (size_t i = 1; i < sums.size(); ++i) vaddps(sums[0], sums[0], sums[i]);
    fold_lanes(sums[0], spare_, [&](const auto& into, const auto& a, const auto& b) { vaddps(into, a, b); });
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

  void find_deviation() {
    vbroadcastss(spare_, dword[args_ + offsetof(NormalizeArgs, epsilon)]);
    vaddps(partial_[0], partial_[0], spare_);
    vsqrtps(partial_[0], partial_[0]);
    set_all(spare_, 1.0f, temp_);
    vdivps(deviation_, spare_, partial_[0]);
  }

  void write_statistics() {
    if (plan_.centers) write_statistic(mean_, offsetof(NormalizeArgs, means));
    write_statistic(deviation_, offsetof(NormalizeArgs, deviations));
  }

  // The place moves on in the argument block: rows are few against columns.
  void write_statistic(const Vec& vec, size_t offset) {
    load_pointer(temp_, offset);
    vmovss(dword[temp_], Xbyak::Xmm(vec.getIdx()));
    add(temp_, 4);
    mov(ptr[args_ + offset], temp_);
  }

  void write_row() {
    for_columns(columns_, offset_, left_, kUnroll, [&](int vectors, bool is_tail) {
      for (int i = 0; i < vectors; ++i) {
        const Vec& x = x_[static_cast<size_t>(i)];
        const Xbyak::RegExp at = offset_ + i * vec_bytes();
        load_part(x, source() + at, is_tail);
        if (plan_.centers) vsubps(x, x, mean_);
        vmulps(x, x, deviation_);
        apply_scale(x, at, is_tail);
        if (!plan_.stores_bytes()) store_part(to_ + at, x, is_tail);
      }
      if (plan_.stores_bytes()) store_as_bytes({x_.data(), static_cast<size_t>(vectors)}, is_tail);
    });
  }

  void store_as_bytes(std::span<const Vec> vecs, bool is_tail) {
    vbroadcastss(spare_, dword[args_ + offsetof(NormalizeArgs, factor)]);
    for (const Vec& vec : vecs) vmulps(vec, vec, spare_);
    store_bytes({to_, offset_, bytes_at_, left_}, vecs, is_tail, plan_.store, spare_);
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
    lea(from_, ptr[from_ + columns_ * 4]);
    lea(to_, ptr[to_ + columns_ * (plan_.stores_bytes() ? 1 : 4)]);
    if (!plan_.adds_skip) return;
    lea(skip_, ptr[skip_ + columns_ * 4]);
    lea(sum_, ptr[sum_ + columns_ * 4]);
  }

  NormalizePlan plan_;
  Gpr args_, from_, to_, rows_, columns_, offset_, left_, temp_, scale_, bias_, skip_, skip_bias_, sum_, bytes_at_;
  Vec mean_, deviation_, spare_;
  std::vector<Vec> partial_, x_, squares_;
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
