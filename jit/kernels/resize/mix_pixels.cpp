#include "jit/kernels/resize/mix_pixels.h"

#include <algorithm>
#include <cstddef>

#include "jit/kernels/resize/mix_emitter.h"

namespace lathe {
namespace {

constexpr int kUnrolled = 4;  // vectors, of several pixels, in a turn of the loop over pixels

class MixPixelsEmitter final : public MixEmitter {
 public:
  explicit MixPixelsEmitter(const MixPixelsPlan& plan)
      : MixEmitter(plan.isa, plan.from, plan.to, plan.by_element), plan_(plan) {
    if (!plan.is_valid()) throw JitError("no plan: " + to_string(plan));
  }

  void emit() {
    claim();
    begin();
    load_constants(place_);
    if (has_tail()) set_tail(plan_.elements % lanes(), place_);
    mov(from_, ptr[args_ + offsetof(MixPixelsArgs, from)]);
    mov(row_to_, ptr[args_ + offsetof(MixPixelsArgs, to)]);
    mov(rows_left_, ptr[args_ + offsetof(MixPixelsArgs, rows)]);
    loop_down(rows_left_, [&] {
      row();
      add(from_, ptr[args_ + offsetof(MixPixelsArgs, from_row)]);
      add(row_to_, ptr[args_ + offsetof(MixPixelsArgs, to_row)]);
    });
    end();
  }

 private:
  bool has_any_length() const { return plan_.elements == 0; }
  bool has_tail() const { return has_masks() && plan_.elements % lanes() != 0; }
  int vectors() const { return (plan_.elements + lanes() - 1) / lanes(); }

  void claim() {
    args_ = argument(0);
    from_ = claim_gpr("from");
    row_to_ = claim_gpr("row of the result");
    to_ = claim_gpr("to");
    offsets_ = claim_gpr("offsets");
    weights_ = claim_gpr("weights");
    pixels_left_ = claim_gpr("pixels left");
    rows_left_ = claim_gpr("rows left");
    place_ = claim_gpr("place");
    if (has_any_length()) {
      at_ = claim_gpr("element");
      left_ = claim_gpr("elements left");
    }
    if (plan_.blends) second_ = claim_gpr("second place");
    if (plan_.terms > kUnrolledTerms) {
      term_offsets_ = claim_gpr("offsets of terms");
      term_weights_ = claim_gpr("weights of terms");
      terms_left_ = claim_gpr("terms left");
    }
    claim_conversions();
    weight_ = claim_vec("weight");
    value_ = claim_vec("value");
    sums_ = claim_vecs("sums", has_any_length() ? kVectorsTogether : vectors());
    if (plan_.alike == 1) return;
    alike_ = claim_gpr("pixels alike");
    for (int term = 0; term < plan_.terms; ++term) places_.push_back(claim_gpr("place of a term"));
    values_ = claim_vecs("what pixels alike are made of", plan_.terms);
    if (vectors() > 1 && factors() <= free_vecs()) factors_ = claim_vecs("weights of pixels alike", factors());
  }

  void row() {
    mov(to_, row_to_);
    mov(offsets_, ptr[args_ + offsetof(MixPixelsArgs, offsets)]);
    mov(weights_, ptr[args_ + offsetof(MixPixelsArgs, weights)]);
    mov(pixels_left_, ptr[args_ + offsetof(MixPixelsArgs, pixels)]);
    if (has_any_length()) return loop_down(pixels_left_, [&] { long_pixel(); });
    if (plan_.alike > 1) return row_of_pixels_alike();
    if (const int together = kUnrolled / vectors(); together > 1) {
      while_at_least(pixels_left_, together, [&] { short_pixels(together); });
    }
    while_at_least(pixels_left_, 1, [&] { short_pixels(1); });
  }

  void row_of_pixels_alike() {
    mov(alike_, ptr[args_ + offsetof(MixPixelsArgs, alike)]);
    while_at_least(pixels_left_, 1, [&] {
      Xbyak::Label one, done;
      cmp(dword[alike_], plan_.alike);
      jl(one, T_NEAR);
      cmp(pixels_left_, plan_.alike);
      jl(one, T_NEAR);
      pixels_alike();
      add(alike_, plan_.alike * 4);
      sub(pixels_left_, plan_.alike - 1);
      jmp(done, T_NEAR);
      L(one);
      short_pixels(1);
      add(alike_, 4);
      L(done);
    });
  }

  // What they are made of is read once.
  void pixels_alike() {
    for (int term = 0; term < plan_.terms; ++term) find(places_[static_cast<size_t>(term)], offsets_ + term * 8);
    for (size_t i = 0; i < factors_.size(); ++i) broadcast(factors_[i], factor_at(static_cast<int>(i)));
    for (int i = 0; i < vectors(); ++i) {
      for (int term = 0; term < plan_.terms; ++term)
        read(value(term), source(places_[static_cast<size_t>(term)], i), lanes_of(i));
      if (plan_.blends) vsubps(value(1), value(1), value(0));
      for (int pixel = 0; pixel < plan_.alike; ++pixel) {
        const Vec& result = sum(pixel % static_cast<int>(sums_.size()));
        add_up_values(result, pixel);
        write(to_ + pixel * plan_.stride + first_element(i) * to_bytes(), result, lanes_of(i));
      }
    }
    next_terms(plan_.alike);
    add(to_, plan_.alike * plan_.stride);
  }

