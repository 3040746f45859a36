#include "jit/kernels/select/find_beyond.h"

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kVectors = 4;  // compared before one branch

class FindBeyondEmitter : public Emitter {
 public:
  FindBeyondEmitter(Isa isa, SelectOrder order) : Emitter(isa), order_(order) {}

  void emit() {
    claim();
    begin();
    vbroadcastss(threshold_, dword[threshold_at_]);
    xor_(skipped_.cvt32(), skipped_.cvt32());
    skip(kVectors);
    skip(1);
    mov(rax, skipped_);
    end();
  }

 private:
  void claim() {
    row_ = argument(0);
    left_ = argument(1);
    threshold_at_ = argument(2);
    skipped_ = claim_gpr("skipped");
    mask_ = claim_gpr("mask");
    threshold_ = claim_vec("threshold");
    hits_ = claim_vecs("hits", kVectors);
  }

  // While as many vectors are left and none of them has an element beyond.
  void skip(int vectors) {
    Xbyak::Label top, done;
    L(top);
    cmp(left_, vectors * lanes());
    jl(done, T_NEAR);
    for (int i = 0; i < vectors; ++i) compare(i);
    for (int i = 1; i < vectors; ++i) join(i);
    if (has_masks()) {
      kortestw(k1, k1);
    } else {
      vmovmskps(mask_.cvt32(), Xbyak::Ymm(hits_[0].getIdx()));
      test(mask_.cvt32(), mask_.cvt32());
    }
    jnz(done, T_NEAR);
    add(skipped_, vectors * lanes());
    sub(left_, vectors * lanes());
    jmp(top, T_NEAR);
    L(done);
  }

  // NaN, on either side, counts as beyond: the caller looks closer.
  void compare(int i) {
    constexpr uint8_t kNotLessOrEqual = 6, kNotGreaterOrEqual = 9;
    const uint8_t predicate = order_ == SelectOrder::largest_first ? kNotLessOrEqual : kNotGreaterOrEqual;
    const Vec& x = hits_[static_cast<size_t>(i)];
    load(x, row_ + skipped_ * 4 + i * vec_bytes());
    if (has_masks()) {
      vcmpps(Xbyak::Opmask(1 + i), Xbyak::Zmm(x.getIdx()), Xbyak::Zmm(threshold_.getIdx()), predicate);
    } else {
      vcmpps(Xbyak::Ymm(x.getIdx()), Xbyak::Ymm(x.getIdx()), Xbyak::Ymm(threshold_.getIdx()), predicate);
    }
  }

  void join(int i) {
    if (has_masks()) {
      korw(k1, k1, Xbyak::Opmask(1 + i));
    } else {
      vorps(hits_[0], hits_[0], hits_[static_cast<size_t>(i)]);
    }
  }

  const SelectOrder order_;
  Gpr row_, left_, threshold_at_, skipped_, mask_;
  Vec threshold_;
  std::vector<Vec> hits_;
};

}  // namespace

Kernel<FindBeyondFn> find_beyond_kernel(Isa isa, SelectOrder order) {
  const std::string key =
      vector_set(isa) + " " + (order == SelectOrder::largest_first ? "skip to larger" : "skip to smaller");
  return Kernel<FindBeyondFn>(cached_code(key, [&] {
    FindBeyondEmitter emitter(isa, order);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
