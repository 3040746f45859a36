#include <cstddef>
#include <string>

#include "jit/emitter.h"
#include "jit/kernels/select/beyond.h"

namespace lathe {
namespace {

class GroupFirstsEmitter : public Emitter {
 public:
  GroupFirstsEmitter(Isa isa, SelectOrder order) : Emitter(isa), order_(order) {}

  void emit() {
    begin();
    mov(row_, ptr[args_ + offsetof(GroupFirstsArgs, row)]);
    mov(groups_, ptr[args_ + offsetof(GroupFirstsArgs, groups)]);
    mov(to_, ptr[args_ + offsetof(GroupFirstsArgs, to)]);
    vbroadcastss(worst_, dword[rip + infinity_]);
    loop_down(groups_, [&] {
      for (const Vec& first : firsts_) vmovaps(first, worst_);
      mov(quarters_, ptr[args_ + offsetof(GroupFirstsArgs, quarters)]);
      loop_down(quarters_, [&] {
        for (int i = 0; i < kGroupFirstsVectors; ++i) {
          load(x_, row_ + i * vec_bytes());
          take_first(firsts_[static_cast<size_t>(i)], x_);
        }
        add(row_, kGroupFirstsVectors * vec_bytes());
      });
      take_first(firsts_[0], firsts_[1]);
      take_first(firsts_[2], firsts_[3]);
      take_first(firsts_[0], firsts_[2]);
      store(to_, firsts_[0]);
      add(to_, vec_bytes());
    });
    end();
    align(4);
    L(infinity_);
    dd(is_largest() ? 0xff800000U : 0x7f800000U);
  }

 private:
  bool is_largest() const { return order_ == SelectOrder::largest_first; }

  // Where one is NaN, both instructions give the second operand.
  void take_first(const Vec& first, const Vec& x) { is_largest() ? vmaxps(first, x, first) : vminps(first, x, first); }

  const SelectOrder order_;
  Xbyak::Label infinity_;
  const Gpr args_ = argument(0);
  const Gpr row_ = claim_gpr("row"), groups_ = claim_gpr("groups left"), quarters_ = claim_gpr("quarters left"),
            to_ = claim_gpr("to");
  const Vec worst_ = claim_vec("worst"), x_ = claim_vec("x");
  const std::vector<Vec> firsts_ = claim_vecs("firsts", kGroupFirstsVectors);
};

}  // namespace

Kernel<GroupFirstsFn> group_firsts_kernel(Isa isa, SelectOrder order) {
  const std::string key =
      vector_set(isa) + " " + (order == SelectOrder::largest_first ? "largest" : "smallest") + " of groups";
  return Kernel<GroupFirstsFn>(cached_code(key, [&] {
    GroupFirstsEmitter emitter(isa, order);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
