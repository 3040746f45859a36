#include "jit/kernels/trees/leaf_masks.h"

#include <cstddef>
#include <utility>

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kWeightBytes = LeafWord::kLeaves * 4;

class LeafMaskEmitter : public Emitter {
 public:
  explicit LeafMaskEmitter(Isa isa) : Emitter(isa) {}

  void emit() {
    begin();
    const std::pair<const Gpr&, size_t> arguments[] = {
        {features_, offsetof(LeafMaskArgs, features)}, {tests_, offsetof(LeafMaskArgs, tests)},
        {words_, offsetof(LeafMaskArgs, words)},       {words_left_, offsetof(LeafMaskArgs, count)},
        {weights_, offsetof(LeafMaskArgs, weights)},   {places_, offsetof(LeafMaskArgs, places)},
        {sums_, offsetof(LeafMaskArgs, sums)}};
    for (const auto& [gpr, offset] : arguments) mov(gpr, ptr[args_ + offset]);
    if (has_masks()) {
      mov(count_.cvt32(), LeafWord::kLeaves - 1);
      vpbroadcastd(z(last_leaf_), count_.cvt32());
      kxorw(kFound, kFound, kFound);
    } else {
      zero(found_);
    }
    loop_down(words_left_, [&] {
      take_leaves_away();
      has_masks() ? find_leaf() : find_leaf_avx2();
      mov(count_.cvt32(), dword[words_ + offsetof(LeafWord, targets)]);
      loop_down(count_, [&] { add_weights(); });
      add(words_, sizeof(LeafWord));
    });
    end();
  }

