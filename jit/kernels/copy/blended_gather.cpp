// Channel gathers on AVX-512, by groups of sources.
#include <cstddef>

#include "jit/kernels/copy/gather_emitter.h"

namespace lathe {
namespace {

// AVX-512: the sources of a group are loaded over one another, each its own lanes, and two groups pass one permutation.
class BlendedGatherEmitter final : public GatherEmitter {
 public:
  explicit BlendedGatherEmitter(const ChannelGatherPlan& plan)
      : GatherEmitter(plan, 2), blends_(static_cast<size_t>(plan.sources)) {}

 private:
  size_t pairs() const { return (plan_.groups.size() + 1) / 2; }

  void claim_vectors() override {
    index_ = claim_vecs("index", static_cast<int>(pairs()));
    moved_ = claim_vec("another pair's lanes");
    second_ = claim_vec("second group");
  }

  void load_table() override {
    int opmask = 0;  // sources - groups + pairs: never above 6
    const auto claim = [&](size_t at) {
      const Xbyak::Opmask mask(++opmask);
      kmovw(mask, ptr[table_ + at]);
      return mask;
    };
    for (size_t pair = 0; pair < pairs(); ++pair) {
      load(index_[pair], table_ + offsetof(BlendedGatherTable, index) + pair * sizeof(std::array<int32_t, 16>));
      results_.push_back(claim(offsetof(BlendedGatherTable, results) + pair * sizeof(uint16_t)));
    }
    for_blended([&](size_t source) {
      blends_[source] = claim(offsetof(BlendedGatherTable, sources) + source * sizeof(uint16_t));
    });
    if (plan_.is_partial) kmovw(k7, ptr[table_ + offsetof(BlendedGatherTable, written)]);
  }

  void gather(int pixels) override {
    for (int pixel = 0; pixel < pixels; ++pixel) {
      const int bytes = pixel * vec_bytes();
      for (size_t pair = 0; pair < pairs(); ++pair) take(pair, bytes);
      const Xbyak::RegExp to = to_ + offset_ + bytes;
      if (plan_.is_partial) {
        vmovups(ptr[to] | k7, zmm(result_));
      } else {
        store(to, result_);
      }
    }
    add(offset_, pixels * vec_bytes());
  }

  static Xbyak::Zmm zmm(const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); }
  Xbyak::Address source(const std::vector<int>& group, size_t i, int bytes) const {
    return ptr[from_[static_cast<size_t>(group[i])] + offset_ + bytes];
  }

  void blend(const Vec& into, const std::vector<int>& group, int bytes) {
    vmovups(zmm(into), source(group, 0, bytes));
    for (size_t i = 1; i < group.size(); ++i) {
      vmovups(zmm(into) | blends_[static_cast<size_t>(group[i])], source(group, i, bytes));
    }
  }

  // The first pair also clears the lanes that are not its own.
  void take(size_t pair, int bytes) {
    const Vec& into = pair == 0 ? result_ : moved_;
    const std::vector<int>& first = plan_.groups[2 * pair];
    const Xbyak::Zmm result = pair == 0 ? zmm(into) | results_[0] | T_z : zmm(result_) | results_[pair];
    const Xbyak::Zmm index = zmm(index_[pair]);
    if (2 * pair + 1 == plan_.groups.size()) {
      if (first.size() == 1) return vpermps(result, index, source(first, 0, bytes));
      blend(into, first, bytes);
      return vpermps(result, index, zmm(into));
    }
    const std::vector<int>& second = plan_.groups[2 * pair + 1];
    blend(into, first, bytes);
    if (second.size() > 1) blend(second_, second, bytes);
    const Xbyak::Zmm moved = pair == 0 ? result : zmm(into);
    if (second.size() > 1) {
      vpermt2ps(moved, index, zmm(second_));
    } else {
      vpermt2ps(moved, index, source(second, 0, bytes));
    }
    if (pair > 0) vmovaps(result, zmm(into));
  }

  std::vector<Xbyak::Opmask> blends_, results_;  // lanes of a source, by source; of the result, by pair of groups
  Vec second_;
};

}  // namespace

std::shared_ptr<const CodePages> emit_blended_gather(const ChannelGatherPlan& plan, const std::string& name) {
  return BlendedGatherEmitter(plan).emit(name);
}

}  // namespace lathe
