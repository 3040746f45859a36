#include "jit/kernels/gemm_int8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "jit/expression/epilogue.h"
#include "jit/kernels/gelu_emitter.h"
#include "jit/kernels/row_tile_emitter.h"

namespace lathe {
namespace {

constexpr int kGroupBytes = 4;
constexpr int kCacheLine = 64;
constexpr int kRowsPerBase = 9;  // rows that one base register reaches with strides 1, 3, 5, 7 scaled by 1, 2, 4, 8

// Few rows: hold A's broadcasts and stream B through one register. Many: hold a row of B, broadcast A one by one.
bool holds_a(const GemmInt8TilePlan& plan) { return plan.rows < plan.vecs; }

int work_registers(const GemmInt8TilePlan& plan) { return holds_a(plan) ? plan.rows + 1 : plan.vecs + 1; }

class GemmInt8Emitter : public GeluEmitter {
 public:
  explicit GemmInt8Emitter(const GemmInt8TilePlan& plan) : GeluEmitter(plan.isa), plan_(plan) {
    if (dot_needs_temp(plan.isa, plan.dot)) work_.push_back(claim_vec("products"));
    if (plan.epilogue) {
      epilogue_ = std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa,
                                                    plan.epilogue->expression);
    }
    for (int base = 0; base * kRowsPerBase < plan.rows; ++base) a_.push_back(claim_gpr("a"));
    choose_together();
  }

  std::shared_ptr<const CodePages> emit() {
    begin();
    open_frame();
    load_arguments();
    L(next_tile_);
    init_accumulators();
    multiply();
    finish_tile();
    dec(qword[rsp + kTilesLeft]);
    jnz(next_tile_, T_NEAR);
    mov(tmp_, ptr[rsp + kPrefetch]);
    mov(ptr[args_ + offsetof(GemmInt8TileArgs, prefetch)], tmp_);
    close_frame();
    end();
    emit_constants();
    return finish(plan_.key());
  }

 private:
  // --- The frame: state that changes from tile to tile, then room for accumulators.
  enum Frame { kOldStack = 0, kTilesLeft = 8, kA = 16, kC = 24, kPrefetch = 32, kRowsLeft = 40, kRowInit = 48 };
  enum { kTailBytes = 56, kInputs = 64 };
  static constexpr int kSpill = (kInputs + 8 * kMaxInt8Inputs + kCacheLine - 1) / kCacheLine * kCacheLine;

  void open_frame() {
    mov(tmp_, rsp);
    sub(rsp, kSpill + waiting_ * plan_.vecs * vec_bytes());
    and_(rsp, -kCacheLine);
    mov(ptr[rsp + kOldStack], tmp_);
  }
  void close_frame() { mov(rsp, ptr[rsp + kOldStack]); }

