#include "jit/kernels/resize/mix_elements.h"

#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kRows = 4;  // in a turn of the loop over them

class MixElementsEmitter final : public Emitter {
 public:
  explicit MixElementsEmitter(const MixElementsPlan& plan) : Emitter(plan.isa), plan_(plan) {
    if (!plan.is_valid()) throw JitError("no plan: " + to_string(plan));
  }

  void emit() {
    claim();
    begin();
    mov(to_, ptr[args_ + offsetof(MixElementsArgs, to)]);
    mov(offsets_, ptr[args_ + offsetof(MixElementsArgs, offsets)]);
    mov(order_, ptr[args_ + offsetof(MixElementsArgs, order)]);
    mov(weights_, ptr[args_ + offsetof(MixElementsArgs, weights)]);
    mov(left_, ptr[args_ + offsetof(MixElementsArgs, sums)]);
    if (has_masked_moves()) load_masks();
    mov(from_row_, ptr[args_ + offsetof(MixElementsArgs, from_row)]);
    mov(to_row_, ptr[args_ + offsetof(MixElementsArgs, to_row)]);
    if (plan_.has_few_sums) {
      sum_vector();
    } else {
      while_at_least(left_, lanes(), [&] { sum_vector(); });
      sum_last();
    }
    end();
  }

 private:
  bool has_masked_moves() const { return plan_.has_short_row || plan_.has_few_sums; }
  int weight_vectors() const { return plan_.blends ? 1 : plan_.terms; }

  void claim() {
    args_ = argument(0);
    to_ = claim_gpr("to");
    offsets_ = claim_gpr("offsets");
    order_ = claim_gpr("order of elements");
    weights_ = claim_gpr("weights");
    left_ = claim_gpr("sums left");
    rows_left_ = claim_gpr("rows left");
    row_ = claim_gpr("row");
    row_to_ = claim_gpr("row of sums");
    from_row_ = claim_gpr("from row to row");
    to_row_ = claim_gpr("from row to row of sums");
    sum_ = claim_vec("sum");
    value_ = claim_vec("value");
    turned_ = claim_vec("order, or from the second window");
    for (int i = 0; i < plan_.windows; ++i) windows_.push_back(claim_vec("window"));
    if (plan_.windows == 0 || !has_masks()) scratch_ = claim_vec("lanes");
    if (has_masked_moves() && !has_masks()) masks_ = claim_vecs("masks", 3);
    // Where there is room, a vector's tables stay for all rows.
    if (plan_.terms + weight_vectors() <= free_vecs()) {
      kept_order_ = claim_vecs("order", plan_.terms);
      kept_weights_ = claim_vecs("weights", weight_vectors());
    } else if (plan_.terms > kUnrolledTerms) {
      term_order_ = claim_gpr("order of a term");
      term_weights_ = claim_gpr("weights of a term");
      terms_left_ = claim_gpr("terms left");
    }
  }

  void load_masks() {
    mov(row_, ptr[args_ + offsetof(MixElementsArgs, masks)]);
    for (int i = 0; i < 3; ++i) {
      if (!has_masks()) {
        load(masks_[static_cast<size_t>(i)], row_ + i * vec_bytes());
        continue;
      }
      load(value_, row_ + i * vec_bytes());
      vptestmd(opmask(i), Xbyak::Zmm(value_.getIdx()), Xbyak::Zmm(value_.getIdx()));
    }
  }
  static Xbyak::Opmask opmask(int number) { return Xbyak::Opmask(number + 1); }
  static Xbyak::Opmask gathered() { return Xbyak::Opmask(4); }

  // What is left ends a vector.
  void sum_last() {
    Xbyak::Label done;
    test(left_, left_);
    jz(done, T_NEAR);
    lea(to_, ptr[to_ + left_ * 4 - vec_bytes()]);
    sum_vector();
    L(done);
  }

  // A vector of each row's sums.
  void sum_vector() {
    for (size_t i = 0; i < kept_order_.size(); ++i) load(kept_order_[i], order_ + static_cast<int>(i) * vec_bytes());
    for (size_t i = 0; i < kept_weights_.size(); ++i)
      load(kept_weights_[i], weights_ + static_cast<int>(i) * vec_bytes());
    movsxd(row_, dword[offsets_]);
    add(row_, ptr[args_ + offsetof(MixElementsArgs, from)]);
    mov(row_to_, to_);
    mov(rows_left_, ptr[args_ + offsetof(MixElementsArgs, rows)]);
    while_at_least(rows_left_, kRows, [&] {
      for (int row = 0; row < kRows; ++row) sum_row();
    });
    while_at_least(rows_left_, 1, [&] { sum_row(); });
    add(offsets_, 4);
    add(order_, plan_.terms * vec_bytes());
    add(weights_, weight_vectors() * vec_bytes());
    add(to_, vec_bytes());
  }

  void sum_row() {
    for (int i = 0; i < plan_.windows; ++i) load_window(i);
    if (plan_.blends) {
      blend();
    } else {
      add_up();
    }
    store_sums();
    add(row_, from_row_);
    add(row_to_, to_row_);
  }

