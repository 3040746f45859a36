#include "jit/kernels/gemm/bits_int8_rows.h"

#include <fmt/format.h>

#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kCacheLine = 64;
constexpr int kAhead = 1024;  // bytes of codes

class BitsInt8RowsEmitter : public Emitter {
 public:
  explicit BitsInt8RowsEmitter(const BitsInt8RowsPlan& plan) : Emitter(Isa::avx512_vnni), plan_(plan) {}

  void emit() {
    begin();
    if (plan_.bits < 8) {
      mov(left_.cvt32(), 0x01010101u * ((1u << plan_.bits) - 1));
      vpbroadcastd(mask_, left_.cvt32());
    }
    load_arguments();
    for (const Vec& total : totals_) zero(total);
    loop_down(blocks_, [&] { add_block(); });
    mov(codes_, ptr[args_ + offsetof(BitsInt8RowsArgs, c)]);
    for (size_t i = 0; i < totals_.size(); ++i) store(codes_ + static_cast<int>(i) * vec_bytes(), totals_[i]);
    end();
  }

 private:
  std::vector<Gpr> claim_rows() {
    std::vector<Gpr> rows;
    for (int row = 0; row < plan_.rows; ++row) rows.push_back(claim_gpr("a"));
    return rows;
  }
  size_t at(int row, int v) const { return static_cast<size_t>(row * plan_.vecs + v); }
  int group_bytes() const { return plan_.vecs * vec_bytes(); }
  int parts() const { return 8 / plan_.bits; }  // of a group: codes in a byte

  void load_arguments() {
    mov(codes_, ptr[args_ + offsetof(BitsInt8RowsArgs, codes)]);
    mov(scales_, ptr[args_ + offsetof(BitsInt8RowsArgs, scales)]);
    mov(a_blocks_, ptr[args_ + offsetof(BitsInt8RowsArgs, a_blocks)]);
    mov(blocks_, ptr[args_ + offsetof(BitsInt8RowsArgs, blocks)]);
    mov(a_[0], ptr[args_ + offsetof(BitsInt8RowsArgs, a)]);
    mov(stride_, ptr[args_ + offsetof(BitsInt8RowsArgs, a_stride_bytes)]);
    for (size_t row = 1; row < a_.size(); ++row) lea(a_[row], ptr[a_[row - 1] + stride_]);
    mov(stride_, ptr[args_ + offsetof(BitsInt8RowsArgs, a_blocks_stride_bytes)]);
  }

  template <class Body>
  void for_rows_of_blocks(Body body) {
    mov(left_, a_blocks_);
    for (int row = 0; row < plan_.rows; ++row) {
      if (row > 0) add(left_, stride_);
      body(row);
    }
  }

  void add_block() {
    if (plan_.has_offsets) {
      for (const Vec& sum : sums_) zero(sum);
    } else {
      for_rows_of_blocks([&](int row) {
        vpbroadcastd(sums_[at(row, 0)], dword[left_ + offsetof(BlockOfBytes, sum)]);
        for (int v = 1; v < plan_.vecs; ++v) vmovdqa32(sums_[at(row, v)], sums_[at(row, 0)]);
      });
    }
    constexpr int kMostStraight = 16;
    int unrolled = std::min(plan_.block_groups, kMostStraight);
    while (plan_.block_groups % unrolled != 0) --unrolled;
    if (unrolled == plan_.block_groups) {
      add_groups(unrolled);
    } else {
      mov(left_, plan_.block_groups / unrolled);
      loop_down(left_, [&] { add_groups(unrolled); });
    }
    finish_block();
  }

  void add_groups(int count) {
    for (int group = 0; group < count; ++group) {
      for (int line = 0; line < group_bytes(); line += kCacheLine)
        prefetcht0(ptr[codes_ + kAhead + group * group_bytes() + line]);
      for (int part = 0; part < parts(); ++part) add_part(group, part);
    }
    add(codes_, count * group_bytes());
    for (const Gpr& a : a_) add(a, count * parts() * 4);
  }

