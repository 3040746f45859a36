#include <cstddef>
#include <string>

#include "jit/emitter.h"
#include "jit/kernels/select/beyond.h"

namespace lathe {
namespace {

class KeepBeyondEmitter : public Emitter {
 public:
  KeepBeyondEmitter(Isa isa, KeepSource source) : Emitter(isa), source_(source) {}

  void emit() {
    begin();
    mov(from_, ptr[args_ + offsetof(KeepArgs, from)]);
    mov(places_from_, ptr[args_ + offsetof(KeepArgs, places)]);
    mov(count_, ptr[args_ + offsetof(KeepArgs, count)]);
    mov(keys_, ptr[args_ + offsetof(KeepArgs, to_keys)]);
    mov(places_, ptr[args_ + offsetof(KeepArgs, to_places)]);
    vpbroadcastd(threshold_, dword[args_ + offsetof(KeepArgs, threshold)]);
    if (!has_masks()) lea(table_, ptr[rip + permutations_]);
    if (is_row()) constants();
    xor_(kept_.cvt32(), kept_.cvt32());
    loop_down(count_, [&] { is_row() ? keep_of_group() : keep_of_keys(); });
    mov(rax, kept_);
    end();
    align(64);
    L(lanes_);
    for (uint32_t lane = 0; lane < 16; ++lane) dd(lane);
    L(vector_lanes_);
    dd(static_cast<uint32_t>(lanes()));
    if (!has_masks()) permutations();
  }

 private:
  static Xbyak::Zmm z(const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); }
  static Xbyak::Ymm y(const Vec& vec) { return Xbyak::Ymm(vec.getIdx()); }
  bool is_row() const { return source_ != KeepSource::keys; }

  void constants() {
    vpbroadcastd(first_, dword[args_ + offsetof(KeepArgs, first_place)]);
    vpbroadcastd(vector_, dword[rip + vector_lanes_]);
    vpaddd(first_, first_, ptr[rip + lanes_]);
    fill(most_, INT32_MAX, group_);
    zero(none_);
  }

  void keep_of_group() {
    movsxd(group_, dword[places_from_]);
    add(places_from_, 4);
    imul(group_.cvt32(), group_.cvt32(), kSelectVectors * lanes());
    fill(group_place_, group_.cvt32());
    vpaddd(group_place_, group_place_, first_);
    for (int i = 0; i < kSelectVectors; ++i) {
      load(key_, from_ + group_ * 4 + i * vec_bytes());
      has_masks() ? key_of_float() : key_of_float_avx2();
      if (i > 0) vpaddd(group_place_, group_place_, vector_);
      vmovaps(place_, group_place_);
      keep();
    }
  }

  void keep_of_keys() {
    load(key_, from_);
    load(place_, places_from_);
    add(from_, vec_bytes());
    add(places_from_, vec_bytes());
    keep();
  }

  // order_key() of each lane.
  void key_of_float() {
    constexpr uint8_t kUnordered = 3, kEqual = 0, kNot = 0x0f;
    const Xbyak::Zmm x = z(key_), sign = z(place_);
    vcmpps(k1, x, x, kUnordered);
    vcmpps(k2, x, z(none_), kEqual);
    vpsrad(sign, x, 31);
    vpandd(sign, sign, z(most_));
    vpxord(x, x, sign);
    vmovdqa32(x | k1, z(most_));
    vmovdqa32(x | k2, z(none_));
    if (source_ == KeepSource::row_smallest) vpternlogd(x, x, x, kNot);
  }

  void key_of_float_avx2() {
    constexpr uint8_t kUnordered = 3, kEqual = 0;
    const Xbyak::Ymm x = y(key_), sign = y(place_), is = y(bits_);
    vpsrad(sign, x, 31);
    vpand(sign, sign, y(most_));
    vpxor(sign, x, sign);
    vcmpps(is, x, y(none_), kEqual);
    vpandn(sign, is, sign);
    vcmpps(is, x, x, kUnordered);
    vblendvps(x, sign, y(most_), is);
    if (source_ == KeepSource::row_largest) return;
    vpcmpeqd(is, is, is);
    vpxor(x, x, is);
  }

  void keep() {
    if (has_masks()) {
      vpcmpgtd(k1, z(key_), z(threshold_));
      vpcompressd(z(key_) | k1 | T_z, z(key_));
      vpcompressd(z(place_) | k1 | T_z, z(place_));
      kmovw(step_.cvt32(), k1);
    } else {
      vpcmpgtd(y(bits_), y(key_), y(threshold_));
      vmovmskps(step_.cvt32(), y(bits_));
      vpmovzxbd(y(bits_), qword[table_ + step_ * 8]);
      vpermd(y(key_), y(bits_), y(key_));
      vpermd(y(place_), y(bits_), y(place_));
    }
    store(keys_ + kept_ * 4, key_);
    store(places_ + kept_ * 4, place_);
    popcnt(step_.cvt32(), step_.cvt32());
    add(kept_, step_);
  }

  // Of each mask: its lanes, then the first one again and again.
  void permutations() {
    align(64);
    L(permutations_);
    for (int mask = 0; mask < 256; ++mask) {
      int written = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        db(static_cast<uint8_t>(lane));
        ++written;
      }
      for (; written < 8; ++written) db(uint8_t{0});
    }
  }

  const KeepSource source_;
  Xbyak::Label lanes_, vector_lanes_, permutations_;
  const Gpr args_ = argument(0);
  const Gpr from_ = claim_gpr("from"), places_from_ = claim_gpr("places or groups"), count_ = claim_gpr("left"),
            keys_ = claim_gpr("keys"), places_ = claim_gpr("places"), kept_ = claim_gpr("kept"),
            group_ = claim_gpr("group"), step_ = claim_gpr("step"), table_ = claim_gpr("permutations");
  const Vec threshold_ = claim_vec("threshold"), key_ = claim_vec("keys"), place_ = claim_vec("places"),
            bits_ = claim_vec("bits"), first_ = claim_vec("places of the row"),
            group_place_ = claim_vec("places of the group"), most_ = claim_vec("largest key"),
            none_ = claim_vec("zero"), vector_ = claim_vec("places in a vector");
};

std::string text_of(KeepSource source) {
  if (source == KeepSource::keys) return "keep keys";
  return source == KeepSource::row_largest ? "keep larger" : "keep smaller";
}

}  // namespace

Kernel<KeepFn> keep_beyond_kernel(Isa isa, KeepSource source) {
  const std::string key = vector_set(isa) + " " + text_of(source);
  return Kernel<KeepFn>(cached_code(key, [&] {
    KeepBeyondEmitter emitter(isa, source);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
