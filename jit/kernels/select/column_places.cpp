#include "jit/kernels/select/column_places.h"

#include <cstddef>
#include <string>

#include "jit/emitter.h"

namespace lathe {
namespace {

class ColumnPlacesEmitter : public Emitter {
 public:
  explicit ColumnPlacesEmitter(const ColumnPlacesPlan& plan) : Emitter(plan.isa), plan_(plan) {}

  void emit() {
    claim();
    begin();
    mov(row_, ptr[args_ + offsetof(ColumnPlacesArgs, from)]);
    mov(stride_, ptr[args_ + offsetof(ColumnPlacesArgs, stride_bytes)]);
    mov(left_, ptr[args_ + offsetof(ColumnPlacesArgs, rows)]);
    mov(to_, ptr[args_ + offsetof(ColumnPlacesArgs, places)]);
    zero(place_);
    Xbyak::Label saw_nan, end_of_rows, top, next;
    for (int i = 0; i < plan_.count; ++i) {
      load(x_, row_);
      tell_nan(saw_nan);
      insert(i);
      advance();
    }
    sub(left_, plan_.count);
    jz(end_of_rows, T_NEAR);
    align(16);
    L(top);
    load(x_, row_);
    tell_beyond_or_nan(next);
    tell_nan(saw_nan);
    insert(plan_.count);
    L(next);
    advance();
    dec(left_);
    jnz(top, T_NEAR);
    L(end_of_rows);
    for (int i = 0; i < plan_.count; ++i) store(to_ + i * vec_bytes(), places_[static_cast<size_t>(i)]);
    mov(eax, 1);
    end();
    L(saw_nan);
    xor_(eax, eax);
    end();
    align(4);
    L(one_);
    dd(1);
  }

 private:
  static constexpr uint8_t kLess = 1, kUnordered = 3, kNotGreaterOrEqual = 9, kGreater = 14, kNotLessOrEqual = 6;

  static Xbyak::Zmm z(const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); }
  static Xbyak::Ymm y(const Vec& vec) { return Xbyak::Ymm(vec.getIdx()); }
  bool is_largest() const { return plan_.order == SelectOrder::largest_first; }

  void claim() {
    args_ = argument(0);
    row_ = claim_gpr("row");
    stride_ = claim_gpr("stride");
    left_ = claim_gpr("rows left");
    to_ = claim_gpr("to");
    values_ = claim_vecs("values", plan_.count);
    places_ = claim_vecs("places", plan_.count);
    x_ = claim_vec("x");
    place_ = claim_vec("place");
    const int masks = has_masks() ? 0 : 2;
    beyond_ = claim_vecs("beyond", masks);
  }

  void advance() {
    add(row_, stride_);
    next_place();
  }

  // place += 1
  void next_place() {
    if (has_masks()) {
      vpaddd(z(place_), z(place_), ptr_b[rip + one_]);
    } else {
      vpcmpeqd(y(beyond_[0]), y(beyond_[0]), y(beyond_[0]));
      vpsubd(y(place_), y(place_), y(beyond_[0]));
    }
  }

  void tell_nan(const Xbyak::Label& saw_nan) {
    if (has_masks()) {
      vcmpps(k1, z(x_), z(x_), kUnordered);
      kortestw(k1, k1);
    } else {
      vcmpps(y(beyond_[0]), y(x_), y(x_), kUnordered);
      vtestps(y(beyond_[0]), y(beyond_[0]));
    }
    jnz(saw_nan, T_NEAR);
  }

  void tell_beyond_or_nan(const Xbyak::Label& none) {
    const uint8_t predicate = is_largest() ? kNotLessOrEqual : kNotGreaterOrEqual;
    if (has_masks()) {
      vcmpps(k1, z(x_), z(values_.back()), predicate);
      kortestw(k1, k1);
    } else {
      vcmpps(y(beyond_[0]), y(x_), y(values_.back()), predicate);
      vtestps(y(beyond_[0]), y(beyond_[0]));
    }
    jz(none, T_NEAR);
  }

  // Into a list of so many, of which the last one falls out when it is full. From the end: element i gets what x leaves
  // behind, or x, where it is beyond the one before or is not.
  void insert(int have) {
    const int last = std::min(have, plan_.count - 1);
    for (int i = last; i >= 0; --i) {
      const Vec &value = values_[static_cast<size_t>(i)], &place = places_[static_cast<size_t>(i)];
      const bool is_free = i == have;
      if (is_free) {
        move(value, x_);
        move(place, place_);
      } else {
        if (i == last) compare(i);
        choose(i, value, x_);
        choose(i, place, place_);
      }
      if (i == 0) continue;
      compare(i - 1);
      choose(i - 1, value, values_[static_cast<size_t>(i - 1)]);
      choose(i - 1, place, places_[static_cast<size_t>(i - 1)]);
    }
  }

  void move(const Vec& to, const Vec& from) { vmovaps(to, from); }

  // Two masks take turns.
  void compare(int i) {
    const Vec& value = values_[static_cast<size_t>(i)];
    const uint8_t predicate = is_largest() ? kGreater : kLess;
    if (has_masks()) {
      vcmpps(Xbyak::Opmask(1 + i % 2), z(x_), z(value), predicate);
    } else {
      vcmpps(y(beyond_[static_cast<size_t>(i % 2)]), y(x_), y(value), predicate);
    }
  }
  void choose(int i, const Vec& to, const Vec& from) {
    if (has_masks()) {
      vmovaps(z(to) | Xbyak::Opmask(1 + i % 2), z(from));
    } else {
      vblendvps(y(to), y(to), y(from), y(beyond_[static_cast<size_t>(i % 2)]));
    }
  }

  const ColumnPlacesPlan plan_;
  Xbyak::Label one_;
  Gpr args_, row_, stride_, left_, to_;
  std::vector<Vec> values_, places_, beyond_;
  Vec x_, place_;
};

}  // namespace

Kernel<ColumnPlacesFn> column_places_kernel(const ColumnPlacesPlan& plan) {
  const std::string key = vector_set(plan.isa) + " " + std::to_string(plan.count) +
                          (plan.order == SelectOrder::largest_first ? " largest" : " smallest") + " of columns";
  if (!plan.is_valid()) throw JitError(key + ": not so many");
  return Kernel<ColumnPlacesFn>(cached_code(key, [&] {
    ColumnPlacesEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
