// quantize_blocks_kernel() of jit/kernels/gemm/bits_int8_rows.h.
#include <fmt/format.h>

#include <bit>
#include <cstddef>

#include "jit/emitter.h"
#include "jit/kernels/gemm/bits_int8_rows.h"

namespace lathe {
namespace {

constexpr int kPacked = 16;  // bytes that become codes' partners at a time
constexpr int64_t kLargestBlock = 1024;

class QuantizeBlocksEmitter : public Emitter {
 public:
  QuantizeBlocksEmitter(Isa isa, int bits, int64_t block, bool has_offsets)
      : Emitter(isa), bits_(bits), vecs_(static_cast<int>(block / lanes())), has_offsets_(has_offsets) {}

  void emit() {
    begin();
    broadcast(size_bits_, rip_at(constants_, 0));
    vmovups(low(order_), ptr[rip + order_label_]);
    loop_down(left_, [&] {
      find_largest();
      scale_largest();
      quantize();
      finish_block();
      add(from_, vecs_ * vec_bytes());
      add(to_, vecs_ * lanes());
      add(blocks_, sizeof(BlockOfBytes));
    });
    end();
    emit_constants();
  }

 private:
  enum Constant { kSizeBits, kLargestByte, kLeast, kUnit, kMiddle };
  Xbyak::RegRip rip_at(const Xbyak::Label& label, int i) const { return rip + label + 4 * i; }
  Xbyak::Xmm low(const Vec& vec) const { return Xbyak::Xmm(vec.getIdx()); }
  Xbyak::Ymm half(const Vec& vec) const { return Xbyak::Ymm(vec.getIdx()); }
  void broadcast(const Vec& vec, const Xbyak::RegRip& at) { vbroadcastss(vec, dword[at]); }

  // All lanes of the lowest 128 bits of `vec` become what `combine` makes of all 16.
  template <class Combine>
  void reduce(const Vec& vec, Combine combine) {
    if (has_masks()) {
      vextractf64x4(half(other_), Xbyak::Zmm(vec.getIdx()), 1);
      combine(half(vec), half(other_));
    }
    vextractf128(low(other_), half(vec), 1);
    combine(low(vec), low(other_));
    for (const uint8_t order : {0x4E, 0xB1}) {
      vpermilps(low(other_), low(vec), order);
      combine(low(vec), low(other_));
    }
  }

  void find_largest() {
    zero(largest_);
    has_masks() ? kxorw(has_nan_, has_nan_, has_nan_) : zero(nans_);
    for (int i = 0; i < vecs_; ++i) {
      vandps(value_, size_bits_, ptr[from_ + i * vec_bytes()]);
      vmaxps(largest_, largest_, value_);
      find_nans();
    }
    reduce(largest_, [&](const Xbyak::Xmm& a, const Xbyak::Xmm& b) { vmaxps(a, a, b); });
  }

  // factor_ = 127 / largest in all lanes, scale_ = largest / 127 / 2^bits in the lowest one.
  void scale_largest() {
    Xbyak::Label is_number;
    vmaxss(low(largest_), low(largest_), dword[rip_at(constants_, kLeast)]);
    vmovss(low(factor_), dword[rip_at(constants_, kLargestByte)]);
    vdivss(low(factor_), low(factor_), low(largest_));
    vmulss(low(scale_), low(largest_), dword[rip_at(constants_, kUnit)]);
    vbroadcastss(factor_, low(factor_));
    has_masks() ? kortestw(has_nan_, has_nan_) : vptest(nans_, nans_);
    jz(is_number);
    vxorps(low(scale_), low(scale_), low(scale_));
    vdivss(low(scale_), low(scale_), low(scale_));
    L(is_number);
  }

  void quantize() {
    zero(sum_);
    for (int i = 0; i < vecs_; i += kPacked / lanes()) {
      scale(value_, i);
      has_masks() ? vpmovsdb(low(value_), value_) : pack_two(i);
      vpshufb(low(value_), low(value_), low(order_));
      vmovups(ptr[to_ + i * lanes()], low(value_));
    }
    reduce(sum_, [&](const Xbyak::Xmm& a, const Xbyak::Xmm& b) { vpaddd(a, a, b); });
  }

