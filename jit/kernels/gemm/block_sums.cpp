#include "jit/kernels/gemm/block_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "jit/kernels/gemm/row_tile_emitter.h"

namespace lathe {
namespace {

// The streams are too many for the CPU's own prefetcher.
constexpr int kBytesAhead = 512;

// The sums lie as far from each other as a tile's rows, and are reached alike.
class BlockSumsEmitter : public RowTileEmitter {
 public:
  explicit BlockSumsEmitter(const BlockSumsPlan& plan)
      : RowTileEmitter(plan.isa, static_cast<int>(plan.sums.size())), plan_(plan) {}

  std::shared_ptr<const CodePages> emit() {
    begin();
    Xbyak::Label next_row, next_vector;
    mov(column_, ptr[args_ + offsetof(BlockSumsArgs, in_block_column_bytes)]);
    L(next_row);
    point_at_blocks();
    point_at_a(ptr[args_ + offsetof(BlockSumsArgs, out)], ptr[args_ + offsetof(BlockSumsArgs, out_sum_bytes)]);
    if (plan_.scaled) point_at_scales();
    mov(vectors_, ptr[args_ + offsetof(BlockSumsArgs, vectors)]);
    align(32);
    L(next_vector);
    emit_vector();
    for (const Gpr& in : in_) add(in, ptr[args_ + offsetof(BlockSumsArgs, in_vector_bytes)]);
    for (const Gpr& out : a_) add(out, ptr[args_ + offsetof(BlockSumsArgs, out_vector_bytes)]);
    dec(vectors_);
    jnz(next_vector, T_NEAR);
    advance(offsetof(BlockSumsArgs, in), offsetof(BlockSumsArgs, in_stride_bytes));
    advance(offsetof(BlockSumsArgs, out), offsetof(BlockSumsArgs, out_stride_bytes));
    dec(qword[args_ + offsetof(BlockSumsArgs, rows)]);
    jnz(next_row, T_NEAR);
    end();
    return finish(plan_.key());
  }

 private:
  void point_at_blocks() {
    mov(in_[0], ptr[args_ + offsetof(BlockSumsArgs, in)]);
    for (size_t row = 1; row < in_.size(); ++row) {
      mov(in_[row], in_[row - 1]);
      add(in_[row], ptr[args_ + offsetof(BlockSumsArgs, in_block_row_bytes)]);
    }
  }

  void point_at_scales() {
    mov(scales_[0], ptr[args_ + offsetof(BlockSumsArgs, scales)]);
    for (size_t row = 1; row < scales_.size(); ++row) {
      mov(scales_[row], scales_[row - 1]);
      add(scales_[row], ptr[args_ + offsetof(BlockSumsArgs, scales_block_row_bytes)]);
    }
  }

  void scale_row(size_t row) {
    const Vec &factor = sum_[0], &mask = sum_[1];
    broadcast(factor, scales_[row] + offsetof(RowScale, factor));
    broadcast(mask, scales_[row] + offsetof(RowScale, mask));
    for (size_t column = 0; column < static_cast<size_t>(plan_.columns); ++column) {
      const Vec& value = value_[row * static_cast<size_t>(plan_.columns) + column];
      has_masks() ? vpandd(value, value, mask) : vandps(value, value, mask);
      vmulps(value, value, factor);
    }
    add(scales_[row], sizeof(RowScale));
  }

  void advance(size_t pointer, size_t stride) {
    mov(vectors_, ptr[args_ + stride]);
    add(ptr[args_ + pointer], vectors_);
  }

  void emit_vector() {
    for (int row = 0; row < plan_.rows; ++row) {
      for (int column = 0; column < plan_.columns; ++column) {
        const Gpr& in = in_[static_cast<size_t>(row)];
        const Xbyak::RegExp at = column == 0 ? Xbyak::RegExp(in) : in + column_ * column;
        load(value_[static_cast<size_t>(row * plan_.columns + column)], at);
        prefetcht0(ptr[at + kBytesAhead]);
      }
      if (plan_.scaled) scale_row(static_cast<size_t>(row));
    }
    for (size_t i = 0; i < plan_.sums.size(); ++i) {
      const int number = static_cast<int>(i);
      store(a_at(number, 0), sum_up(plan_.sums[i], sum_[i % sum_.size()]));
      prefetchw(ptr[a_at(number, kBytesAhead / kStepBytes)]);
    }
  }

  // The register where the result is.
  Vec sum_up(const BlockSum& sum, const Vec& temp) {
    // A block with a plus sign comes first, if there is one.
    size_t first = static_cast<size_t>(std::max_element(sum.begin(), sum.end()) - sum.begin());
    Vec result = value_[first];
    if (sum[first] <= 0) {
      zero(temp);
      result = temp;
      first = sum.size();
    }
    for (size_t block = 0; block < sum.size(); ++block) {
      if (block == first || sum[block] == 0) continue;
      sum[block] > 0 ? vaddps(temp, result, value_[block]) : vsubps(temp, result, value_[block]);
      result = temp;
    }
    return result;
  }

  const BlockSumsPlan plan_;
  const Gpr args_ = argument(0);
  const Gpr column_ = claim_gpr("from one column of blocks to the next"), vectors_ = claim_gpr("vectors left");
  const std::array<Gpr, BlockSumsPlan::kMostRows> in_ = {claim_gpr("in"), claim_gpr("in")};
  const std::array<Gpr, BlockSumsPlan::kMostRows> scales_ = {claim_gpr("scales"), claim_gpr("scales")};
  const std::vector<Vec> value_ = claim_vecs("value", plan_.rows* plan_.columns);
  const std::vector<Vec> sum_ = claim_vecs("sum", 8);
};

}  // namespace

bool BlockSumsPlan::is_valid() const {
  if (rows < 1 || rows > kMostRows || columns < 1 || columns > kMostColumns) return false;
  const auto fits = [&](const BlockSum& sum) {
    return sum.size() == static_cast<size_t>(rows * columns) &&
           std::any_of(sum.begin(), sum.end(), [](int sign) { return sign != 0; });
  };
  return !sums.empty() && sums.size() <= size_t{kMostSums} && std::all_of(sums.begin(), sums.end(), fits);
}

std::string BlockSumsPlan::key() const {
  std::string text = fmt::format("block_sums {} {}x{}{}", name_of(isa), rows, columns, scaled ? " scaled" : "");
  for (const BlockSum& sum : sums) {
    text += ' ';
    for (const int sign : sum) text += sign == 0 ? '0' : sign > 0 ? '+' : '-';
  }
  return text;
}

BlockSums block_sums(const BlockSumsPlan& plan) {
  if (!plan.is_valid()) throw JitError("no such sums: " + plan.key());
  return BlockSums(cached_code(plan.key(), [&] { return BlockSumsEmitter(plan).emit(); }));
}

}  // namespace lathe
