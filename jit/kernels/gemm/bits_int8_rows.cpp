#include "jit/kernels/gemm/bits_int8_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "jit/kernels/common/int8_dot.h"
#include "jit/kernels/gemm/bits_panel_emitter.h"

namespace lathe {
namespace {

constexpr int kStraightGroups = 16;

class BitsInt8RowsEmitter : public BitsPanelEmitter {
 public:
  explicit BitsInt8RowsEmitter(const BitsInt8RowsPlan& plan)
      : BitsPanelEmitter(plan.isa, plan.bits,
                         {plan.rows, plan.vecs, plan.block_groups, kStraightGroups, 32 / plan.bits,
                          sizeof(BlockOfBytes), plan.has_offsets, plan.codes_to_l2}),
        plan_(plan) {}

 private:
  const Vec& sum(int row, int v) const { return sums_[static_cast<size_t>(row * plan_.vecs + v)]; }
  int parts() const { return 8 / plan_.bits; }  // of a group: codes in a byte

  void load_constants() override {
    if (plan_.bits == 8) return;
    fill(mask_, 0x01010101u * ((1u << plan_.bits) - 1), left_);
  }

  void start_block() override {
    if (plan_.has_offsets) {
      for (const Vec& each : sums_) zero(each);
      return;
    }
    for_rows_of_block([&](int row) {
      vpbroadcastd(sum(row, 0), dword[left_ + offsetof(BlockOfBytes, sum)]);
      for (int v = 1; v < plan_.vecs; ++v) vmovaps(sum(row, v), sum(row, 0));
    });
  }

  void add_group(int group) override {
    for (int part = 0; part < parts(); ++part) add_part(group, part);
  }

  void add_part(int group, int part) {
    for (int v = 0; v < plan_.vecs; ++v) {
      const Vec &codes = group_[static_cast<size_t>(v)], &bytes = bytes_[static_cast<size_t>(v)];
      if (part == 0) load(codes, codes_at(group, v));
      if (part > 0) vpsrld(codes, codes, static_cast<uint8_t>(plan_.bits));
      if (plan_.bits == 8) {
        vmovaps(bytes, codes);
      } else {
        has_masks() ? vpandd(bytes, codes, mask_) : vpand(bytes, codes, mask_);
      }
    }
    for (int row = 0; row < plan_.rows; ++row) {
      with_number(a_[static_cast<size_t>(row)] + (group * parts() + part) * 4, [&](const Xbyak::Operand& a) {
        for (int v = 0; v < plan_.vecs; ++v) vpdpbusd(sum(row, v), bytes_[static_cast<size_t>(v)], a);
      });
    }
  }

  void finish_block() override {
    for (int v = 0; v < plan_.vecs; ++v) {
      const Vec &scale = group_[static_cast<size_t>(v)], &offset = bytes_[static_cast<size_t>(v)];
      load(scale, scales_ + v * vec_bytes());
      if (plan_.has_offsets) vaddps(offset, scale, ptr[scales_ + group_bytes() + v * vec_bytes()]);
    }
    for_rows_of_block([&](int row) {
      with_number(left_ + offsetof(BlockOfBytes, scale), [&](const Xbyak::Operand& of_a) {
        for (int v = 0; v < plan_.vecs; ++v) {
          vcvtdq2ps(sum(row, v), sum(row, v));
          vmulps(sum(row, v), sum(row, v), of_a);
          vfmadd231ps(total(row, v), sum(row, v), group_[static_cast<size_t>(v)]);
        }
      });
      if (!plan_.has_offsets) return;
      with_number(left_ + offsetof(BlockOfBytes, sum), [&](const Xbyak::Operand& of_a) {
        for (int v = 0; v < plan_.vecs; ++v) vfmadd231ps(total(row, v), bytes_[static_cast<size_t>(v)], of_a);
      });
    });
  }

  // `use` of 32 bits of memory in all lanes: loaded once for two vectors, for a load a product is all that passes.
  template <class Use>
  void with_number(const Xbyak::RegExp& at, Use use) {
    if (has_masks() && plan_.vecs == 1) return use(ptr_b[at]);
    vpbroadcastd(number_, dword[at]);
    use(number_);
  }

  const BitsInt8RowsPlan plan_;
  const std::vector<Vec> sums_ = claim_vecs("sums", plan_.rows* plan_.vecs);
  const std::vector<Vec> group_ = claim_vecs("codes", plan_.vecs), bytes_ = claim_vecs("bytes", plan_.vecs);
  const Vec mask_ = claim_vec("mask");
  const Vec number_ = has_masks() && plan_.vecs == 1 ? Vec() : claim_vec("number");
};

}  // namespace

bool BitsInt8RowsPlan::is_valid() const {
  return has_vnni(isa) && (bits == 2 || bits == 4 || bits == 8) && vecs >= 1 && vecs <= kMostBitsInt8Vecs &&
         block_groups >= 1 && rows >= 1 && rows <= most_bits_int8_rows(isa, vecs);
}

int most_bits_int8_rows(Isa isa, int vecs) {
  const int others = 2 * vecs + 2;  // codes and bytes, a mask, a number of A
  return std::min(kMostBitsInt8Rows, (vector_registers(isa) - others) / (2 * vecs));
}

std::string to_string(const BitsInt8RowsPlan& plan) {
  return fmt::format("bits_int8_rows {} {}x{} of {} bits by {}{}{}", name_of(plan.isa), plan.rows, plan.vecs, plan.bits,
                     plan.block_groups * 32 / plan.bits, plan.has_offsets ? " offsets" : "",
                     plan.codes_to_l2 ? " to L2" : "");
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
