#include "jit/kernels/gemm/bits_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "jit/kernels/gemm/bits_emitter.h"

namespace lathe {
namespace {

constexpr int kCacheLine = 64;
constexpr int kAhead = 1024;    // bytes of codes: further than the CPU's own prefetching looks behind a page's end
constexpr int kLatency = 4;     // products under way at a time, that many sums hide it
constexpr int kMostRows = 4;    // addresses of rows are in registers
constexpr int kUnrolled = 128;  // codes of a column in straight code, at most

// Codes and rows on their way, and the two constants that decode them; AVX2 has broadcasts of A in a register.
int work_registers(Isa isa, int vecs) { return 2 * vecs + 2 + (has_avx512(isa) ? 0 : 1); }

class BitsRowsEmitter : public BitsEmitter {
 public:
  explicit BitsRowsEmitter(const BitsRowsPlan& plan)
      : BitsEmitter(plan.isa, plan.bits), plan_(plan), splits_(splits_of(plan)) {}

  void emit() {
    begin();
    claim_constants(a_[0]);
    load_arguments();
    for (const Vec& total : totals_) zero(total);
    loop_down(blocks_, [&] { add_block(); });
    mov(codes_, ptr[args_ + offsetof(BitsRowsArgs, c)]);
    for (size_t i = 0; i < totals_.size(); ++i) store(codes_ + static_cast<int>(i) * vec_bytes(), totals_[i]);
    end();
  }

 private:
  // Enough sums that products do not wait for each other.
  static int splits_of(const BitsRowsPlan& plan) {
    const int sums = plan.rows * plan.vecs;
    const int left = vector_registers(plan.isa) - work_registers(plan.isa, plan.vecs) - sums;
    return std::clamp(std::min(divide_up(kLatency, sums), left / sums), 1, 4);
  }
  static int divide_up(int a, int b) { return (a + b - 1) / b; }

  std::vector<Gpr> claim_rows() {
    std::vector<Gpr> rows;
    for (int row = 0; row < plan_.rows; ++row) rows.push_back(claim_gpr("a"));
    return rows;
  }
  const Vec& total(int row, int v) const { return totals_[static_cast<size_t>(row * plan_.vecs + v)]; }
  const Vec& sum(int split, int row, int v) const {
    return sums_[static_cast<size_t>((split * plan_.rows + row) * plan_.vecs + v)];
  }
  int group_bytes() const { return plan_.vecs * vec_bytes(); }

  void load_arguments() {
    mov(codes_, ptr[args_ + offsetof(BitsRowsArgs, codes)]);
    mov(scales_, ptr[args_ + offsetof(BitsRowsArgs, scales)]);
    mov(a_sums_, ptr[args_ + offsetof(BitsRowsArgs, a_sums)]);
    mov(blocks_, ptr[args_ + offsetof(BitsRowsArgs, blocks)]);
    mov(a_[0], ptr[args_ + offsetof(BitsRowsArgs, a)]);
    mov(left_, ptr[args_ + offsetof(BitsRowsArgs, a_stride_bytes)]);
    for (size_t row = 1; row < a_.size(); ++row) lea(a_[row], ptr[a_[row - 1] + left_]);
    mov(stride_, ptr[args_ + offsetof(BitsRowsArgs, a_sums_stride_bytes)]);
  }

  void add_block() {
    for (const Vec& each : sums_) zero(each);
    const int most = std::max(1, kUnrolled / rows_of_group());
    int unrolled = std::min(plan_.block_groups, most);
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
    int prefetched = 0;
    for (int group = 0; group < count; ++group) {
      for (; prefetched < (group + 1) * group_bytes(); prefetched += kCacheLine)
        prefetcht0(ptr[codes_ + kAhead + prefetched]);
      for (int v = 0; v < plan_.vecs; ++v)
        load(group_[static_cast<size_t>(v)], codes_ + group * group_bytes() + v * vec_bytes());
      for (int k = 0; k < rows_of_group(); ++k) add_row_of_weights(group, k);
    }
    add(codes_, count * group_bytes());
    for (const Gpr& a : a_) add(a, count * rows_of_group() * 4);
  }

