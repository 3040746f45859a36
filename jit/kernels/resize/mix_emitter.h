#pragma once
// What the kernels that mix float32 and bytes have in common: how elements become float32, and sums elements.
#include <cstdint>
#include <vector>

#include "jit/emitter.h"
#include "jit/kernels/resize/mix_terms.h"

namespace lathe {

class MixEmitter : public Emitter {
 protected:
  // `by_element`: a vector has one element.
  MixEmitter(Isa isa, MixElement from, MixElement to, bool by_element = false)
      : Emitter(isa), from_type_(from), to_type_(to), by_element_(by_element) {}

  int step() const { return by_element_ ? 1 : lanes(); }  // elements of a vector
  int from_bytes() const { return static_cast<int>(bytes_of(from_type_)); }
  int to_bytes() const { return static_cast<int>(bytes_of(to_type_)); }

  // `spare`: whose contents do not matter yet.
  void claim_conversions();
  void load_constants(const Gpr& spare);

  // The tail: the first elements of a vector alone, on AVX-512 (as many as set_tail() says).
  enum class Lanes { all, tail };
  void set_tail(int elements, const Gpr& spare);
  void read(const Vec& vec, const Xbyak::RegExp& at, Lanes lanes = Lanes::all);
  void write(const Xbyak::RegExp& at, const Vec& sum, Lanes lanes = Lanes::all);  // changes the sum

 private:
  static Xbyak::Opmask tail() { return Xbyak::Opmask(1); }
  void read_element(const Xbyak::Xmm& vec, const Xbyak::RegExp& at);
  void write_bytes(const Xbyak::RegExp& at, const Vec& sum, Lanes lanes);

  const MixElement from_type_, to_type_;
  const bool by_element_;
  Gpr byte_;
  Vec rounded_, slack_, sign_, low_byte_;
};

}  // namespace lathe