  void scale(const Vec& into, int i) {
    vmulps(into, factor_, ptr[from_ + i * vec_bytes()]);
    vcvtps2dq(into, into);
    vpaddd(sum_, sum_, into);
  }

  void finish_block() {
    vmovss(dword[blocks_ + offsetof(BlockOfBytes, scale)], low(scale_));
    if (has_offsets_) {
      vcvtdq2ps(low(sum_), low(sum_));
      vmulss(low(sum_), low(sum_), low(scale_));
      vmulss(low(sum_), low(sum_), dword[rip_at(constants_, kMiddle)]);
    } else {
      vpmulld(low(sum_), low(sum_), ptr[rip + middle_]);
    }
    vmovss(dword[blocks_ + offsetof(BlockOfBytes, sum)], low(sum_));
  }

  void emit_constants() {
    align(64);
    L(constants_);
    dd(0x7FFFFFFF);
    const auto unit = static_cast<float>(1 << bits_);
    for (const float number : {127.F, 1e-30F, 1 / (127 * unit), unit}) dd(std::bit_cast<uint32_t>(number));
    align(16);
    L(middle_);
    for (int i = 0; i < 4; ++i) dd(static_cast<uint32_t>(-(1 << (bits_ - 1))));
    L(order_label_);
    // Of 16 rows: those of a group's lowest codes first. A group has 32 / bits rows, 8 / bits of them in each byte.
    const int rows = std::min(kPacked, 32 / bits_), in_byte = 8 / bits_;
    for (int group = 0; group < kPacked; group += rows)
      for (int part = 0; part < in_byte; ++part)
        for (int i = 0; i < rows / in_byte; ++i) db(static_cast<uint8_t>(packed_at(group + i * in_byte + part)));
  }

  // --- AVX2 and AVX-512

  void find_nans() {
    constexpr uint8_t kUnordered = 3;
    if (has_masks()) {
      vcmpps(is_nan_, value_, value_, kUnordered);
      return korw(has_nan_, has_nan_, is_nan_);
    }
    vcmpps(value_, value_, value_, kUnordered);
    vorps(nans_, nans_, value_);
  }

  // AVX2: value_ and the vector behind it become bytes, half by half.
  void pack_two(int i) {
    scale(other_, i + 1);
    vpackssdw(value_, value_, other_);
    vextracti128(low(other_), half(value_), 1);
    vpacksswb(low(value_), low(value_), low(other_));
  }
  int packed_at(int row) const { return has_masks() ? row : row % 8 / 4 * 8 + row / 8 * 4 + row % 4; }

  int bits_, vecs_;
  bool has_offsets_;
  const Gpr from_ = argument(0), to_ = argument(1), blocks_ = argument(2), left_ = argument(3);
  const Vec size_bits_ = claim_vec("bits of a size"), order_ = claim_vec("order"), largest_ = claim_vec("largest"),
            value_ = claim_vec("value"), other_ = claim_vec("other half"), factor_ = claim_vec("factor"),
            scale_ = claim_vec("scale"), sum_ = claim_vec("sum");
  const Vec nans_ = has_masks() ? Vec() : claim_vec("NaNs");
  const Xbyak::Opmask has_nan_ = k1, is_nan_ = k2;
  Xbyak::Label constants_, middle_, order_label_;
};

}  // namespace

Kernel<QuantizeBlocksFn> quantize_blocks_kernel(Isa isa, int bits, int64_t block, bool has_offsets) {
  const std::string key =
      fmt::format("quantize_blocks {} {} for {} bits{}", name_of(isa), block, bits, has_offsets ? " offsets" : "");
  if ((bits != 2 && bits != 4 && bits != 8) || block < 16 || block > kLargestBlock || block % 16 != 0)
    throw JitError(key + " is out of range");
  return Kernel<QuantizeBlocksFn>(cached_code(key, [&] {
    QuantizeBlocksEmitter emitter(isa, bits, block, has_offsets);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
