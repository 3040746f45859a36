#pragma once
// The code of jit/kernels/gemm/gemm.h: frame and products in gemm.cpp, what becomes of the products in
// gemm_finish.cpp. Nobody else includes it.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "jit/expression/epilogue.h"
#include "jit/kernels/common/shared_vector.h"
#include "jit/kernels/gemm/gemm.h"
#include "jit/kernels/gemm/row_tile_emitter.h"
#include "jit/kernels/gemm/stream_ahead.h"

namespace lathe {

class GemmTileEmitter : public RowTileEmitter {
 public:
  explicit GemmTileEmitter(const GemmTilePlan& plan) : RowTileEmitter(plan.isa, plan.rows), plan_(plan) {
    if (plan.epilogue) {
      epilogue_ = std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa,
                                                    plan.epilogue->expression);
    }
    spills_ = must_spill();
    broadcasts_.push_back(work_.back());
    for (int row = 0; row < plan.rows; ++row) {
      if (!shared_.is_holder(row)) broadcasts_.push_back(acc(row, plan.vecs - 1));
    }
  }

  std::shared_ptr<const CodePages> emit();

 private:
  // --- The frame: state that changes from tile to tile, then room for accumulators, whose partial sums it keeps
  // before.
  enum Frame {
    kOldStack = 0,
    kTilesLeft = 8,
    kA = 16,
    kC = 24,
    kPrefetch = 32,
    kRowsLeft = 40,
    kStepsLeft = 48,
    kInputs = 64
  };
  static constexpr int kF32 = sizeof(float);
  static constexpr int kSpill = kInputs + 8 * kMaxGemmInputs;

  void open_frame();
  void close_frame() { mov(rsp, ptr[rsp + kOldStack]); }
  void load_arguments();
  void copy_to_frame(int to, size_t from);
  void fetch_targets();
  void fetch_ends();
  void fetch_folds();
  // The rows of a tile: fetch(address) for each vector.
  template <class Fetch>
  void fetch_rows(const Xbyak::Operand& stride, Fetch fetch);  // from c_ on

  // --- C += A * B
  void zero_accumulators();
  // C comes last: of two short sums the rounding errors are smaller than of one long one.
  void add_earlier_blocks();
  void add_rows(Frame matrix, size_t stride);
  void multiply();
  void multiply_steps();  // k_left_ of them
  void multiply_in_short_sums();
  template <class Body>
  void for_groups(Body body);  // of k_unroll steps
  Xbyak::Address kept(size_t i) const { return ptr[rsp + (kSpill + static_cast<int>(i) * vec_bytes())]; }
  // acc[row][v] += A[row][k] * B[k][v] for the next `steps` values of k, with `lines` prefetches spread among them.
  void rank1_updates(int steps, int lines);
  int chunk_bytes() const { return plan_.rows * vec_bytes(); }
  Xbyak::RegExp element_of_a(int row, int k) const {
    return plan_.a_in_chunks ? a_[0] + (row * vec_bytes() + k * kF32) : a_at(row, k);
  }
  int b_vec_bytes() const {
    if (plan_.weights == WeightFormat::bfp24) return vec_bytes() * Bfp24::kGroupWords / Bfp24::kGroupRows;
    return has_16_bits(plan_.weights) ? vec_bytes() / 2 : vec_bytes();
  }
  Xbyak::RegExp b_at(int k, int v) const { return b_ + ((plan_.b_in_place ? 0 : k * plan_.vecs) + v) * b_vec_bytes(); }
  bool is_partial(int v) const { return plan_.masked && v == plan_.vecs - 1; }

  template <class Pace>
  void update_holding_b(int k, Pace pace);
  template <class Pace>
  void update_sharing_last(int k, Pace pace);
  void part_shared();
  template <class Pace>
  void update_holding_a(int k, Pace pace);
  void load_b(const Vec& into, int k, int v);
  // gemm_bfp20.cpp
  void multiply_bfp20();
  void add_bfp20_row(int k);
  void prefetch_bfp20(int k);
  const Vec& bfp_weights() const { return work_[0]; }
  const Vec& bfp_lower() const { return work_[1]; }
  const Vec& bfp_upper_mask() const { return work_[2]; }
  const Vec& bfp_lower_mask() const { return work_[3]; }
  const Vec& bfp_scale(int v) const { return work_[static_cast<size_t>(4 + v)]; }
  // gemm_bfp24.cpp
  void load_bfp24(const Vec& into, int row, int v);
  void gather_bytes(const Vec& into, const Xbyak::RegExp& group);
  void scale_bfp24();
  const Vec& bfp_bytes() const { return work_[work_.size() - (plan_.embed_broadcast ? 1 : 2)]; }
  // Half a vector takes half the time on cores with one multiplier of whole ones.
  Vec used(const Vec& vec, int v) const {
    return plan_.half_last && v == plan_.vecs - 1 ? Vec(Xbyak::Ymm(vec.getIdx())) : vec;
  }
  // acc(row, v) += x * y; y lies in memory or is a vector.
  void multiply_add(int row, int v, const Vec& x, const Xbyak::Operand& y) {
    const Vec sum = used(acc(row, v), v), factor = used(x, v);
    plan_.bf16 ? vdpbf16ps(sum, factor, y) : vfmadd231ps(sum, factor, y);
  }