  void add_up_values(const Vec& result, int pixel) {
    if (plan_.blends) {
      vmovaps(result, value(0));
      return vfmadd231ps(result, factor(pixel), value(1));
    }
    for (int term = 0; term < plan_.terms; ++term) {
      const Vec& weight = factor(pixel * plan_.terms + term);
      if (term == 0) {
        vmulps(result, weight, value(0));
      } else {
        vfmadd231ps(result, weight, value(term));
      }
    }
  }

  // Weights of pixels alike: of each one, or each one's second.
  int factors() const { return plan_.alike * (plan_.blends ? 1 : plan_.terms); }
  Xbyak::RegExp factor_at(int number) const { return weights_ + (plan_.blends ? 2 * number + 1 : number) * 4; }
  const Vec& factor(int number) {
    if (!factors_.empty()) return factors_[static_cast<size_t>(number)];
    broadcast(weight_, factor_at(number));
    return weight_;
  }
  const Vec& value(int term) const { return values_[static_cast<size_t>(term)]; }

  void short_pixels(int count) {
    for (int pixel = 0; pixel < count; ++pixel) mix(vectors(), pixel);
    next_terms(count);
    add(to_, count * plan_.stride);
  }

  void long_pixel() {
    xor_(at_, at_);
    mov(left_, ptr[args_ + offsetof(MixPixelsArgs, elements)]);
    for (const int together : {kVectorsTogether, 2, 1}) {
      if (plan_.by_element && together > 1) continue;
      while_at_least(left_, together * step(), [&] {
        mix(together, 0);
        add(at_, together * step());
      });
    }
    if (!plan_.by_element) mix_last();
    next_terms(1);
    add(to_, ptr[args_ + offsetof(MixPixelsArgs, stride)]);
  }

  // What is left ends a vector.
  void mix_last() {
    Xbyak::Label done;
    test(left_, left_);
    jz(done, T_NEAR);
    lea(at_, ptr[at_ + left_ - lanes()]);
    mix(1, 0);
    L(done);
  }

  void next_terms(int pixels) {
    add(offsets_, pixels * plan_.terms * static_cast<int>(sizeof(int64_t)));
    add(weights_, pixels * plan_.terms * static_cast<int>(sizeof(float)));
  }

  // `count` vectors of one pixel's sums.
  void mix(int count, int pixel) {
    const int first = pixel * plan_.terms;
    if (plan_.blends) {
      blend(count, first);
    } else if (plan_.terms <= kUnrolledTerms) {
      for (int term = 0; term < plan_.terms; ++term) {
        add_term(count, offsets_ + (first + term) * 8, weights_ + (first + term) * 4, term == 0);
      }
    } else {
      for (int i = 0; i < count; ++i) zero(sum(i));
      lea(term_offsets_, ptr[offsets_ + first * 8]);
      lea(term_weights_, ptr[weights_ + first * 4]);
      mov(terms_left_, plan_.terms);
      loop_down(terms_left_, [&] {
        add_term(count, term_offsets_, term_weights_, false);
        add(term_offsets_, 8);
        add(term_weights_, 4);
      });
    }
    for (int i = 0; i < count; ++i) {
      const Xbyak::RegExp at = to_ + pixel * plan_.stride + first_element(i) * to_bytes();
      write(has_any_length() ? at + at_ * to_bytes() : at, sum(i), lanes_of(i));
    }
  }

  void blend(int count, int first) {
    find(place_, offsets_ + first * 8);
    find(second_, offsets_ + (first + 1) * 8);
    broadcast(weight_, weights_ + (first + 1) * 4);
    for (int i = 0; i < count; ++i) {
      read(value_, source(place_, i), lanes_of(i));
      read(sum(i), source(second_, i), lanes_of(i));
      vsubps(sum(i), sum(i), value_);
      vfmadd213ps(sum(i), weight_, value_);
    }
  }

  void add_term(int count, const Xbyak::RegExp& offset, const Xbyak::RegExp& weight, bool is_first) {
    find(place_, offset);
    broadcast(weight_, weight);
    for (int i = 0; i < count; ++i) {
      read(value_, source(place_, i), lanes_of(i));
      if (is_first) {
        vmulps(sum(i), weight_, value_);
      } else {
        vfmadd231ps(sum(i), weight_, value_);
      }
    }
  }

  const Vec& sum(int i) const { return sums_[static_cast<size_t>(i)]; }

  void find(const Gpr& place, const Xbyak::RegExp& offset) {
    mov(place, ptr[offset]);
    if (has_any_length()) add(place, from_);
  }

  // The last vector of a pixel is its tail, or ends with it.
  Lanes lanes_of(int vector) const { return has_tail() && vector + 1 == vectors() ? Lanes::tail : Lanes::all; }
  int first_element(int vector) const {
    const bool ends_pixel = !has_any_length() && !has_masks();
    return ends_pixel ? std::min(vector * lanes(), plan_.elements - lanes()) : vector * step();
  }
  Xbyak::RegExp source(const Gpr& place, int vector) const {
    const int bytes = first_element(vector) * from_bytes();
    return has_any_length() ? place + at_ * from_bytes() + bytes : from_ + place + bytes;
  }

  const MixPixelsPlan plan_;
  Gpr args_, from_, row_to_, to_, offsets_, weights_, pixels_left_, rows_left_, place_, at_, left_, second_;
  Gpr alike_, term_offsets_, term_weights_, terms_left_;
  std::vector<Gpr> places_;
  Vec weight_, value_;
  std::vector<Vec> sums_, values_, factors_;
};

}  // namespace

Kernel<MixPixelsFn> mix_pixels_kernel(const MixPixelsPlan& plan) {
  const std::string key = to_string(plan);
  return Kernel<MixPixelsFn>(cached_code(key, [&] {
    MixPixelsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
