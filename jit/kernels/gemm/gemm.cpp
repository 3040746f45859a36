#include "jit/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstddef>

#include "jit/expression/epilogue.h"
#include "jit/kernels/gemm/row_tile_emitter.h"

namespace lathe {
namespace {

constexpr int kF32 = sizeof(float);
constexpr int kCacheLine = 64;
constexpr int kChunksAhead = 2;  // of A: one takes about as long as a line needs from L3

class GemmTileEmitter : public RowTileEmitter {
 public:
  explicit GemmTileEmitter(const GemmTilePlan& plan) : RowTileEmitter(plan.isa, plan.rows), plan_(plan) {
    if (plan.epilogue) {
      epilogue_ = std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa,
                                                    plan.epilogue->expression);
    }
    spills_ = must_spill();
  }

  std::shared_ptr<const CodePages> emit() {
    begin();
    open_frame();
    load_arguments();
    L(next_tile_);
    fetch_targets();
    zero_accumulators();
    multiply();
    add_earlier_blocks();
    finish_tile();
    dec(qword[rsp + kTilesLeft]);
    jnz(next_tile_, T_NEAR);
    mov(tmp_, ptr[rsp + kPrefetch]);
    mov(ptr[args_ + offsetof(GemmTileArgs, prefetch)], tmp_);
    close_frame();
    end();
    emit_constants();
    return finish(plan_.key());
  }

 private:
  // --- The frame: state that changes from tile to tile, then room for accumulators.
  enum Frame { kOldStack = 0, kTilesLeft = 8, kA = 16, kC = 24, kPrefetch = 32, kRowsLeft = 40, kInputs = 64 };
  static constexpr int kSpill = kInputs + 8 * kMaxGemmInputs;

  void open_frame() {
    mov(tmp_, rsp);
    sub(rsp, kSpill + (spills_ ? plan_.rows * plan_.vecs * vec_bytes() : 0));
    and_(rsp, -kCacheLine);
    mov(ptr[rsp + kOldStack], tmp_);
  }
  void close_frame() { mov(rsp, ptr[rsp + kOldStack]); }

