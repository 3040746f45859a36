#pragma once
// The code of jit/kernels/gemm/gemm_int8.h: frame and sums in gemm_int8_emitter.cpp, what becomes of the sums in
// gemm_int8_finish.cpp, tiles that do both at a time in gemm_int8_overlapped.cpp. Nobody else includes it.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "jit/expression/epilogue.h"
#include "jit/kernels/common/gelu_emitter.h"
#include "jit/kernels/gemm/gemm_int8.h"
#include "jit/kernels/gemm/stream_ahead.h"

namespace lathe {

constexpr int kRowsPerBase = 9;  // rows that one base register reaches with strides 1, 3, 5, 7 scaled by 1, 2, 4, 8

// Few rows: hold A's broadcasts and stream B through one register. Many: hold a row of B, broadcast A one by one.
inline bool is_crossed(const GemmInt8TilePlan& plan) { return plan.dot == Int8Dot::crossed; }
// B stays in memory. Beside the products: two broadcasts, second products and ones.
inline bool has_fours(const GemmInt8TilePlan& plan) { return has_fours(plan.dot); }
inline bool is_by_signs(const GemmInt8TilePlan& plan) { return plan.dot == Int8Dot::s8s8; }
inline bool holds_a(const GemmInt8TilePlan& plan) {
  return plan.rows < plan.vecs && !is_crossed(plan) && !has_fours(plan);
}
// Of a row's group of A; by signs its sizes, too.
inline int registers_of_a(const GemmInt8TilePlan& plan) { return is_by_signs(plan) ? 2 : 1; }
// Crossed: two lanes of both and, but for a row's last vector, their sums.
inline int work_registers(const GemmInt8TilePlan& plan) {
  if (is_crossed(plan)) return 2 * plan.vecs + (plan.vecs > 1 ? 4 : 2);
  if (has_fours(plan)) return 4;
  return holds_a(plan) ? registers_of_a(plan) * plan.rows + 1 : plan.vecs + registers_of_a(plan);
}

class GemmInt8Emitter : public GeluEmitter {
 public:
  explicit GemmInt8Emitter(const GemmInt8TilePlan& plan) : GeluEmitter(plan.isa), plan_(plan) {
    if (dot_needs_temp(plan.isa, plan.dot)) work_.push_back(claim_vec("products"));
    if (plan.epilogue) {
      epilogue_ = std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa,
                                                    plan.epilogue->expression);
    }
    for (int base = 0; base * kRowsPerBase < plan.rows; ++base) a_.push_back(claim_gpr("a"));
    plan.row_groups > 0 ? claim_for_outputs() : choose_together();
  }

  std::shared_ptr<const CodePages> emit();

 private:
  // --- The frame: state that changes from tile to tile, then room for accumulators.
  enum Frame { kOldStack = 0, kTilesLeft = 8, kA = 16, kC = 24, kPrefetch = 32, kRowsLeft = 40, kRowInit = 48 };
  enum { kProductsLeft = 56, kTailBytes = 64, kLarge = 72, kInputs = 80 };
  static constexpr int kSpill = (kInputs + 8 * kMaxInt8Inputs + kCacheLine - 1) / kCacheLine * kCacheLine;

  void open_frame();
  void load_arguments();
  void copy_to_frame(int to, size_t from);
  bool may_repeat() const { return plan_.row_groups == 0 && input_count() == 0; }
  void go_on_to_next_product();
  void close_frame() { mov(rsp, ptr[rsp + kOldStack]); }

  // --- sums += A * B
  void init_accumulators();
  void multiply();
  void sum_groups();
  void point_at_a();
  Xbyak::RegExp a_at(int row, int group) const;
  template <class Pace>
  void update_holding_b(int group, Pace pace);
  template <class Pace>
  void update_crossed(int group, Pace pace);
  template <class Pace>
  void update_holding_a(int group, Pace pace);
  template <class Pace>
  void update_bytes(int group, Pace pace);
  template <class Pace>
  void update_fours(int group, Pace pace);
  void updates(int groups, int lines);
  void updates_of(int groups, int lines, bool has_own_flag);
  template <class After>
  void update_round(int groups, int lines, After after);
  void emit_constants();
  Xbyak::RegExp b_at(int group, int v) const { return b_ + (group * plan_.vecs + v) * vec_bytes(); }
  const Vec& products() const { return work_.back(); }
  const Vec& ones() const { return work_[3]; }
  void broadcast_a(int first, int row, int group);
  void dot_with(int first, const Vec& acc, const Vec& b);
  const Vec& acc(int row, int v) const { return acc_[static_cast<size_t>(row * plan_.vecs + v)]; }

