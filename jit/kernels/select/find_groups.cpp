#include <string>

#include "jit/emitter.h"
#include "jit/kernels/select/beyond.h"

namespace lathe {
namespace {

class FindGroupsEmitter : public Emitter {
 public:
  FindGroupsEmitter(Isa isa, SelectOrder order) : Emitter(isa), order_(order) {}

  void emit() {
    claim();
    begin();
    vbroadcastss(threshold_, dword[threshold_at_]);
    xor_(group_.cvt32(), group_.cvt32());
    xor_(found_.cvt32(), found_.cvt32());
    xor_(any_.cvt32(), any_.cvt32());
    Xbyak::Label done;
    test(groups_, groups_);
    jz(done, T_NEAR);
    Xbyak::Label top;
    align(32);
    L(top);
    for (int i = 0; i < kSelectVectors; ++i) compare(i);
    // Written always, kept where the next one goes behind it.
    mov(dword[list_ + found_ * 4], group_.cvt32());
    any_beyond();
    add(found_, any_);
    add(row_, kSelectVectors * vec_bytes());
    inc(group_);
    cmp(group_, groups_);
    jl(top, T_NEAR);
    L(done);
    mov(rax, found_);
    end();
  }

 private:
  void claim() {
    row_ = argument(0);
    groups_ = argument(1);
    threshold_at_ = argument(2);
    list_ = argument(3);
    any_ = rbx;
    group_ = claim_gpr("group");
    found_ = claim_gpr("found");
    threshold_ = claim_vec("threshold");
    hits_ = claim_vecs("hits", kSelectVectors);
  }

  // Unordered counts as beyond.
  void compare(int i) {
    constexpr uint8_t kNotLessOrEqual = 6, kNotGreaterOrEqual = 9;
    // The threshold comes first, so that the row is read by the comparison.
    const uint8_t predicate = order_ == SelectOrder::largest_first ? kNotGreaterOrEqual : kNotLessOrEqual;
    const auto at = ptr[row_ + i * vec_bytes()];
    if (has_masks()) {
      vcmpps(Xbyak::Opmask(1 + i), Xbyak::Zmm(threshold_.getIdx()), at, predicate);
    } else {
      vcmpps(Xbyak::Ymm(hits_[static_cast<size_t>(i)].getIdx()), Xbyak::Ymm(threshold_.getIdx()), at, predicate);
    }
  }

  void any_beyond() {
    static_assert(kSelectVectors == 2);
    if (has_masks()) {
      kortestw(k1, k2);
    } else {
      vorps(hits_[0], hits_[0], hits_[1]);
      vtestps(Xbyak::Ymm(hits_[0].getIdx()), Xbyak::Ymm(hits_[0].getIdx()));
    }
    setnz(any_.cvt8());
  }

  const SelectOrder order_;
  Gpr row_, groups_, threshold_at_, list_, group_, found_, any_;
  Vec threshold_;
  std::vector<Vec> hits_;
};

}  // namespace

Kernel<FindGroupsFn> find_groups_kernel(Isa isa, SelectOrder order) {
  const std::string key =
      vector_set(isa) + " " + (order == SelectOrder::largest_first ? "find larger" : "find smaller");
  return Kernel<FindGroupsFn>(cached_code(key, [&] {
    FindGroupsEmitter emitter(isa, order);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
