#include "jit/emitter.h"

#include <algorithm>
#include <utility>

namespace lathe {
namespace {

constexpr size_t kInitialBytes = 32 << 10;
constexpr int kArguments[] = {Xbyak::Operand::RDI, Xbyak::Operand::RSI, Xbyak::Operand::RDX,
                              Xbyak::Operand::RCX, Xbyak::Operand::R8,  Xbyak::Operand::R9};
constexpr int kCalleeSaved[] = {Xbyak::Operand::RBX, Xbyak::Operand::RBP, Xbyak::Operand::R12,
                                Xbyak::Operand::R13, Xbyak::Operand::R14, Xbyak::Operand::R15};

}  // namespace

// AutoGrow: xbyak never makes its buffer executable unless ready() is asked to.
Emitter::Emitter(Isa isa) : Xbyak::CodeGenerator(kInitialBytes, Xbyak::AutoGrow), isa_(isa) {
  // Of the instructions that have both, VNNI's: AVX-VNNI is VEX alone.
  if (!has_avx512(isa)) setDefaultEncoding(Xbyak::VexEncoding);
  // Handed out from the back: what is free anyway first, argument registers last.
  for (int i = 5; i >= 0; --i) free_gprs_.push_back(kArguments[5 - i]);
  for (int i = 5; i >= 0; --i) free_gprs_.push_back(kCalleeSaved[i]);
  for (const int index : {Xbyak::Operand::R11, Xbyak::Operand::R10, Xbyak::Operand::RAX}) free_gprs_.push_back(index);
  for (int i = vector_registers(isa) - 1; i >= 0; --i) free_vecs_.push_back(i);
}

std::shared_ptr<const CodePages> Emitter::finish(const std::string& name) {
  try {
    if (!entries_.empty()) align(4);
    for (const uint32_t offset : entries_) dd(offset);
    ready(PROTECT_RW);
    return std::make_shared<const CodePages>(getCode(), getSize(), name);
  } catch (const Xbyak::Error& error) {
    throw JitError(name + ": " + error.what());
  }
}

Emitter::Gpr Emitter::argument(int i) {
  const auto found = std::find(free_gprs_.begin(), free_gprs_.end(), kArguments[i]);
  if (found == free_gprs_.end()) throw JitError("argument " + std::to_string(i) + " was claimed before");
  free_gprs_.erase(found);
  return Gpr(kArguments[i]);
}

Emitter::Gpr Emitter::claim_gpr(const char* role) {
  if (free_gprs_.empty()) throw JitError(std::string("no general register is left for ") + role);
  const int index = free_gprs_.back();
  free_gprs_.pop_back();
  return Gpr(index);
}

Emitter::Vec Emitter::claim_vec(const char* role) {
  if (free_vecs_.empty()) throw JitError(std::string("no vector register is left for ") + role);
  const int index = free_vecs_.back();
  free_vecs_.pop_back();
  if (has_masks()) return Xbyak::Zmm(index);
  return Xbyak::Ymm(index);
}

std::vector<Emitter::Vec> Emitter::claim_vecs(const char* role, int count) {
  std::vector<Vec> vecs;
  for (int i = 0; i < count; ++i) vecs.push_back(claim_vec(role));
  return vecs;
}

void Emitter::release(const Vec& vec) { free_vecs_.push_back(vec.getIdx()); }
void Emitter::release(const Gpr& gpr) { free_gprs_.push_back(gpr.getIdx()); }
int Emitter::free_vecs() const { return static_cast<int>(free_vecs_.size()); }

void Emitter::begin_entry() {
  align(64);
  entries_.push_back(static_cast<uint32_t>(getSize()));
}

void Emitter::begin() {
  for (const int index : kCalleeSaved) push(Gpr(index));
}

void Emitter::end() {
  vzeroupper();
  for (int i = static_cast<int>(std::size(kCalleeSaved)) - 1; i >= 0; --i) pop(Gpr(kCalleeSaved[i]));
  ret();
}

void Emitter::zero(const Vec& vec) {
  if (has_masks()) {
    vpxord(vec, vec, vec);
  } else {
    vxorps(vec, vec, vec);
  }
}

void Emitter::broadcast(const Vec& vec, const Xbyak::RegExp& at) { vbroadcastss(vec, dword[at]); }
void Emitter::fill(const Vec& vec, const Xbyak::Reg32& value) {
  vmovd(Xbyak::Xmm(vec.getIdx()), value);
  vpbroadcastd(vec, Xbyak::Xmm(vec.getIdx()));
}
void Emitter::fill(const Vec& vec, uint32_t value, const Gpr& spare) {
  mov(spare.cvt32(), value);
  fill(vec, spare.cvt32());
}
void Emitter::load(const Vec& vec, const Xbyak::RegExp& at) { vmovups(vec, ptr[at]); }
void Emitter::store(const Xbyak::RegExp& at, const Vec& vec) { vmovups(ptr[at], vec); }

void Emitter::store_beside_products(const Xbyak::RegExp& at, const Vec& vec) {
  if (!has_masks()) return store(at, vec);
  const Xbyak::Zmm all(vec.getIdx());
  vextractf64x4(ptr[at], all, 0);
  vextractf64x4(ptr[at + vec_bytes() / 2], all, 1);
}

}  // namespace lathe