  // --- C = epilogue(sums), row by row. The last rows wait in the frame where registers are too few; all of them, in a
  // loop, where one row is not enough.

  // A vector of the rows that are finished, counted from the first of them.
  struct Sum {
    int row, v;
    Vec vec;
  };
  int waiting_rows(int together) const;
  void choose_together();
  void finish_tile();
  std::vector<Gpr> input_pointers();
  void set_store_temps(std::vector<Vec>& temps);
  void finish_group(const std::vector<Gpr>& inputs, const std::vector<Vec>& temps, int rows, int together,
                    const std::function<Vec(int row, int v)>& get);
  void finish_rows(const std::vector<Gpr>& inputs, std::vector<Vec> temps);
  void finish_rows_in_loop(const std::vector<Gpr>& inputs, std::vector<Vec> temps);
  void apply_epilogue(const std::vector<Sum>& sums, const std::vector<Gpr>& inputs, const std::vector<Vec>& temps);
  void store_sums(const std::vector<Sum>& sums);
  void pass_row(const std::vector<Gpr>& inputs);
  void store_sum(const Xbyak::RegExp& at, const Sum& sum);
  void load_columns(const Vec& vec, const Xbyak::RegExp& at, int v, DType dtype);
  void store_columns(const Xbyak::RegExp& at, const Vec& vec, int v, DType dtype);
  void copy_tail(const Xbyak::RegExp& to, const Xbyak::RegExp& from);
  int input_count() const { return plan_.epilogue ? static_cast<int>(plan_.epilogue->inputs.size()) : 0; }
  bool needs_mask_vec() const { return plan_.masked && !has_masks(); }
  // Besides the epilogue's: what narrowing of lanes to bytes, and a partial vector on AVX2, take.
  int store_temps() const { return narrow_temps() + needs_mask_vec(); }
  int narrow_temps() const { return plan_.requantizes() ? lathe::store_temps(plan_.store) : has_masks() ? 0 : 1; }
  int temps_needed(int together) const { return together * epilogue_temps() + store_temps(); }
  int epilogue_temps() const {
    return std::max(epilogue_ ? epilogue_->temps_needed() : 0, has_gelu() ? kGeluTemps : 0);
  }
  bool has_gelu() const { return plan_.requantizes() && plan_.store.gelu != 0; }
  bool is_partial(int v) const { return plan_.masked && v == plan_.vecs - 1; }

  // --- Tiles whose sums wait in the frame, to be finished row by row beside the next tile's first products.
  static constexpr int kInputsHeld = 3;  // addresses of inputs that have registers
  void claim_for_outputs();
  void emit_tiles_overlapped();
  void start_tile();
  void keep_sums();
  // k_left_ points at the row.
  template <class Body>
  void for_waiting_rows(Body body) {
    Xbyak::Label next_row;
    lea(k_left_, ptr[rsp + kSpill]);
    align(32);
    L(next_row);
    body();
    lea(tmp_, ptr[rsp + kSpill + plan_.rows * plan_.vecs * vec_bytes()]);
    cmp(k_left_, tmp_);
    jb(next_row, T_NEAR);
  }
  void finish_waiting(int v);
  void finish_last_tile();
  void pass_waiting_row();
  void pass_frame_row();

  const GemmInt8TilePlan plan_;
  std::unique_ptr<EpilogueEmitter> epilogue_;
  const Gpr args_ = argument(0);
  const Gpr b_ = claim_gpr("b"), c_ = claim_gpr("c");
  const Gpr k_left_ = claim_gpr("k_left"), prefetch_ = claim_gpr("prefetch"), tmp_ = claim_gpr("tmp");
  const std::vector<Gpr> a_stride_ = {claim_gpr("a_stride"), claim_gpr("3 a_stride"), claim_gpr("5 a_stride"),
                                      claim_gpr("7 a_stride")};
  const Gpr large_ = is_halved(plan_.dot) ? claim_gpr("large") : tmp_;
  std::vector<Gpr> a_;  // of rows 0, 9, 18, 27
  const std::vector<Vec> acc_ = claim_vecs("acc", plan_.rows* plan_.vecs);
  std::vector<Vec> work_ = claim_vecs("work", work_registers(plan_));
  std::array<Vec, 2> narrow_;
  Vec mask_;
  int group_rows_ = 1, together_ = 1;  // that are finished at a time: rows, vectors
  int waiting_ = 0;                    // rows that wait in the frame while others are finished
  std::vector<Gpr> row_inputs_;        // overlapped: addresses of the epilogue's inputs, at the row that comes next
  std::vector<Vec> row_sums_, row_temps_;
  const Xbyak::Opmask tail_k_ = k1;
  Xbyak::Label next_tile_, mask_table_;
};

}  // namespace lathe