  void add_part(int group, int part) {
    for (int v = 0; v < plan_.vecs; ++v) {
      const Vec &codes = group_[static_cast<size_t>(v)], &bytes = bytes_[static_cast<size_t>(v)];
      if (part == 0) load(codes, codes_ + group * group_bytes() + v * vec_bytes());
      if (part > 0) vpsrld(codes, codes, static_cast<uint8_t>(plan_.bits));
      plan_.bits < 8 ? vpandd(bytes, codes, mask_) : vmovdqa32(bytes, codes);
    }
    for (int row = 0; row < plan_.rows; ++row)
      for (int v = 0; v < plan_.vecs; ++v)
        vpdpbusd(sums_[at(row, v)], bytes_[static_cast<size_t>(v)],
                 ptr_b[a_[static_cast<size_t>(row)] + (group * parts() + part) * 4]);
  }

  void finish_block() {
    for (int v = 0; v < plan_.vecs; ++v) {
      const Vec &scale = group_[static_cast<size_t>(v)], &offset = bytes_[static_cast<size_t>(v)];
      load(scale, scales_ + v * vec_bytes());
      if (plan_.has_offsets) vaddps(offset, scale, ptr[scales_ + group_bytes() + v * vec_bytes()]);
    }
    for_rows_of_blocks([&](int row) {
      for (int v = 0; v < plan_.vecs; ++v) {
        const Vec &sum = sums_[at(row, v)], &total = totals_[at(row, v)];
        vcvtdq2ps(sum, sum);
        vmulps(sum, sum, ptr_b[left_ + offsetof(BlockOfBytes, scale)]);
        vfmadd231ps(total, sum, group_[static_cast<size_t>(v)]);
        if (plan_.has_offsets)
          vfmadd231ps(total, bytes_[static_cast<size_t>(v)], ptr_b[left_ + offsetof(BlockOfBytes, sum)]);
      }
    });
    add(scales_, (plan_.has_offsets ? 2 : 1) * group_bytes());
    add(a_blocks_, sizeof(BlockOfBytes));
  }

  const BitsInt8RowsPlan plan_;
  const Gpr args_ = argument(0);
  const Gpr codes_ = claim_gpr("codes"), scales_ = claim_gpr("scales"), a_blocks_ = claim_gpr("a blocks"),
            stride_ = claim_gpr("stride"), blocks_ = claim_gpr("blocks"), left_ = claim_gpr("left");
  const std::vector<Gpr> a_ = claim_rows();
  const std::vector<Vec> totals_ = claim_vecs("totals", plan_.rows* plan_.vecs);
  const std::vector<Vec> sums_ = claim_vecs("sums", plan_.rows* plan_.vecs);
  const std::vector<Vec> group_ = claim_vecs("codes", plan_.vecs), bytes_ = claim_vecs("bytes", plan_.vecs);
  const Vec mask_ = claim_vec("mask");
};

}  // namespace

bool BitsInt8RowsPlan::is_valid() const {
  return (bits == 2 || bits == 4 || bits == 8) && vecs >= 1 && vecs <= kMostBitsInt8Vecs && block_groups >= 1 &&
         rows >= 1 && rows <= kMostBitsInt8Rows;
}

std::string to_string(const BitsInt8RowsPlan& plan) {
  return fmt::format("bits_int8_rows {}x{} of {} bits by {}{}", plan.rows, plan.vecs, plan.bits,
                     plan.block_groups * 32 / plan.bits, plan.has_offsets ? " offsets" : "");
}

Kernel<BitsInt8RowsFn> bits_int8_rows_kernel(const BitsInt8RowsPlan& plan) {
  const std::string key = to_string(plan);
  if (!plan.is_valid()) throw JitError(key + " is out of range");
  return Kernel<BitsInt8RowsFn>(cached_code(key, [&] {
    BitsInt8RowsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