  void load_arguments() {
    copy_to_frame(kTilesLeft, offsetof(GemmInt8TileArgs, tiles));
    copy_to_frame(kA, offsetof(GemmInt8TileArgs, a));
    copy_to_frame(kC, offsetof(GemmInt8TileArgs, c));
    copy_to_frame(kPrefetch, offsetof(GemmInt8TileArgs, prefetch));
    if (plan_.has_rows) copy_to_frame(kRowInit, offsetof(GemmInt8TileArgs, row_init));
    for (int i = 0; i < input_count(); ++i) copy_to_frame(kInputs + 8 * i, offsetof(GemmInt8TileArgs, inputs) + 8 * i);
    if (!plan_.masked || !has_masks()) return;
    mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, tail_lanes)]);
    mov(b_.cvt32(), -1);
    bzhi(b_.cvt32(), b_.cvt32(), tmp_.cvt32());
    kmovw(tail_k_, b_.cvt32());
  }
  void copy_to_frame(int to, size_t from) {
    mov(tmp_, ptr[args_ + from]);
    mov(ptr[rsp + to], tmp_);
  }

  // --- sums += A * B
  void init_accumulators() {
    mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, column_init)]);
    for (int v = 0; v < plan_.vecs; ++v) load(acc(0, v), tmp_ + v * vec_bytes());
    if (plan_.has_rows) mov(tmp_, ptr[rsp + kRowInit]);
    for (int row = plan_.rows; row-- > 0;) {
      if (plan_.has_rows) vpbroadcastd(work_[0], dword[tmp_ + 4 * row]);
      for (int v = 0; v < plan_.vecs; ++v) {
        if (plan_.has_rows) {
          vpaddd(acc(row, v), acc(0, v), work_[0]);
        } else if (row > 0) {
          vmovaps(acc(row, v), acc(0, v));
        }
      }
    }
    if (plan_.has_rows) add(qword[rsp + kRowInit], 4 * plan_.rows);
  }

  void multiply() {
    point_at_a();
    mov(b_, ptr[args_ + offsetof(GemmInt8TileArgs, b)]);
    if (plan_.prefetch_lines) mov(prefetch_, ptr[rsp + kPrefetch]);
    mov(k_left_, ptr[args_ + offsetof(GemmInt8TileArgs, k_groups)]);
    Xbyak::Label unrolled, rest, single, done;
    if (plan_.k_unroll > 1) {
      sub(k_left_, plan_.k_unroll);
      jl(rest, T_NEAR);
      align(32);
      L(unrolled);
      updates(plan_.k_unroll, plan_.prefetch_lines);
      sub(k_left_, plan_.k_unroll);
      jge(unrolled, T_NEAR);
      L(rest);
      add(k_left_, plan_.k_unroll);
    } else {
      test(k_left_, k_left_);
    }
    jz(done, T_NEAR);
    L(single);
    updates(1, plan_.k_unroll == 1 ? plan_.prefetch_lines : 0);
    dec(k_left_);
    jnz(single, T_NEAR);
    L(done);
    if (plan_.prefetch_lines) mov(ptr[rsp + kPrefetch], prefetch_);
  }

  // Row r is at a_[r / 9] + (r % 9) * stride: strides 1, 3, 5, 7 and the scales 1, 2, 4, 8 reach 0 .. 8.
  void point_at_a() {
    mov(a_[0], ptr[rsp + kA]);
    mov(a_stride_[0], ptr[args_ + offsetof(GemmInt8TileArgs, a_stride_bytes)]);
    const int reach = std::min(plan_.rows - 1, kRowsPerBase);
    if (reach >= 3) lea(a_stride_[1], ptr[a_stride_[0] + a_stride_[0] * 2]);
    if (reach >= 5) lea(a_stride_[2], ptr[a_stride_[0] + a_stride_[0] * 4]);
    if (reach >= 7) lea(a_stride_[3], ptr[a_stride_[1] + a_stride_[0] * 4]);
    for (size_t base = 1; base < a_.size(); ++base) {
      lea(a_[base], ptr[a_[base - 1] + a_stride_[0] * 8]);
      add(a_[base], a_stride_[0]);
    }
  }
  Xbyak::RegExp a_at(int row, int group) const {
    const Gpr& base = a_[static_cast<size_t>(row / kRowsPerBase)];
    const int step = row % kRowsPerBase;
    if (step == 0) return base + group * kGroupBytes;
    int odd = step, scale = 1;
    for (; odd % 2 == 0; odd /= 2) scale *= 2;
    return base + a_stride_[static_cast<size_t>(odd / 2)] * scale + group * kGroupBytes;
  }

  // The next `groups` groups of k, with `lines` prefetches spread among them.
  void updates(int groups, int lines) {
    PrefetchPace paced(groups * plan_.rows, lines);
    const auto pace = [&] {  // called once a row of each group
      paced.next_slot([&](int line) { prefetcht1(ptr[prefetch_ + line * kCacheLine]); });
    };
    for (int group = 0; group < groups; ++group) {
      if (holds_a(plan_)) {
        update_holding_a(group, pace);
      } else {
        update_holding_b(group, pace);
      }
    }
    for (const Gpr& base : a_) add(base, groups * kGroupBytes);
    add(b_, groups * plan_.vecs * vec_bytes());
    if (lines) add(prefetch_, lines * kCacheLine);
  }
  Xbyak::RegExp b_at(int group, int v) const { return b_ + (group * plan_.vecs + v) * vec_bytes(); }
  const Vec& products() const { return work_.back(); }

  template <class Pace>
  void update_holding_b(int group, Pace pace) {
    const Vec& a_vec = work_[static_cast<size_t>(plan_.vecs)];
    for (int v = 0; v < plan_.vecs; ++v) load(work_[static_cast<size_t>(v)], b_at(group, v));
    for (int row = 0; row < plan_.rows; ++row) {
      vpbroadcastd(a_vec, dword[a_at(row, group)]);
      for (int v = 0; v < plan_.vecs; ++v) {
        dot(plan_.dot, acc(row, v), a_vec, work_[static_cast<size_t>(v)], products());
      }
      pace();
    }
  }

  template <class Pace>
  void update_holding_a(int group, Pace pace) {
    const Vec& b_vec = work_[static_cast<size_t>(plan_.rows)];
    for (int row = 0; row < plan_.rows; ++row) {
      vpbroadcastd(work_[static_cast<size_t>(row)], dword[a_at(row, group)]);
      pace();
    }
    for (int v = 0; v < plan_.vecs; ++v) {
      load(b_vec, b_at(group, v));
      for (int row = 0; row < plan_.rows; ++row) {
        dot(plan_.dot, acc(row, v), work_[static_cast<size_t>(row)], b_vec, products());
      }
    }
  }

  // --- C = epilogue(sums), row by row. The last rows wait in the frame where registers are too few; all of them, in a
  // loop, where one row is not enough.
  int input_count() const { return plan_.epilogue ? static_cast<int>(plan_.epilogue->inputs.size()) : 0; }
  bool needs_mask_vec() const { return plan_.masked && !has_masks(); }
  // Besides the epilogue's: what narrowing of lanes to bytes, and a partial vector on AVX2, take.
  int store_temps() const { return (plan_.requantizes() || !has_masks()) + needs_mask_vec(); }
  int temps_needed(int together) const { return together * epilogue_temps() + store_temps(); }
  int epilogue_temps() const {
    return std::max(epilogue_ ? epilogue_->temps_needed() : 0, has_gelu() ? kGeluTemps : 0);
  }
  bool has_gelu() const { return plan_.requantizes() && plan_.store.gelu != 0; }
  int waiting_rows(int together) const {
    const int missing = temps_needed(together) - static_cast<int>(work_.size()) - free_vecs();
    return missing <= 0 ? 0 : (missing + plan_.vecs - 1) / plan_.vecs;
  }
  // Vectors go through the epilogue together, of one row or two: as many as hide its latency and find registers.
  void choose_together() {
    for (const int rows : {2, 1}) {
      if (rows > 1 && needs_mask_vec()) continue;  // bytes one by one take a register of the address
      for (const int most : {4, 2, 1}) {
        group_rows_ = std::min(rows, plan_.rows);
        together_ = std::min(most, group_rows_ * plan_.vecs);
        waiting_ = waiting_rows(together_);
        if (waiting_ <= plan_.rows - group_rows_) return;
      }
    }
    waiting_ = plan_.rows;
  }

  void finish_tile() {
    mov(c_, ptr[rsp + kC]);
    const std::vector<Gpr> inputs = input_pointers();
    std::vector<Vec> temps = work_;
    while (free_vecs() > 0) temps.push_back(claim_vec("temp"));
    const std::vector<Vec> claimed(temps.begin() + static_cast<long>(work_.size()), temps.end());
    waiting_ < plan_.rows ? finish_rows(inputs, temps) : finish_rows_in_loop(inputs, temps);
    for (const Vec& vec : claimed) release(vec);
    for (size_t i = 0; i < inputs.size(); ++i) mov(ptr[rsp + kInputs + 8 * static_cast<int>(i)], inputs[i]);
    mov(ptr[rsp + kC], c_);
    imul(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, a_stride_bytes)], plan_.rows);
    add(ptr[rsp + kA], tmp_);
  }

  // The registers of A's addresses are free between tiles; b_, k_left_ and prefetch_ are kept for partial bytes.
  std::vector<Gpr> input_pointers() {
    std::vector<Gpr> free_now = a_stride_;
    free_now.insert(free_now.end(), a_.begin(), a_.end());
    std::vector<Gpr> inputs(free_now.begin(), free_now.begin() + input_count());
    for (int i = 0; i < input_count(); ++i) mov(inputs[static_cast<size_t>(i)], ptr[rsp + kInputs + 8 * i]);
    return inputs;
  }

  // Takes the registers for partial vectors and for narrowing from `temps`.
  void set_store_temps(std::vector<Vec>& temps) {
    if (store_temps() == 0) return;
    narrow_ = temps.back();
    temps.pop_back();
    if (!needs_mask_vec()) return;
    mask_ = temps.back();
    temps.pop_back();
    mov(tmp_, lanes());
    sub(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, tail_lanes)]);
    lea(b_, ptr[rip + mask_table_]);
    vmovups(mask_, ptr[b_ + tmp_ * 4]);
  }

  void finish_rows(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
    const int ready = plan_.rows - waiting_;
    const auto at = [&](int row, int v) { return rsp + (kSpill + ((row - ready) * plan_.vecs + v) * vec_bytes()); };
    for (int row = ready; row < plan_.rows; ++row) {
      for (int v = 0; v < plan_.vecs; ++v) {
        store(at(row, v), acc(row, v));
        temps.push_back(acc(row, v));
      }
    }
    set_store_temps(temps);
    for (int first = 0; first < plan_.rows; first += group_rows_) {
      const int count = std::min(group_rows_, plan_.rows - first);
      finish_group(inputs, temps, count, together_, [&](int row, int v) {
        if (first + row < ready) return acc(first + row, v);
        load(acc(row, v), at(first + row, v));
        return acc(row, v);
      });
    }
  }

  void finish_rows_in_loop(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
    for (size_t i = 0; i < acc_.size(); ++i) store(rsp + kSpill + static_cast<int>(i) * vec_bytes(), acc_[i]);
    temps.insert(temps.end(), acc_.begin() + 1, acc_.end());
    set_store_temps(temps);
    if (static_cast<int>(temps.size()) < epilogue_temps()) {
      throw JitError("the epilogue needs more registers than there are: " + plan_.key());
    }
    lea(tmp_, ptr[rsp + kSpill]);
    Xbyak::Label next_row;
    mov(qword[rsp + kRowsLeft], plan_.rows);
    L(next_row);
    finish_group(inputs, temps, 1, 1, [&](int, int v) {
      load(acc_[0], tmp_ + v * vec_bytes());
      return acc_[0];
    });
    add(tmp_, plan_.vecs * vec_bytes());
    dec(qword[rsp + kRowsLeft]);
    jnz(next_row, T_NEAR);
  }

  // A vector of the rows that are finished, counted from the first of them.
  struct Sum {
    int row, v;
    Vec vec;
  };

  // One row or two; `together`: vectors that go through the epilogue at a time. get(row, v): a sum, in a register.
  template <class Accumulator>
  void finish_group(const std::vector<Gpr>& inputs, const std::vector<Vec>& temps, int rows, int together,
                    Accumulator get) {
    std::vector<Sum> sums;  // not yet stored
    for (int i = 0; i < rows * plan_.vecs; ++i) {
      const int row = i / plan_.vecs, v = i % plan_.vecs;
      sums.push_back({row, v, get(row, v)});
      const bool is_last = i + 1 == rows * plan_.vecs;
      if (static_cast<int>(sums.size()) < together && !is_last) continue;
      apply_epilogue(sums, inputs, temps);
      store_sums(sums);
      sums.clear();
    }
    add(c_, ptr[args_ + offsetof(GemmInt8TileArgs, c_stride_bytes)]);
    if (rows > 1) add(c_, ptr[args_ + offsetof(GemmInt8TileArgs, c_stride_bytes)]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int row = 0; row < rows; ++row) {
        add(inputs[i], ptr[args_ + offsetof(GemmInt8TileArgs, input_stride_bytes) + 8 * i]);
      }
    }
  }

  void apply_epilogue(const std::vector<Sum>& sums, const std::vector<Gpr>& inputs, const std::vector<Vec>& temps) {
    if (!epilogue_) return;
    std::vector<Vec> vecs;
    for (const Sum& sum : sums) vecs.push_back(sum.vec);
    for (const Vec& vec : vecs) vcvtdq2ps(vec, vec);
    epilogue_->apply(vecs, temps, [&](size_t which, int slot, const Xbyak::Xmm& into) {
      const size_t i = static_cast<size_t>(slot - 1);
      const DType dtype = plan_.epilogue->expression.inputs[i + 1];
      Xbyak::RegExp row(inputs[i]);
      if (sums[which].row > 0) {
        mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, input_stride_bytes) + 8 * i]);
        row = inputs[i] + tmp_;
      }
      if (plan_.epilogue->inputs[i] == GemmInputAccess::uniform) return broadcast_as_float(into, row, dtype);
      load_columns(into, row + sums[which].v * lanes() * (bits_of(dtype) / 8), sums[which].v, dtype);
    });
    if (has_gelu()) gelu(vecs, temps);
  }

  void store_sums(const std::vector<Sum>& sums) {
    const int out_bytes = bits_of(plan_.output()) / 8;
    for (size_t i = 0; i < sums.size();) {
      Xbyak::RegExp row(c_);
      if (sums[i].row > 0) {
        mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, c_stride_bytes)]);
        row = c_ + tmp_;
      }
      const Xbyak::RegExp at = row + sums[i].v * lanes() * out_bytes;
      const bool is_pair =
          plan_.requantizes() && i + 1 < sums.size() && sums[i + 1].row == sums[i].row && !is_partial(sums[i + 1].v);
      if (is_pair) {
        const std::array<Vec, 2> pair = {sums[i].vec, sums[i + 1].vec};
        store_requantized(at, pair, plan_.store, narrow_);
      } else {
        store_sum(at, sums[i]);
      }
      i += is_pair ? 2 : 1;
    }
  }

  void store_sum(const Xbyak::RegExp& at, const Sum& sum) {
    if (!epilogue_) return store_columns(at, sum.vec, sum.v, DType::f32);  // 32 bits as they are
    if (!plan_.requantizes()) return store_columns(at, sum.vec, sum.v, plan_.output());
    const std::span<const Vec> one(&sum.vec, 1);
    if (!is_partial(sum.v)) return store_requantized(at, one, plan_.store, narrow_);
    if (has_masks()) {
      requantize(one, plan_.store, narrow_);
      vpmovzxbd(sum.vec, Xbyak::Xmm(sum.vec.getIdx()));
      return vpmovdb(ptr[at] | tail_k_, sum.vec);
    }
    store_requantized(rsp + kTailBytes, one, plan_.store, narrow_);
    copy_tail(at, rsp + kTailBytes);
  }

  // --- AVX2 against AVX-512: a mask vector, and bytes one by one, against an opmask.
  bool is_partial(int v) const { return plan_.masked && v == plan_.vecs - 1; }

  void load_columns(const Vec& vec, const Xbyak::RegExp& at, int v, DType dtype) {
    if (!is_partial(v)) return load_as_float(vec, at, dtype);
    if (has_masks()) return load_as_float(vec, at, dtype, tail_k_);
    if (bits_of(dtype) == 8) {
      copy_tail(rsp + kTailBytes, at);
      return load_as_float(vec, rsp + kTailBytes, dtype);
    }
    vmaskmovps(vec, mask_, ptr[at]);
    if (dtype == DType::i32) vcvtdq2ps(vec, vec);
  }
  void store_columns(const Xbyak::RegExp& at, const Vec& vec, int v, DType dtype) {
    if (!is_partial(v)) return store_as(at, vec, dtype, narrow_);
    if (has_masks()) return store_as(at, vec, dtype, tail_k_);
    if (bits_of(dtype) == 8) {
      store_as(rsp + kTailBytes, vec, dtype, narrow_);
      return copy_tail(at, rsp + kTailBytes);
    }
    if (dtype == DType::i32) vcvtps2dq(vec, vec);
    vmaskmovps(ptr[at], mask_, vec);
  }
  // tail_lanes bytes.
  void copy_tail(const Xbyak::RegExp& to, const Xbyak::RegExp& from) {
    Xbyak::Label next;
    mov(b_, ptr[args_ + offsetof(GemmInt8TileArgs, tail_lanes)]);
    L(next);
    movzx(k_left_.cvt32(), byte[from + b_ - 1]);
    mov(byte[to + b_ - 1], k_left_.cvt8());
    dec(b_);
    jnz(next, T_NEAR);
  }
  void emit_constants() {
    if (epilogue_) epilogue_->emit_constants();
    if (plan_.requantizes()) emit_requantization(plan_.store);
    if (has_gelu()) emit_gelu_tables(plan_.store.gelu);
    if (!needs_mask_vec()) return;
    align(kCacheLine);
    L(mask_table_);
    for (int i = 0; i < lanes(); ++i) dd(~0u);
    for (int i = 0; i < lanes(); ++i) dd(0);
  }

  const Vec& acc(int row, int v) const { return acc_[static_cast<size_t>(row * plan_.vecs + v)]; }

  const GemmInt8TilePlan plan_;
  std::unique_ptr<EpilogueEmitter> epilogue_;
  const Gpr args_ = argument(0);
  const Gpr b_ = claim_gpr("b"), c_ = claim_gpr("c");
  const Gpr k_left_ = claim_gpr("k_left"), prefetch_ = claim_gpr("prefetch"), tmp_ = claim_gpr("tmp");
  const std::vector<Gpr> a_stride_ = {claim_gpr("a_stride"), claim_gpr("3 a_stride"), claim_gpr("5 a_stride"),
                                      claim_gpr("7 a_stride")};
  std::vector<Gpr> a_;  // of rows 0, 9, 18, 27
  const std::vector<Vec> acc_ = claim_vecs("acc", plan_.rows* plan_.vecs);
  std::vector<Vec> work_ = claim_vecs("work", work_registers(plan_));
  Vec narrow_, mask_;
  int group_rows_ = 1, together_ = 1;  // that are finished at a time: rows, vectors
  int waiting_ = 0;                    // rows that wait in the frame while others are finished
  const Xbyak::Opmask tail_k_ = k1;
  Xbyak::Label next_tile_, mask_table_;
};

}  // namespace

