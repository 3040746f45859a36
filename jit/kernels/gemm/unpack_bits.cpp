#include "jit/kernels/gemm/unpack_bits.h"

#include <bit>

#include "jit/kernels/gemm/bits_emitter.h"

namespace lathe {
namespace {

constexpr int kMostVecs = 4;

class UnpackBitsEmitter : public BitsEmitter {
 public:
  explicit UnpackBitsEmitter(const UnpackBitsPlan& plan) : BitsEmitter(plan.isa, plan.bits), plan_(plan) {
    if (plan.vecs < 1 || plan.vecs > kMostVecs) throw JitError(to_string(plan) + " is out of range");
  }

  void emit() {
    codes_ = argument(0);
    scales_ = argument(1);
    out_ = argument(2);
    groups_ = argument(3);
    const Gpr scratch = claim_gpr("scratch");
    scale_ = claim_vecs("scales", plan_.vecs);
    offset_ = claim_vecs("offsets", plan_.vecs);
    group_ = claim_vec("codes");
    row_ = claim_vec("row");
    begin();
    claim_constants(scratch);
    load_scales(scratch);
    loop_down(groups_, [&] {
      for (int i = 0; i < plan_.vecs; ++i) unpack(i);
      add(codes_, row_bytes());
      add(out_, rows_of_group() * row_bytes());
    });
    end();
  }

 private:
  int row_bytes() const { return plan_.vecs * vec_bytes(); }

  void load_scales(const Gpr& scratch) {
    for (int i = 0; i < plan_.vecs; ++i) {
      const Vec &scale = scale_[static_cast<size_t>(i)], &offset = offset_[static_cast<size_t>(i)];
      load(scale, scales_ + i * vec_bytes());
      if (plan_.has_offsets) {
        load(offset, scales_ + row_bytes() + i * vec_bytes());
      } else {
        mov(scratch.cvt32(), std::bit_cast<uint32_t>(-kMiddleCode));
        vmovd(Xbyak::Xmm(offset.getIdx()), scratch.cvt32());
        vbroadcastss(offset, Xbyak::Xmm(offset.getIdx()));
        vmulps(offset, offset, scale);
      }
    }
  }

  void unpack(int i) {
    load(group_, codes_ + i * vec_bytes());
    for (int row = 0; row < rows_of_group(); ++row) {
      decode(row_, group_, row);
      vfmadd213ps(row_, scale_[static_cast<size_t>(i)], offset_[static_cast<size_t>(i)]);
      store(out_ + row * row_bytes() + i * vec_bytes(), row_);
    }
  }

  UnpackBitsPlan plan_;
  Gpr codes_, scales_, out_, groups_;
  std::vector<Vec> scale_, offset_;
  Vec group_, row_;
};

}  // namespace

std::string to_string(const UnpackBitsPlan& plan) {
  return "unpack bits=" + std::to_string(plan.bits) + " vecs=" + std::to_string(plan.vecs) +
         (plan.has_offsets ? " offsets" : "");
}

Kernel<UnpackBitsFn> unpack_bits_kernel(const UnpackBitsPlan& plan) {
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  return Kernel<UnpackBitsFn>(cached_code(key, [&] {
    UnpackBitsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
