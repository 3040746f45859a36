#pragma once
// Base of the hand-scheduled (xbyak) emitters: registers claimed by name, one vocabulary for AVX2 and AVX-512.
#include <xbyak/xbyak.h>

#include <memory>
#include <string>
#include <vector>

#include "jit/kernel.h"
#include "src/base/cpu.h"

namespace lathe {

class Emitter : protected Xbyak::CodeGenerator {
 public:
  using Vec = Xbyak::Xmm;  // a Ymm or Zmm, by the ISA
  using Gpr = Xbyak::Reg64;

  // Copies the finished code into pages of its own, the entries' offsets behind it. `name` is what perf and gdb show.
  std::shared_ptr<const CodePages> finish(const std::string& name);

 protected:
  explicit Emitter(Isa isa);

  Isa isa() const { return isa_; }
  bool has_masks() const { return has_avx512(isa_); }
  int lanes() const { return vector_lanes(isa_); }
  int vec_bytes() const { return lanes() * 4; }

  // System V: arguments come in rdi, rsi, rdx, rcx, r8, r9 (claim them by argument(i)). Callee-saved registers are
  // pushed when first claimed by begin(); claims throw JitError when none is left.
  Gpr argument(int i);
  Gpr claim_gpr(const char* role);
  Vec claim_vec(const char* role);
  std::vector<Vec> claim_vecs(const char* role, int count);
  void release(const Vec& vec);
  void release(const Gpr& gpr);
  int free_vecs() const;

  // What follows is the next function of a KernelSet.
  void begin_entry();
  // Prologue (pushes all callee-saved registers that claim_gpr may hand out) and epilogue (vzeroupper, pops, ret).
  void begin();
  void end();

  // do { body } while (--counter > 0). Requires: counter >= 1 on entry.
  template <class Body>
  void loop_down(const Gpr& counter, Body body) {
    Xbyak::Label top;
    align(16);
    L(top);
    body();
    dec(counter);
    jnz(top, T_NEAR);
  }
  // while (left >= step) { body; left -= step }
  template <class Body>
  void while_at_least(const Gpr& left, int step, Body body) {
    Xbyak::Label top, done;
    L(top);
    cmp(left, step);
    jl(done, T_NEAR);
    body();
    sub(left, step);
    jmp(top, T_NEAR);
    L(done);
  }

  void zero(const Vec& vec);
  void broadcast(const Vec& vec, const Xbyak::RegExp& at);      // one float32 to all lanes
  void fill(const Vec& vec, const Xbyak::Reg32& value);         // the same, of any 32 bits
  void fill(const Vec& vec, uint32_t value, const Gpr& spare);  // changes `spare`
  void load(const Vec& vec, const Xbyak::RegExp& at);
  void store(const Xbyak::RegExp& at, const Vec& vec);
  // The same, in between products: a plain store of a vector takes a turn of Zen 4's multipliers, one that extracts
  // halves takes one of the units that shuffle.
  void store_beside_products(const Xbyak::RegExp& at, const Vec& vec);

 private:
  Isa isa_;
  std::vector<int> free_gprs_, free_vecs_;
  std::vector<uint32_t> entries_;
};

}  // namespace lathe
