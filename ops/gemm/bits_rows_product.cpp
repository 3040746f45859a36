// Products of a few rows: weights of few bits become float32 in registers, once for as many rows as these hold, or
// twice, which still takes less than to memory and back.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "jit/kernels/gemm/bits_rows.h"
#include "jit/kernels/gemm/unpack_bits.h"
#include "ops/core_cycles.h"
#include "ops/gemm/bits_product.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kMostPasses = 2;

int64_t most_rows_together(const BitsProblem& problem) {
  return most_bits_rows(problem.isa, static_cast<int>(problem.format().panel_columns / problem.format().lanes));
}

class BitsRowsProduct : public BitsProduct {
 public:
  explicit BitsRowsProduct(const BitsProblem& problem) : BitsProduct(problem) {
    BitsRowsPlan plan;
    plan.isa = has_avx512(problem.isa) ? Isa::avx512 : Isa::avx2;
    plan.bits = problem.bits;
    plan.block_groups = static_cast<int>(problem.block / problem.group());
    plan.has_offsets = problem.has_offsets;
    plan.codes_to_l2 = fetches_into_l2(core_rates());
    for (const int64_t panel : {int64_t{0}, problem.panels() - 1}) {
      plan.vecs = problem.panel_vecs(panel);
      for (int64_t pass = 0; pass < passes(); ++pass) {
        plan.rows = static_cast<int>(rows_of(pass));
        kernels_[pass][panel + 1 == problem.panels() ? 1 : 0] = bits_rows_kernel(plan);
      }
    }
  }

  // A in whole blocks, sums of these, a panel of C.
  int64_t scratch_elements() const override {
    return problem_.m * (problem_.blocks() * (problem_.block + 1) + problem_.format().panel_columns);
  }

  std::string key() const override {
    return fmt::format("gemm {} rows of {} bits by {}", problem_.m, problem_.bits, problem_.block);
  }

  void run(const BitsOperands& operands, int thread, int threads) const noexcept override {
    const Range mine = split_evenly(problem_.panels(), thread, threads);
    if (mine.begin < mine.end) prepare(operands);
    for (int64_t panel = mine.begin; panel < mine.end; ++panel) run_panel(operands, panel);
  }

 private:
  int64_t passes() const { return problem_.m > most_rows_together(problem_) ? kMostPasses : 1; }
  // Of all passes but the last.
  int64_t tall_rows() const { return divide_up(problem_.m, passes()); }
  int64_t rows_of(int64_t pass) const { return pass + 1 < passes() ? tall_rows() : problem_.m - pass * tall_rows(); }

  void prepare(const BitsOperands& operands) const noexcept {
    constexpr int64_t kTogether = 8;
    const int64_t blocks = problem_.blocks(), padded = blocks * problem_.block;
    float* sums = operands.scratch + problem_.m * padded;
    for (int64_t row = 0; row < problem_.m; ++row) {
      float* to = operands.scratch + row * padded;
      std::copy_n(operands.a + row * problem_.k, problem_.k, to);
      std::fill(to + problem_.k, to + padded, 0.F);
      for (int64_t block = 0; block < blocks; ++block, to += problem_.block) {
        std::array<float, kTogether> parts{};
        for (int64_t i = 0; i < problem_.block; i += kTogether)
          for (size_t j = 0; j < parts.size(); ++j) parts[j] += to[i + static_cast<int64_t>(j)];
        const float sum = std::accumulate(parts.begin(), parts.end(), 0.F);
        *sums++ = problem_.has_offsets ? sum : -kMiddleCode * sum;
      }
    }
  }

  void run_panel(const BitsOperands& operands, int64_t panel) const noexcept {
    const int64_t blocks = problem_.blocks(), padded = blocks * problem_.block;
    float* sums = operands.scratch + problem_.m * padded;
    float* c = sums + problem_.m * blocks;
    for (int64_t pass = 0; pass < passes(); ++pass) {
      const int64_t row = pass * tall_rows();
      const BitsPanelArgs args{.codes = codes_at(operands, panel),
                               .scales = scales_at(operands, panel),
                               .a = operands.scratch + row * padded,
                               .a_blocks = sums + row * blocks,
                               .c = c + row * problem_.format().width_of(panel, problem_.n),
                               .blocks = blocks,
                               .a_stride_bytes = padded * 4,
                               .a_blocks_stride_bytes = blocks * 4,
                               .c_stride_bytes = problem_.format().width_of(panel, problem_.n) * 4};
      kernels_[pass][panel + 1 == problem_.panels() ? 1 : 0].entry()(&args);
    }
    store_rows(operands, panel, 0, problem_.m, c);
  }

  Kernel<BitsRowsFn> kernels_[kMostPasses][2];  // by pass, is it the last panel
};

}  // namespace

bool has_few_rows(const BitsProblem& problem) { return problem.m <= kMostPasses * most_rows_together(problem); }

std::unique_ptr<const BitsProduct> make_bits_rows_product(const BitsProblem& problem) {
  return std::make_unique<const BitsRowsProduct>(problem);
}

}  // namespace lathe