  void blend() {
    pick(value_, order(0));
    pick(sum_, order(1));
    vsubps(sum_, sum_, value_);
    if (kept_weights_.empty()) {
      vfmadd132ps(sum_, value_, ptr[weights_]);
    } else {
      vfmadd132ps(sum_, value_, kept_weights_[0]);
    }
  }

  void add_up() {
    if (!kept_order_.empty()) {
      for (int term = 0; term < plan_.terms; ++term) {
        pick(value_, order(term));
        multiply_add(kept_weights_[static_cast<size_t>(term)], term == 0);
      }
    } else if (plan_.terms <= kUnrolledTerms) {
      for (int term = 0; term < plan_.terms; ++term) {
        pick(value_, order(term));
        multiply_add(ptr[weights_ + term * vec_bytes()], term == 0);
      }
    } else {
      zero(sum_);
      mov(term_order_, order_);
      mov(term_weights_, weights_);
      mov(terms_left_, plan_.terms);
      loop_down(terms_left_, [&] {
        load(turned_, term_order_ + 0);
        pick(value_, turned_);
        multiply_add(ptr[term_weights_], false);
        add(term_order_, vec_bytes());
        add(term_weights_, vec_bytes());
      });
    }
  }

  void multiply_add(const Xbyak::Operand& weight, bool is_first) {
    if (is_first) {
      vmulps(sum_, value_, weight);
    } else {
      vfmadd231ps(sum_, value_, weight);
    }
  }

  // Which elements a term takes.
  const Vec& order(int term) {
    if (!kept_order_.empty()) return kept_order_[static_cast<size_t>(term)];
    load(turned_, order_ + term * vec_bytes());
    return turned_;
  }

  // ---- Differences of the instruction sets

  static Xbyak::Zmm zmm(const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); }
  static Xbyak::Ymm ymm(const Vec& vec) { return Xbyak::Ymm(vec.getIdx()); }

  void load_window(int number) {
    const Vec& window = windows_[static_cast<size_t>(number)];
    const Xbyak::RegExp at = row_ + number * vec_bytes();
    if (!plan_.has_short_row) return load(window, at);
    if (has_masks()) {
      vmovups(zmm(window) | opmask(number) | T_z, ptr[at]);
    } else {
      vmaskmovps(ymm(window), ymm(masks_[static_cast<size_t>(number)]), ptr[at]);
    }
  }

  void store_sums() {
    if (!plan_.has_few_sums) return store(row_to_ + 0, sum_);
    if (has_masks()) {
      vmovups(ptr[row_to_] | opmask(2), zmm(sum_));
    } else {
      vmaskmovps(ptr[row_to_], ymm(masks_[2]), ymm(sum_));
    }
  }

  void pick(const Vec& into, const Vec& order) {
    if (plan_.windows == 0) return gather(into, order);
    if (plan_.windows == 1) {
      if (has_masks()) return vpermps(zmm(into), zmm(order), zmm(windows_[0]));
      return vpermps(ymm(into), ymm(order), ymm(windows_[0]));
    }
    if (has_masks()) {
      vmovaps(zmm(into), zmm(order));
      return vpermi2ps(zmm(into), zmm(windows_[0]), zmm(windows_[1]));
    }
    // Bit 3 of an order is that of the second window.
    vpermps(ymm(into), ymm(order), ymm(windows_[0]));
    vpslld(ymm(scratch_), ymm(order), 28);
    vpermps(ymm(turned_), ymm(order), ymm(windows_[1]));
    vblendvps(ymm(into), ymm(into), ymm(turned_), ymm(scratch_));
  }

  void gather(const Vec& into, const Vec& order) {
    zero(into);  // else it waits for what was there
    if (has_masks()) {
      kxnorw(gathered(), gathered(), gathered());
      vgatherdps(zmm(into) | gathered(), ptr[row_ + zmm(order) * 4]);
    } else {
      vpcmpeqd(ymm(scratch_), ymm(scratch_), ymm(scratch_));
      vgatherdps(ymm(into), ptr[row_ + ymm(order) * 4], ymm(scratch_));
    }
  }

  const MixElementsPlan plan_;
  Gpr args_, to_, offsets_, order_, weights_, left_, rows_left_, row_, row_to_, from_row_, to_row_;
  Gpr term_order_, term_weights_, terms_left_;
  Vec sum_, value_, turned_, scratch_;
  std::vector<Vec> windows_, masks_, kept_order_, kept_weights_;
};

}  // namespace

bool MixElementsPlan::is_valid() const {
  return terms >= 1 && (!blends || terms == 2) && windows >= 0 && windows <= 2 && (windows > 0 || !has_short_row);
}

std::string to_string(const MixElementsPlan& plan) {
  static constexpr const char* kReads[] = {"gathered", "one window", "two windows"};
  std::string text = vector_set(plan.isa) + " mix elements, " + std::to_string(plan.terms) +
                     (plan.blends ? " blended, " : " terms, ") + kReads[plan.windows];
  if (plan.has_short_row) text += ", short row";
  if (plan.has_few_sums) text += ", few sums";
  return text;
}

Kernel<MixElementsFn> mix_elements_kernel(const MixElementsPlan& plan) {
  const std::string key = to_string(plan);
  return Kernel<MixElementsFn>(cached_code(key, [&] {
    MixElementsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