 private:
  static Xbyak::Zmm z(const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); }
  static Xbyak::Ymm y(const Vec& vec) { return Xbyak::Ymm(vec.getIdx()); }
  static Xbyak::Xmm x(const Vec& vec) { return Xbyak::Xmm(vec.getIdx()); }

  void take_leaves_away() {
    if (has_masks()) {
      vpternlogd(z(leaves_), z(leaves_), z(leaves_), 0xff);
    } else {
      vpcmpeqd(y(leaves_), y(leaves_), y(leaves_));
    }
    mov(count_.cvt32(), dword[words_ + offsetof(LeafWord, tests)]);
    Xbyak::Label top;
    align(16);
    L(top);
    for (uint32_t i = 0; i < LeafWord::kTestsTogether; ++i) test_feature(tests_ + i * sizeof(LeafTest));
    add(tests_, LeafWord::kTestsTogether * sizeof(LeafTest));
    sub(count_.cvt32(), LeafWord::kTestsTogether);
    jnz(top, T_NEAR);
  }

  void test_feature(const Xbyak::RegExp& at) {
    constexpr uint8_t kLessOrEqual = 18, kNotLessOrEqual = 22;  // neither tells NaN
    mov(offset_.cvt32(), dword[at + offsetof(LeafTest, feature_bytes)]);
    load(value_, features_ + offset_);
    if (has_masks()) {
      vcmpps(kFalse, z(value_), ptr_b[at + offsetof(LeafTest, threshold)], kNotLessOrEqual);
      vpandd(z(leaves_) | kFalse, z(leaves_), ptr_b[at + offsetof(LeafTest, leaves)]);
    } else {
      vbroadcastss(y(other_), dword[at + offsetof(LeafTest, threshold)]);
      vcmpps(y(value_), y(value_), y(other_), kLessOrEqual);
      vpbroadcastd(y(other_), dword[at + offsetof(LeafTest, leaves)]);
      vpor(y(value_), y(value_), y(other_));
      vpand(y(leaves_), y(leaves_), y(value_));
    }
  }

  // Rows whose leaf is here, and its number: the lowest bit that is left.
  void find_leaf() {
    kmovw(kHere, word[words_ + offsetof(LeafWord, is_next)]);
    kandw(kFound, kFound, kHere);
    vptestmd(kHere, z(leaves_), z(leaves_));
    kandnw(kHere, kFound, kHere);
    korw(kFound, kFound, kHere);
    kshiftrw(kUpperHere, kHere, lanes() / 2);
    zero(value_);
    vpsubd(z(value_), z(value_), z(leaves_));
    vpandd(z(leaves_), z(leaves_), z(value_));
    vplzcntd(z(leaves_), z(leaves_));
    vpxord(z(leaves_), z(leaves_), z(last_leaf_));
  }

  // The number is the exponent of the bit as a float.
  void find_leaf_avx2() {
    constexpr int kFractionBits = 23, kBias = 127;
    vpbroadcastd(y(value_), dword[words_ + offsetof(LeafWord, is_next)]);
    vpand(y(found_), y(found_), y(value_));
    zero(other_);
    vpcmpeqd(y(here_), y(leaves_), y(other_));
    vpor(y(here_), y(here_), y(found_));
    vpcmpeqd(y(value_), y(value_), y(value_));
    vpandn(y(here_), y(here_), y(value_));
    vpor(y(found_), y(found_), y(here_));
    vpsubd(y(other_), y(other_), y(leaves_));
    vpand(y(leaves_), y(leaves_), y(other_));
    vcvtdq2ps(y(leaves_), y(leaves_));
    vpslld(y(leaves_), y(leaves_), 1);  // the sign of bit 31
    vpsrld(y(leaves_), y(leaves_), kFractionBits + 1);
    mov(offset_.cvt32(), kBias);
    vmovd(x(other_), offset_.cvt32());
    vpbroadcastd(y(other_), x(other_));
    vpsubd(y(leaves_), y(leaves_), y(other_));
  }

  void add_weights() {
    mov(offset_.cvt32(), dword[places_]);
    if (has_masks()) {
      load(other_, weights_);
      vmovdqa32(z(value_), z(leaves_));
      vpermi2ps(z(value_), z(other_), ptr[weights_ + kWeightBytes / 2]);
      vextractf32x8(y(other_), z(value_), 1);
      add_half(z(value_), y(value_), kHere, 0);
      add_half(z(other_), y(other_), kUpperHere, 1);
    } else {
      zero(value_);
      vmovdqa(y(other_), y(here_));
      vgatherdps(y(value_), ptr[weights_ + y(leaves_) * 4], y(other_));
      vextractf128(x(other_), y(value_), 1);
      add_half(y(value_), x(value_), 0);
      add_half(y(other_), x(other_), 1);
    }
    add(weights_, kWeightBytes);
    add(places_, sizeof(uint32_t));
  }

  void add_half(const Xbyak::Zmm& weights, const Xbyak::Ymm& narrow, const Xbyak::Opmask& here, int half) {
    const Xbyak::Address at = ptr[sums_ + offset_ + half * vec_bytes()];
    vcvtps2pd(weights, narrow);
    vmovupd(z(sum_), at);
    vaddpd(z(sum_) | here, z(sum_), weights);
    vmovupd(at, z(sum_));
  }

  void add_half(const Xbyak::Ymm& weights, const Xbyak::Xmm& narrow, int half) {
    const Xbyak::Address at = ptr[sums_ + offset_ + half * vec_bytes()];
    vcvtps2pd(weights, narrow);
    vaddpd(y(sum_), weights, at);
    vmovupd(at, y(sum_));
  }

  const Xbyak::Opmask kFalse{1}, kHere{2}, kFound{3}, kUpperHere{4};
  const Gpr args_ = argument(0);
  const Gpr features_ = claim_gpr("features"), tests_ = claim_gpr("tests"), words_ = claim_gpr("words"),
            words_left_ = claim_gpr("words left"), weights_ = claim_gpr("weights"), places_ = claim_gpr("places"),
            sums_ = claim_gpr("sums"), count_ = claim_gpr("tests or targets left"), offset_ = claim_gpr("offset");
  const Vec leaves_ = claim_vec("leaves"), value_ = claim_vec("value"), other_ = claim_vec("other"),
            sum_ = claim_vec("sum"), last_leaf_ = claim_vec("last leaf"), found_ = claim_vec("found"),
            here_ = claim_vec("here");
};

}  // namespace

Kernel<void(const LeafMaskArgs*)> leaf_mask_kernel(Isa isa) {
  const std::string key = vector_set(isa) + " leaf masks";
  return Kernel<void(const LeafMaskArgs*)>(cached_code(key, [&] {
    LeafMaskEmitter emitter(isa);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