bool GemmInt8TilePlan::is_valid() const {
  if (rows < 1 || rows > 4 * kRowsPerBase || vecs < 1 || k_unroll < 1 || k_unroll > 16 || prefetch_lines < 0) {
    return false;
  }
  if (dot != Int8Dot::pairs && !has_vnni(isa)) return false;
  if (epilogue && epilogue->inputs.size() > static_cast<size_t>(kMaxInt8Inputs)) return false;
  if (requantizes() && epilogue->expression.output != DType::f32) return false;
  if (store.gelu != 0 && !has_avx512(isa)) return false;
  return rows * vecs + work_registers(*this) + dot_needs_temp(isa, dot) <= vector_registers(isa);
}

std::string GemmInt8TilePlan::key() const {
  std::string text = fmt::format("gemm_int8_tile {} {} {}x{} k{} p{}{}{}", name_of(isa), to_string(dot), rows, vecs,
                                 k_unroll, prefetch_lines, has_rows ? " rows" : "", masked ? " masked" : "");
  if (epilogue) {
    text += " " + to_string(epilogue->expression) + " ";
    for (const GemmInputAccess access : epilogue->inputs) text += access == GemmInputAccess::columns ? 'c' : 'u';
    if (requantizes()) text += " " + to_string(store);
  }
  return text;
}

GemmInt8Tile gemm_int8_tile(const GemmInt8TilePlan& plan) {
  if (!plan.is_valid()) throw JitError("out of range or over the register budget: " + plan.key());
  return GemmInt8Tile(cached_code(plan.key(), [&] { return GemmInt8Emitter(plan).emit(); }));
}

}  // namespace lathe