  void add_row_of_weights(int group, int k) {
    for (int v = 0; v < plan_.vecs; ++v) decode(weights_[static_cast<size_t>(v)], group_[static_cast<size_t>(v)], k);
    for (int row = 0; row < plan_.rows; ++row) {
      const Xbyak::RegExp at = a_[static_cast<size_t>(row)] + (group * rows_of_group() + k) * 4;
      if (!has_masks()) broadcast(broadcast_, at);
      for (int v = 0; v < plan_.vecs; ++v) {
        if (has_masks()) {
          vfmadd231ps(sum(k % splits_, row, v), weights_[static_cast<size_t>(v)], ptr_b[at]);
        } else {
          vfmadd231ps(sum(k % splits_, row, v), weights_[static_cast<size_t>(v)], broadcast_);
        }
      }
    }
  }

  void finish_block() {
    const Vec &scale = weights_[0], &of_a = group_[0];
    const int count = plan_.rows * plan_.vecs;
    for (size_t i = static_cast<size_t>(count); i < sums_.size(); ++i) {
      const Vec& first = sums_[i % static_cast<size_t>(count)];
      vaddps(first, first, sums_[i]);
    }
    mov(left_, a_sums_);
    for (int row = 0; row < plan_.rows; ++row) {
      if (row > 0) add(left_, stride_);
      broadcast(of_a, Xbyak::RegExp(left_));
      for (int v = 0; v < plan_.vecs; ++v) {
        if (plan_.has_offsets) {
          vfmadd231ps(total(row, v), of_a, ptr[scales_ + group_bytes() + v * vec_bytes()]);
        } else {
          vaddps(sum(0, row, v), sum(0, row, v), of_a);
        }
      }
    }
    for (int v = 0; v < plan_.vecs; ++v) {
      load(scale, scales_ + v * vec_bytes());
      for (int row = 0; row < plan_.rows; ++row) vfmadd231ps(total(row, v), scale, sum(0, row, v));
    }
    add(scales_, (plan_.has_offsets ? 2 : 1) * group_bytes());
    add(a_sums_, 4);
  }

  const BitsRowsPlan plan_;
  const int splits_;
  const Gpr args_ = argument(0);
  const Gpr codes_ = claim_gpr("codes"), scales_ = claim_gpr("scales"), a_sums_ = claim_gpr("a sums"),
            stride_ = claim_gpr("stride"), blocks_ = claim_gpr("blocks"), left_ = claim_gpr("left");
  const std::vector<Gpr> a_ = claim_rows();
  const std::vector<Vec> totals_ = claim_vecs("totals", plan_.rows* plan_.vecs);
  const std::vector<Vec> sums_ = claim_vecs("sums", splits_* plan_.rows* plan_.vecs);
  const std::vector<Vec> group_ = claim_vecs("codes", plan_.vecs), weights_ = claim_vecs("weights", plan_.vecs);
  const Vec broadcast_ = has_masks() ? Vec() : claim_vec("a");
};

}  // namespace

bool BitsRowsPlan::is_valid() const {
  return (bits == 2 || bits == 4 || bits == 8) && vecs >= 1 && vecs <= 4 && block_groups >= 1 && rows >= 1 &&
         rows <= most_bits_rows(isa, vecs);
}

std::string to_string(const BitsRowsPlan& plan) {
  return fmt::format("bits_rows {} {}x{} of {} bits by {}{}", has_avx512(plan.isa) ? "avx512" : "avx2", plan.rows,
                     plan.vecs, plan.bits, plan.block_groups * 32 / plan.bits, plan.has_offsets ? " offsets" : "");
}

int most_bits_rows(Isa isa, int vecs) {
  return std::clamp((vector_registers(isa) - work_registers(isa, vecs)) / (2 * vecs), 0, kMostRows);
}

Kernel<BitsRowsFn> bits_rows_kernel(const BitsRowsPlan& plan) {
  const std::string key = to_string(plan);
  if (!plan.is_valid()) throw JitError(key + " is out of range");
  return Kernel<BitsRowsFn>(cached_code(key, [&] {
    BitsRowsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
