#include "jit/kernels/gemm/bits_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "jit/kernels/gemm/bits_panel_emitter.h"

namespace lathe {
namespace {

constexpr int kLatency = 4;     // products under way at a time, that many sums hide it
constexpr int kMostRows = 4;    // addresses of rows are in registers
constexpr int kUnrolled = 128;  // codes of a column in straight code, at most

// Codes and rows on their way, and the two constants that decode them; AVX2 has broadcasts of A in a register.
int work_registers(Isa isa, int vecs) { return 2 * vecs + 2 + (has_avx512(isa) ? 0 : 1); }

class BitsRowsEmitter : public BitsPanelEmitter {
 public:
  explicit BitsRowsEmitter(const BitsRowsPlan& plan)
      : BitsPanelEmitter(plan.isa, plan.bits,
                         {plan.rows, plan.vecs, plan.block_groups, kUnrolled * plan.bits / 32, 32 / plan.bits * 4,
                          sizeof(float), plan.has_offsets, plan.codes_to_l2}),
        plan_(plan),
        splits_(splits_of(plan)) {}

 private:
  // Enough sums that products do not wait for each other.
  static int splits_of(const BitsRowsPlan& plan) {
    const int sums = plan.rows * plan.vecs;
    const int left = vector_registers(plan.isa) - work_registers(plan.isa, plan.vecs) - sums;
    return std::clamp(std::min((kLatency + sums - 1) / sums, left / sums), 1, 4);
  }

  const Vec& sum(int split, int row, int v) const {
    return sums_[static_cast<size_t>((split * plan_.rows + row) * plan_.vecs + v)];
  }

  void load_constants() override { claim_constants(left_); }

  void start_block() override {
    for (const Vec& each : sums_) zero(each);
  }

  void add_group(int group) override {
    for (int v = 0; v < plan_.vecs; ++v) load(group_[static_cast<size_t>(v)], codes_at(group, v));
    for (int k = 0; k < rows_of_group(); ++k) add_row_of_weights(group, k);
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

  void finish_block() override {
    const Vec &scale = weights_[0], &of_a = group_[0];
    const int count = plan_.rows * plan_.vecs;
    for (size_t i = static_cast<size_t>(count); i < sums_.size(); ++i) {
      const Vec& first = sums_[i % static_cast<size_t>(count)];
      vaddps(first, first, sums_[i]);
    }
    for_rows_of_block([&](int row) {
      broadcast(of_a, Xbyak::RegExp(left_));
      for (int v = 0; v < plan_.vecs; ++v) {
        if (plan_.has_offsets) {
          vfmadd231ps(total(row, v), of_a, ptr[scales_ + group_bytes() + v * vec_bytes()]);
        } else {
          vaddps(sum(0, row, v), sum(0, row, v), of_a);
        }
      }
    });
    for (int v = 0; v < plan_.vecs; ++v) {
      load(scale, scales_ + v * vec_bytes());
      for (int row = 0; row < plan_.rows; ++row) vfmadd231ps(total(row, v), scale, sum(0, row, v));
    }
  }

  const BitsRowsPlan plan_;
  const int splits_;
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
  return fmt::format("bits_rows {} {}x{} of {} bits by {}{}{}", vector_set(plan.isa), plan.rows, plan.vecs, plan.bits,
                     plan.block_groups * 32 / plan.bits, plan.has_offsets ? " offsets" : "",
                     plan.codes_to_l2 ? " to L2" : "");
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
