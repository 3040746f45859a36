#include "jit/kernels/gemm/sparse_row.h"

#include <fmt/format.h>

#include <cstddef>
#include <vector>

#include "jit/emitter.h"
#include "jit/kernels/gemm/bfp20_decode.h"

namespace lathe {
namespace {

class SparseRowEmitter : public Emitter {
 public:
  explicit SparseRowEmitter(Isa isa) : Emitter(isa), together_(SparseRow::together(isa)) {
    for (int row = 0; row < together_; ++row) {
      rows_.push_back(claim_gpr("row"));
      next_.push_back(claim_gpr("next row"));
      factors_.push_back(claim_vec("factor"));
    }
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    load_arguments();
    loop_down(groups_, [&] {
      for (int v = 0; v < SparseRow::kVecs; ++v) load(sums_[static_cast<size_t>(v)], sum_at(v));
      for (size_t row = 0; row < rows_.size(); ++row) add_row(row);
      for (int v = 0; v < SparseRow::kVecs; ++v) store(sum_at(v), sums_[static_cast<size_t>(v)]);
      add(group_, group_bytes());
      add(scale_, sizeof(float));
      add(target_, SparseRow::kVecs * vec_bytes());
    });
    end();
    return finish(name);
  }

 private:
  int group_bytes() const { return static_cast<int>(Bfp20::kGroupWords) * vec_bytes(); }
  Xbyak::RegExp sum_at(int v) const { return target_ + v * vec_bytes(); }

  void load_arguments() {
    for (size_t row = 0; row < rows_.size(); ++row) {
      const auto at = [&](size_t member, size_t size) { return args_ + (member + row * size); };
      mov(rows_[row], ptr[at(offsetof(SparseRowArgs, rows), sizeof(void*))]);
      mov(next_[row], ptr[at(offsetof(SparseRowArgs, next), sizeof(void*))]);
      broadcast(factors_[row], at(offsetof(SparseRowArgs, factors), sizeof(float)));
    }
    mov(target_, ptr[args_ + offsetof(SparseRowArgs, sums)]);
    mov(groups_, ptr[args_ + offsetof(SparseRowArgs, groups)]);
    fill(upper_mask_, Bfp20Decoder::kUpperMask, scale_);
    fill(lower_mask_, Bfp20Decoder::kLowerMask, scale_);
    mov(group_, ptr[args_ + offsetof(SparseRowArgs, scale_bytes)]);
    xor_(scale_.cvt32(), scale_.cvt32());
  }

  // One group of a row.
  void add_row(size_t row) {
    const Xbyak::RegExp group = rows_[row] + group_;
    broadcast(factor_, rows_[row] + scale_);
    vmulps(factor_, factor_, factors_[row]);
    prefetcht0(ptr[next_[row] + scale_]);
    for (int line = 0; line < group_bytes(); line += kLine) prefetcht0(ptr[next_[row] + group_ + line]);
    const Bfp20Decoder decoder{*this, has_masks(), vec_bytes(), upper_mask_, lower_mask_};
    for (int v = 0; v < SparseRow::kVecs; ++v) {
      decoder.emit(weights_, spare_, group, v);
      vfmadd231ps(sums_[static_cast<size_t>(v)], weights_, factor_);
    }
  }

  static constexpr int kLine = 64;
  const int together_;
  const Gpr args_ = argument(0);
  const Gpr group_ = claim_gpr("group"), scale_ = claim_gpr("scale"), target_ = claim_gpr("sums");
  const Gpr groups_ = claim_gpr("groups");
  const std::vector<Vec> sums_ = claim_vecs("sum", SparseRow::kVecs);
  const Vec factor_ = claim_vec("factor of the group"), weights_ = claim_vec("weights"), spare_ = claim_vec("spare");
  const Vec upper_mask_ = claim_vec("upper mask"), lower_mask_ = claim_vec("lower mask");
  std::vector<Gpr> rows_, next_;
  std::vector<Vec> factors_;
};

}  // namespace

SparseRowKernel sparse_row_kernel(Isa isa) {
  isa = has_avx512(isa) ? Isa::avx512 : Isa::avx2;
  const std::string name = fmt::format("sparse_row {}", name_of(isa));
  return SparseRowKernel(cached_code(name, [&] { return SparseRowEmitter(isa).emit(name); }));
}

}  // namespace lathe