  void load_arguments() {
    copy_to_frame(kTilesLeft, offsetof(GemmTileArgs, tiles));
    copy_to_frame(kA, offsetof(GemmTileArgs, a));
    copy_to_frame(kC, offsetof(GemmTileArgs, c));
    copy_to_frame(kPrefetch, offsetof(GemmTileArgs, prefetch));
    for (int i = 0; i < input_count(); ++i) copy_to_frame(kInputs + 8 * i, offsetof(GemmTileArgs, inputs) + 8 * i);
    if (plan_.masked && has_masks()) {
      mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, tail_lanes)]);
      mov(b_.cvt32(), -1);
      bzhi(b_.cvt32(), b_.cvt32(), tmp_.cvt32());
      kmovw(tail_k_, b_.cvt32());
    }
    if (keeps_mask_) load_mask(*keeps_mask_);
  }
  void copy_to_frame(int to, size_t from) {
    mov(tmp_, ptr[args_ + from]);
    mov(ptr[rsp + to], tmp_);
  }

  void fetch_targets() {
    if (plan_.fetch_rows == 0) return;
    Xbyak::Label done;
    const Gpr row_at = tmp_, matrix = c_;
    mov(row_at, ptr[args_ + offsetof(GemmTileArgs, fetch)]);
    mov(matrix, ptr[args_ + offsetof(GemmTileArgs, fetch_matrix_bytes)]);
    for (int row = 0; row < plan_.fetch_rows; ++row) {
      dec(qword[args_ + offsetof(GemmTileArgs, fetch_left)]);
      js(done, T_NEAR);
      for (int i = 0; i < plan_.fetch_matrices; ++i) {
        const Xbyak::RegExp at = i == 0 ? Xbyak::RegExp(row_at) : row_at + matrix * i;
        for (int offset = 0; offset < plan_.vecs * vec_bytes(); offset += kCacheLine) prefetchw(ptr[at + offset]);
      }
      add(row_at, ptr[args_ + offsetof(GemmTileArgs, fetch_stride_bytes)]);
    }
    L(done);
    mov(ptr[args_ + offsetof(GemmTileArgs, fetch)], row_at);
  }

  // --- C += A * B
  void zero_accumulators() {
    for (const Vec& acc : acc_) zero(acc);
  }

  // C comes last: of two short sums the rounding errors are smaller than of one long one.
  void add_earlier_blocks() {
    if (plan_.starts_at_a) add_rows(kA, offsetof(GemmTileArgs, a_stride_bytes));
    if (plan_.accumulate) add_rows(kC, offsetof(GemmTileArgs, c_stride_bytes));
  }
  void add_rows(Frame matrix, size_t stride) {
    if (needs_late_mask()) load_mask(work_[0]);
    mov(c_, ptr[rsp + matrix]);
    for (int row = 0; row < plan_.rows; ++row) {
      for (int v = 0; v < plan_.vecs; ++v) {
        if (is_partial(v)) {
          load_columns(work_.back(), c_ + v * vec_bytes(), v, mask_vec(work_[0]));
          vaddps(acc(row, v), acc(row, v), work_.back());
        } else {
          vaddps(acc(row, v), acc(row, v), ptr[c_ + v * vec_bytes()]);
        }
      }
      if (row + 1 < plan_.rows) add(c_, ptr[args_ + stride]);
    }
  }

  void multiply() {
    if (plan_.a_in_chunks) {
      mov(a_[0], ptr[rsp + kA]);
    } else {
      point_at_a(ptr[rsp + kA], ptr[args_ + offsetof(GemmTileArgs, a_stride_bytes)]);
    }
    mov(b_, ptr[args_ + offsetof(GemmTileArgs, b)]);
    if (plan_.prefetch_lines) mov(prefetch_, ptr[rsp + kPrefetch]);
    if (plan_.b_sign != 0) mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, b_second_bytes)]);
    mov(k_left_, ptr[args_ + offsetof(GemmTileArgs, k)]);
    const auto body = [&](int steps, bool prefetches) { rank1_updates(steps, prefetches ? plan_.prefetch_lines : 0); };
    plan_.a_in_chunks ? for_chunks(body) : for_steps(k_left_, plan_.k_unroll, body);
    if (plan_.prefetch_lines) mov(ptr[rsp + kPrefetch], prefetch_);
  }

  template <class Body>
  void for_chunks(Body body) {
    Xbyak::Label next;
    align(32);
    L(next);
    body(lanes(), true);
    sub(k_left_, lanes());
    jg(next, T_NEAR);
  }

  // acc[row][v] += A[row][k] * B[k][v] for the next `steps` values of k, with `lines` prefetches spread among them.
  void rank1_updates(int steps, int lines) {
    PrefetchPace paced(steps * plan_.rows, lines);
    PrefetchPace paced_a(steps * plan_.rows, plan_.a_in_chunks ? chunk_bytes() / kCacheLine : 0);
    const auto pace = [&] {  // called once a row of each step
      paced_a.next_slot([&](int line) { prefetcht0(ptr[a_[0] + kChunksAhead * chunk_bytes() + line * kCacheLine]); });
      paced.next_slot([&](int line) { prefetcht1(ptr[prefetch_ + line * kCacheLine]); });
    };
    for (int k = 0; k < steps; ++k) {
      if (plan_.holds_a()) {
        update_holding_a(k, pace);
      } else {
        update_holding_b(k, pace);
      }
      if (plan_.b_in_place) add(b_, ptr[args_ + offsetof(GemmTileArgs, b_stride_bytes)]);
    }
    plan_.a_in_chunks ? add(a_[0], chunk_bytes()) : advance_a(steps);
    if (!plan_.b_in_place) add(b_, steps * plan_.vecs * vec_bytes());
    if (lines) add(prefetch_, lines * kCacheLine);
  }
  int chunk_bytes() const { return plan_.rows * vec_bytes(); }
  Xbyak::RegExp element_of_a(int row, int k) const {
    return plan_.a_in_chunks ? a_[0] + (row * vec_bytes() + k * kF32) : a_at(row, k);
  }
  Xbyak::RegExp b_at(int k, int v) const { return b_ + ((plan_.b_in_place ? 0 : k * plan_.vecs) + v) * vec_bytes(); }
  bool is_partial(int v) const { return plan_.masked && v == plan_.vecs - 1; }

  template <class Pace>
  void update_holding_b(int k, Pace pace) {
    for (int v = 0; v < plan_.vecs; ++v) load_b(work_[static_cast<size_t>(v)], k, v);
    for (int row = 0; row < plan_.rows; ++row) {
      if (!plan_.embed_broadcast) broadcast(work_.back(), element_of_a(row, k));
      for (int v = 0; v < plan_.vecs; ++v) {
        const Vec& b_vec = work_[static_cast<size_t>(v)];
        if (plan_.embed_broadcast) {
          multiply_add(acc(row, v), b_vec, ptr_b[element_of_a(row, k)]);
        } else {
          multiply_add(acc(row, v), b_vec, work_.back());
        }
      }
      pace();
    }
  }

  template <class Pace>
  void update_holding_a(int k, Pace pace) {
    for (int row = 0; row < plan_.rows; ++row) {
      broadcast(work_[static_cast<size_t>(row)], element_of_a(row, k));
      pace();
    }
    for (int v = 0; v < plan_.vecs; ++v) {
      const bool partial = plan_.b_in_place && is_partial(v);
      if (plan_.rows == 1 && !partial && plan_.b_sign == 0) {
        multiply_add(acc(0, v), work_[0], ptr[b_at(k, v)]);
        continue;
      }
      load_b(work_.back(), k, v);
      for (int row = 0; row < plan_.rows; ++row)
        multiply_add(acc(row, v), work_.back(), work_[static_cast<size_t>(row)]);
    }
  }

  // y may lie in memory.
  void multiply_add(const Vec& sum, const Vec& x, const Xbyak::Operand& y) {
    plan_.bf16 ? vdpbf16ps(sum, x, y) : vfmadd231ps(sum, x, y);
  }

  void load_b(const Vec& into, int k, int v) {
    if (!plan_.b_in_place) {
      load(into, b_at(k, v));
      if (plan_.b_sign > 0) vaddps(into, into, ptr[b_at(k, v) + tmp_]);
      if (plan_.b_sign < 0) vsubps(into, into, ptr[b_at(k, v) + tmp_]);
      return;
    }
    load_columns(into, b_at(k, v), v, keeps_mask_ ? *keeps_mask_ : Vec());
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
    return epilogue_->temps_needed() > left;
  }

  void finish_tile() {
    mov(c_, ptr[rsp + kC]);
    std::vector<Gpr> inputs = input_pointers();
    std::vector<Vec> temps = work_;
    while (free_vecs() > 0) temps.push_back(claim_vec("temp"));
    if (plan_.apart) {
      mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, c_vector_bytes)]);
      lea(a_stride_[3], ptr[tmp_ + tmp_ * 2]);
    }
    const std::vector<Vec> claimed(temps.begin() + static_cast<long>(work_.size()), temps.end());
    if (spills_) {
      finish_rows_in_loop(inputs, temps);
    } else {
      finish_rows_in_registers(inputs, temps);
    }
    if (epilogue_ && static_cast<int>(temps.size()) + (spills_ ? rows_x_vecs() - 1 : 0) < epilogue_->temps_needed()) {
      throw JitError("the epilogue needs more registers than there are: " + plan_.key());
    }
    for (const Vec& vec : claimed) release(vec);
    for (size_t i = 0; i < inputs.size(); ++i) mov(ptr[rsp + kInputs + 8 * static_cast<int>(i)], inputs[i]);
    mov(ptr[rsp + kC], c_);
    imul(tmp_, ptr[args_ + offsetof(GemmTileArgs, a_stride_bytes)], plan_.rows);
    add(ptr[rsp + kA], tmp_);
  }

  // The registers of A's addresses are free between tiles.
  std::vector<Gpr> input_pointers() {
    std::vector<Gpr> free_now = a_stride_;
    free_now.insert(free_now.end(), {k_left_, prefetch_, b_});
    free_now.insert(free_now.end(), a_.begin(), a_.end());
    std::vector<Gpr> inputs(free_now.begin(), free_now.begin() + input_count());
    for (int i = 0; i < input_count(); ++i) mov(inputs[static_cast<size_t>(i)], ptr[rsp + kInputs + 8 * i]);
    return inputs;
  }

  void finish_rows_in_registers(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
    Vec mask = mask_vec(Vec());
    if (needs_late_mask()) {
      mask = temps.back();
      temps.pop_back();
      load_mask(mask);
    }
    for (int row = 0; row < plan_.rows; ++row) {
      finish_row(inputs, temps, mask, [&](int v) { return acc(row, v); });
    }
  }

  void finish_rows_in_loop(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
    for (size_t i = 0; i < acc_.size(); ++i) store(rsp + kSpill + static_cast<int>(i) * vec_bytes(), acc_[i]);
    temps.insert(temps.end(), acc_.begin() + 1, acc_.end());
    Vec mask = mask_vec(Vec());
    if (needs_late_mask()) {
      mask = temps.back();
      temps.pop_back();
      load_mask(mask);
    }
    lea(tmp_, ptr[rsp + kSpill]);
    Xbyak::Label next_row;
    mov(qword[rsp + kRowsLeft], plan_.rows);
    L(next_row);
    finish_row(inputs, temps, mask, [&](int v) {
      load(acc_[0], tmp_ + v * vec_bytes());
      return acc_[0];
    });
    add(tmp_, plan_.vecs * vec_bytes());
    dec(qword[rsp + kRowsLeft]);
    jnz(next_row, T_NEAR);
  }

  template <class Accumulator>
  void finish_row(const std::vector<Gpr>& inputs, const std::vector<Vec>& temps, const Vec& mask, Accumulator get) {
    for (int v = 0; v < plan_.vecs; ++v) {
      const Vec acc = get(v);
      if (plan_.folds_product()) {
        fold_vector(acc, v, inputs, temps);
        continue;
      }
      if (epilogue_) {
        epilogue_->apply(acc, temps, [&](int slot, const Xbyak::Xmm& into) {
          const size_t i = static_cast<size_t>(slot - 1);
          if (plan_.epilogue->inputs[i] == GemmInputAccess::uniform) return broadcast(into, Xbyak::RegExp(inputs[i]));
          load_columns(into, inputs[i] + v * vec_bytes(), v, mask);
        });
      }
      plan_.bf16 && !plan_.widens ? store_bf16(c_ + v * vec_bytes() / 2, acc, v)
                                  : store_columns(c_ + v * vec_bytes(), acc, v, mask);
    }
    add(c_, ptr[args_ + offsetof(GemmTileArgs, c_stride_bytes)]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      add(inputs[i], ptr[args_ + offsetof(GemmTileArgs, input_stride_bytes) + 8 * i]);
    }
  }

  void fold_vector(const Vec& product, int v, const std::vector<Gpr>& inputs, const std::vector<Vec>& temps) {
    const size_t count = inputs.size() + 1;
    for (size_t i = 0; i < count; ++i) {
      const Gpr& row = i == 0 ? c_ : inputs[i - 1];
      Xbyak::RegExp at = row + v * vec_bytes();
      if (plan_.apart) at = v == 0 ? Xbyak::RegExp(row) : v == 3 ? row + a_stride_[3] : row + tmp_ * v;
      fold(plan_.folds[i], product, at, temps[(static_cast<size_t>(v) * count + i) % temps.size()]);
    }
  }

  void fold(GemmFold how, const Vec& product, const Xbyak::RegExp& at, const Vec& temp) {
    if (how == GemmFold::set) return store(at, product);
    if (how == GemmFold::take) return vaddps(product, product, ptr[at]);
    if (how == GemmFold::add) {
      vaddps(temp, product, ptr[at]);
    } else {
      load(temp, at);
      vsubps(temp, temp, product);
    }
    store(at, temp);
  }

  // --- AVX2 against AVX-512: mask vector against opmask.
  void load_mask(const Vec& vec) {
    if (has_masks()) return;
    mov(tmp_, lanes());
    sub(tmp_, ptr[args_ + offsetof(GemmTileArgs, tail_lanes)]);
    lea(c_, ptr[rip + mask_table_]);
    vmovups(vec, ptr[c_ + tmp_ * kF32]);
    uses_mask_table_ = true;
    mov(c_, ptr[rsp + kC]);
  }
  void load_columns(const Vec& vec, const Xbyak::RegExp& at, int v, const Vec& mask) {
    if (!is_partial(v)) {
      load(vec, at);
    } else if (has_masks()) {
      vmovups(vec | tail_k_ | T_z, ptr[at]);
    } else {
      vmaskmovps(vec, mask, ptr[at]);
    }
  }
  void store_columns(const Xbyak::RegExp& at, const Vec& vec, int v, const Vec& mask) {
    if (!is_partial(v)) {
      store(at, vec);
    } else if (has_masks()) {
      vmovups(ptr[at] | tail_k_, vec);
    } else {
      vmaskmovps(ptr[at], mask, vec);
    }
  }
  void store_bf16(const Xbyak::RegExp& at, const Vec& vec, int v) {
    const Xbyak::Ymm half(vec.getIdx());
    vcvtneps2bf16(half, vec);
    if (is_partial(v)) {
      vmovdqu16(ptr[at] | tail_k_, half);
    } else {
      vmovdqu16(ptr[at], half);
    }
  }
  void emit_constants() {
    if (epilogue_) epilogue_->emit_constants();
    if (!uses_mask_table_) return;
    align(kCacheLine);
    L(mask_table_);
    for (int i = 0; i < lanes(); ++i) dd(~0u);
    for (int i = 0; i < lanes(); ++i) dd(0);
  }

  int rows_x_vecs() const { return plan_.rows * plan_.vecs; }
  const Vec& acc(int row, int v) const { return acc_[static_cast<size_t>(row * plan_.vecs + v)]; }

  const GemmTilePlan plan_;
  std::unique_ptr<EpilogueEmitter> epilogue_;
  const Gpr args_ = argument(0);
  const Gpr b_ = claim_gpr("b"), c_ = claim_gpr("c");
  const Gpr k_left_ = claim_gpr("k_left"), prefetch_ = claim_gpr("prefetch"), tmp_ = claim_gpr("tmp");
  const std::vector<Vec> acc_ = claim_vecs("acc", plan_.rows* plan_.vecs);
  const std::vector<Vec> work_ = claim_vecs("work", plan_.embed_broadcast ? plan_.vecs
                                                    : plan_.holds_a()     ? plan_.rows + 1
                                                                          : plan_.vecs + 1);
  const std::optional<Vec> keeps_mask_ =
      plan_.masked && plan_.b_in_place && !has_masks() ? std::optional<Vec>(claim_vec("mask")) : std::nullopt;
  bool spills_ = false;
  bool uses_mask_table_ = false;
  const Xbyak::Opmask tail_k_ = k1;
  Xbyak::Label next_tile_, mask_table_;
};

}  // namespace

GemmTile gemm_tile(const GemmTilePlan& plan) {
  if (!plan.is_valid()) throw JitError("out of range or over the register budget: " + plan.key());
  return GemmTile(cached_code(plan.key(), [&] { return GemmTileEmitter(plan).emit(); }));
}

}  // namespace lathe
