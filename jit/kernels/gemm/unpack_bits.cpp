#include "jit/kernels/gemm/unpack_bits.h"

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kMostVecs = 4;

class UnpackBitsEmitter : public Emitter {
 public:
  explicit UnpackBitsEmitter(const UnpackBitsPlan& plan) : Emitter(plan.isa), plan_(plan) {
    if ((plan.bits != 4 && plan.bits != 8) || plan.vecs < 1 || plan.vecs > kMostVecs)
      throw JitError(to_string(plan) + " is out of range");
  }

  void emit() {
    claim();
    begin();
    load_scales();
    loop_down(pairs_, [&] {
      for (int i = 0; i < plan_.vecs; ++i) plan_.bits == 4 ? two_rows(i) : each_row(i);
      add(codes_, plan_.bits == 4 ? columns() : 2 * columns());
      add(out_, 2 * row_bytes());
    });
    end();
  }

 private:
  int columns() const { return plan_.vecs * lanes(); }
  int row_bytes() const { return columns() * 4; }

  void claim() {
    codes_ = argument(0);
    scales_ = argument(1);
    out_ = argument(2);
    pairs_ = argument(3);
    scale_ = claim_vecs("scales", plan_.vecs);
    offset_ = claim_vecs("offsets", plan_.vecs);
    first_ = claim_vec("first row");
    second_ = claim_vec("second row");
    if (plan_.bits == 4) low_half_ = claim_vec("low half");
  }

  void load_scales() {
    for (int i = 0; i < plan_.vecs; ++i) {
      load(scale_[static_cast<size_t>(i)], scales_ + i * vec_bytes());
      load(offset_[static_cast<size_t>(i)], scales_ + row_bytes() + i * vec_bytes());
    }
    if (plan_.bits != 4) return;
    mov(scales_.cvt32(), 15);
    vmovd(Xbyak::Xmm(low_half_.getIdx()), scales_.cvt32());
    vpbroadcastd(low_half_, Xbyak::Xmm(low_half_.getIdx()));
  }

  void two_rows(int i) {
    vpmovzxbd(second_, ptr[codes_ + i * lanes()]);
    if (has_masks())
      vpandd(first_, second_, low_half_);
    else
      vpand(first_, second_, low_half_);
    vpsrld(second_, second_, 4);
    scale_and_store(first_, 0, i);
    scale_and_store(second_, 1, i);
  }

  void each_row(int i) {
    vpmovzxbd(first_, ptr[codes_ + i * lanes()]);
    vpmovzxbd(second_, ptr[codes_ + columns() + i * lanes()]);
    scale_and_store(first_, 0, i);
    scale_and_store(second_, 1, i);
  }

  void scale_and_store(const Vec& vec, int row, int i) {
    vcvtdq2ps(vec, vec);
    vfmadd213ps(vec, scale_[static_cast<size_t>(i)], offset_[static_cast<size_t>(i)]);
    store(out_ + row * row_bytes() + i * vec_bytes(), vec);
  }

  UnpackBitsPlan plan_;
  Gpr codes_, scales_, out_, pairs_;
  std::vector<Vec> scale_, offset_;
  Vec first_, second_, low_half_;
};

}  // namespace

std::string to_string(const UnpackBitsPlan& plan) {
  return "unpack bits=" + std::to_string(plan.bits) + " vecs=" + std::to_string(plan.vecs);
}

Kernel<UnpackBitsFn> unpack_bits_kernel(const UnpackBitsPlan& plan) {
  const std::string key = std::string(has_avx512(plan.isa) ? "avx512 " : "avx2 ") + to_string(plan);
  return Kernel<UnpackBitsFn>(cached_code(key, [&] {
    UnpackBitsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