  // --- C = epilogue(acc): in registers when they suffice, else through the frame, row by row in a loop.
  int input_count() const {
    if (plan_.folds_product()) return plan_.fold_count() - 1;
    return plan_.epilogue ? static_cast<int>(plan_.epilogue->inputs.size()) : 0;
  }
  bool needs_late_mask() const { return plan_.masked && !has_masks() && !keeps_mask_; }
  Vec mask_vec(const Vec& late) const { return keeps_mask_ ? *keeps_mask_ : late; }
  bool must_spill() const {
    if (!epilogue_) return false;
    const int left = static_cast<int>(work_.size()) + free_vecs() - (needs_late_mask() ? 1 : 0);
    return temps_needed() > left;
  }
  // Of a fold the sum is one, too.
  int temps_needed() const { return epilogue_->temps_needed() + (plan_.folds_product() ? 1 : 0); }

  void finish_tile();
  // The registers of A's addresses are free between tiles.
  std::vector<Gpr> input_pointers();
  void finish_rows_in_registers(const std::vector<Gpr>& inputs, std::vector<Vec> temps);
  void finish_rows_in_loop(const std::vector<Gpr>& inputs, std::vector<Vec> temps);
  template <class Accumulator>
  void finish_row(const std::vector<Gpr>& inputs, const std::vector<Vec>& temps, const Vec& mask, Accumulator get);
  void fold_vector(const Vec& product, int v, const std::vector<Gpr>& inputs, const std::vector<Vec>& temps);
  // The register where the sum is: `product` itself when it is set or was taken.
  Vec fold(GemmFold how, const Vec& product, const Xbyak::RegExp& at, const Vec& temp);
  void complete(size_t fold, const Vec& sum, const Gpr& row, int v, std::span<const Xbyak::Xmm> temps);
  // Of rows whose vectors may lie apart.
  Xbyak::RegExp vector_at(const Gpr& row, int v) const;
  void load_vector_bytes();

  // --- AVX2 against AVX-512: mask vector against opmask.
  void load_mask(const Vec& vec);
  void load_columns(const Vec& vec, const Xbyak::RegExp& at, int v, const Vec& mask);
  void store_columns(const Xbyak::RegExp& at, const Vec& vec, int v, const Vec& mask);
  void store_bf16(const Xbyak::RegExp& at, const Vec& vec, int v);
  void emit_constants();

  // Free where they are needed: between the products of tiles.
  const Gpr& vector_bytes() const { return k_left_; }
  const Gpr& vector_bytes_x3() const { return a_stride_[3]; }
  const Gpr& input_at() const { return b_; }

  int rows_x_vecs() const { return plan_.rows * plan_.vecs; }
  const Vec& acc(int row, int v) const { return acc_[static_cast<size_t>(row * plan_.vecs + v)]; }

  const GemmTilePlan plan_;
  SharedVector shared_{*this, plan_.last_share, 2};  // behind tail_k_
  std::unique_ptr<EpilogueEmitter> epilogue_;
  const Gpr args_ = argument(0);
  const Gpr b_ = claim_gpr("b"), c_ = claim_gpr("c");
  const Gpr k_left_ = claim_gpr("k_left"), prefetch_ = claim_gpr("prefetch"), tmp_ = claim_gpr("tmp");
  const std::vector<Vec> acc_ = claim_vecs("acc", plan_.rows* plan_.vecs);
  const std::vector<Vec> work_ = claim_vecs("work", plan_.work_registers());
  const std::optional<Vec> keeps_mask_ =
      plan_.masked && plan_.b_in_place && !has_masks() ? std::optional<Vec>(claim_vec("mask")) : std::nullopt;
  std::vector<Vec> broadcasts_;  // for rows that share
  size_t next_broadcast_ = 0;
  bool spills_ = false;
  bool uses_mask_table_ = false;
  const Xbyak::Opmask tail_k_ = k1;
  Xbyak::Label next_tile_, mask_table_;
};

}  // namespace lathe
