#include "jit/kernels/gemm/gemm.h"

#include <algorithm>
#include <cstddef>

#include "jit/kernels/gemm/gemm_emitter.h"

namespace lathe {

constexpr int kChunksAhead = 2;  // of A: one takes about as long as a line needs from L3

std::shared_ptr<const CodePages> GemmTileEmitter::emit() {
  begin();
  open_frame();
  load_arguments();
  L(next_tile_);
  fetch_targets();
  fetch_ends();
  fetch_folds();
  zero_accumulators();
  multiply();
  if (shared_.is_on()) part_shared();
  if (plan_.weights == WeightFormat::bfp24) scale_bfp24();
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

void GemmTileEmitter::open_frame() {
  mov(tmp_, rsp);
  sub(rsp, kSpill + (spills_ || plan_.longest_sum > 0 ? rows_x_vecs() * vec_bytes() : 0));
  and_(rsp, -kCacheLine);
  mov(ptr[rsp + kOldStack], tmp_);
}

void GemmTileEmitter::load_arguments() {
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
  if (shared_.is_on()) shared_.load_masks(tmp_);
}

void GemmTileEmitter::copy_to_frame(int to, size_t from) {
  mov(tmp_, ptr[args_ + from]);
  mov(ptr[rsp + to], tmp_);
}

void GemmTileEmitter::fetch_targets() {
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

// What the tile ends with: by then it is there.
void GemmTileEmitter::fetch_ends() {
  if (!plan_.fetches_ends) return;
  mov(c_, ptr[rsp + kC]);
  mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, c_stride_bytes)]);
  fetch_rows(tmp_, [&](const Xbyak::Address& at) { prefetchw(at); });
  for (int i = 0; i < input_count(); ++i) {
    if (plan_.epilogue->inputs[static_cast<size_t>(i)] != GemmInputAccess::columns) continue;
    Xbyak::Label is_same_row;
    mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, input_stride_bytes) + 8 * i]);
    test(tmp_, tmp_);
    jz(is_same_row, T_NEAR);
    mov(c_, ptr[rsp + kInputs + 8 * i]);
    fetch_rows(tmp_, [&](const Xbyak::Address& at) { prefetcht0(at); });
    L(is_same_row);
  }
}

void GemmTileEmitter::fetch_folds() {
  if (!plan_.fetches_folds) return;
  load_vector_bytes();
  const Xbyak::Address c_stride = qword[args_ + offsetof(GemmTileArgs, c_stride_bytes)];
  for (size_t i = 0; i < static_cast<size_t>(plan_.fold_count()); ++i) {
    const int matrix = i == 0 ? kC : kInputs + 8 * static_cast<int>(i - 1);
    if (plan_.folds[i] == GemmFold::set) {
      mov(c_, ptr[rsp + matrix]);
      fetch_rows(c_stride, [&](const Xbyak::Address& at) { prefetchw(at); });
    }
    for (size_t slot = 0; plan_.completes[i] && slot < plan_.epilogue->inputs.size(); ++slot) {
      if (plan_.epilogue->inputs[slot] != GemmInputAccess::alike) continue;
      mov(c_, ptr[rsp + matrix]);
      add(c_, ptr[args_ + offsetof(GemmTileArgs, alike_bytes) + 8 * slot]);
      fetch_rows(c_stride, [&](const Xbyak::Address& at) { prefetcht0(at); });
    }
  }
}

template <class Fetch>
void GemmTileEmitter::fetch_rows(const Xbyak::Operand& stride, Fetch fetch) {
  for (int row = 0; row < plan_.rows; ++row) {
    for (int v = 0; v < plan_.vecs; ++v) fetch(ptr[vector_at(c_, v)]);
    if (row + 1 < plan_.rows) add(c_, stride);
  }
}

// --- C += A * B

void GemmTileEmitter::zero_accumulators() {
  for (const Vec& acc : acc_) zero(acc);
}

void GemmTileEmitter::add_earlier_blocks() {
  if (plan_.starts_at_a) add_rows(kA, offsetof(GemmTileArgs, a_stride_bytes));
  if (plan_.accumulate) add_rows(kC, offsetof(GemmTileArgs, c_stride_bytes));
}

void GemmTileEmitter::add_rows(Frame matrix, size_t stride) {
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

void GemmTileEmitter::multiply() {
  if (plan_.a_in_chunks) {
    mov(a_[0], ptr[rsp + kA]);
    mov(a_stride_[0], ptr[args_ + offsetof(GemmTileArgs, a_chunk_bytes)]);
  } else {
    point_at_a(ptr[rsp + kA], ptr[args_ + offsetof(GemmTileArgs, a_stride_bytes)]);
  }
  mov(b_, ptr[args_ + offsetof(GemmTileArgs, b)]);
  if (plan_.prefetch_lines) mov(prefetch_, ptr[rsp + kPrefetch]);
  if (plan_.b_sign != 0) mov(tmp_, ptr[args_ + offsetof(GemmTileArgs, b_second_bytes)]);
  mov(k_left_, ptr[args_ + offsetof(GemmTileArgs, k)]);
  if (plan_.weights == WeightFormat::bfp20) return multiply_bfp20();
  plan_.longest_sum > 0 ? multiply_in_short_sums() : multiply_steps();
  if (plan_.prefetch_lines) mov(ptr[rsp + kPrefetch], prefetch_);
}

void GemmTileEmitter::multiply_steps() {
  const auto body = [&](int steps, bool prefetches) { rank1_updates(steps, prefetches ? plan_.prefetch_lines : 0); };
  const bool is_in_groups = plan_.a_in_chunks || plan_.weights == WeightFormat::bfp24;
  is_in_groups ? for_groups(body) : for_steps(k_left_, plan_.k_unroll, body);
}

// Rounding errors of a sum grow with its length. Nothing of the next one waits for what is kept of those before.
void GemmTileEmitter::multiply_in_short_sums() {
  Xbyak::Label next_sum, done;
  const Xbyak::Address steps_left = qword[rsp + kStepsLeft];
  const auto multiply_next = [&] {
    mov(tmp_, plan_.longest_sum);
    cmp(k_left_, tmp_);
    cmovg(k_left_, tmp_);
    sub(steps_left, k_left_);
    multiply_steps();
  };
  mov(steps_left, k_left_);
  multiply_next();
  mov(k_left_, steps_left);
  test(k_left_, k_left_);
  jz(done, T_NEAR);
  L(next_sum);
  for (size_t i = 0; i < acc_.size(); ++i) vmovups(kept(i), acc_[i]);
  zero_accumulators();
  multiply_next();
  for (size_t i = 0; i < acc_.size(); ++i) vaddps(acc_[i], acc_[i], kept(i));
  mov(k_left_, steps_left);
  test(k_left_, k_left_);
  jnz(next_sum, T_NEAR);
  L(done);
}

template <class Body>
void GemmTileEmitter::for_groups(Body body) {
  Xbyak::Label next, done;
  test(k_left_, k_left_);
  jz(done, T_NEAR);
  align(32);
  L(next);
  body(plan_.k_unroll, true);
  sub(k_left_, plan_.k_unroll);
  jg(next, T_NEAR);
  L(done);
}

void GemmTileEmitter::rank1_updates(int steps, int lines) {
  PrefetchPace paced(steps * plan_.rows, lines);
  PrefetchPace paced_a(steps * plan_.rows, plan_.a_in_chunks ? chunk_bytes() / kCacheLine : 0);
  PrefetchPace paced_b(steps * plan_.rows, plan_.weights_to_l2 ? steps * plan_.vecs * b_vec_bytes() / kCacheLine : 0);
  const auto pace = [&] {  // called once a row of each step
    paced_b.next_slot([&](int line) { prefetcht1(ptr[b_ + kAheadOfL2 + line * kCacheLine]); });
    paced_a.next_slot([&](int line) { prefetcht0(ptr[a_[0] + a_stride_[0] * kChunksAhead + line * kCacheLine]); });
    paced.next_slot([&](int line) { prefetcht1(ptr[prefetch_ + line * kCacheLine]); });
  };
  for (int k = 0; k < steps; ++k) {
    if (shared_.is_on()) {
      update_sharing_last(k, pace);
    } else if (plan_.holds_a()) {
      update_holding_a(k, pace);
    } else {
      update_holding_b(k, pace);
    }
    if (plan_.b_in_place) add(b_, ptr[args_ + offsetof(GemmTileArgs, b_stride_bytes)]);
  }
  plan_.a_in_chunks ? add(a_[0], a_stride_[0]) : advance_a(steps);
  if (!plan_.b_in_place) add(b_, steps * plan_.vecs * b_vec_bytes());
  if (lines) add(prefetch_, lines * kCacheLine);
}

template <class Pace>
void GemmTileEmitter::update_holding_b(int k, Pace pace) {
  for (int v = 0; v < plan_.vecs; ++v) load_b(work_[static_cast<size_t>(v)], k, v);
  for (int row = 0; row < plan_.rows; ++row) {
    if (!plan_.embed_broadcast) broadcast(work_.back(), element_of_a(row, k));
    for (int v = 0; v < plan_.vecs; ++v) {
      const Vec& b_vec = work_[static_cast<size_t>(v)];
      if (plan_.embed_broadcast) {
        multiply_add(row, v, b_vec, ptr_b[element_of_a(row, k)]);
      } else {
        multiply_add(row, v, b_vec, used(work_.back(), v));
      }
    }
    pace();
  }
}

// Registers of sums that others hold are free for broadcasts until the sums are parted.
template <class Pace>
void GemmTileEmitter::update_sharing_last(int k, Pace pace) {
  const int last = plan_.vecs - 1;
  for (int v = 0; v < last; ++v) load_b(work_[static_cast<size_t>(v)], k, v);
  const Vec& columns = work_[static_cast<size_t>(last)];
  shared_.load_columns(columns, b_at(k, last));
  for (int holder = 0; holder < plan_.rows; holder += plan_.last_share) {
    std::vector<Vec> values;
    std::vector<int> rows;
    const int held = std::min(plan_.last_share, plan_.rows - holder);
    for (int row = holder; row < holder + held; ++row) {
      rows.push_back(row);
      values.push_back(broadcasts_[next_broadcast_++ % broadcasts_.size()]);
      broadcast(values.back(), element_of_a(row, k));
      for (int v = 0; v < last; ++v) vfmadd231ps(acc(row, v), work_[static_cast<size_t>(v)], values.back());
      pace();
    }
    shared_.multiply_add(acc(holder, last), columns, values, rows, held);
  }
}

void GemmTileEmitter::part_shared() {
  const int last = plan_.vecs - 1;
  for (int row = plan_.rows - 1; row >= 0; --row) shared_.take(acc(row, last), acc(shared_.holder_of(row), last), row);
}

template <class Pace>
void GemmTileEmitter::update_holding_a(int k, Pace pace) {
  for (int row = 0; row < plan_.rows; ++row) {
    broadcast(work_[static_cast<size_t>(row)], element_of_a(row, k));
    pace();
  }
  for (int v = 0; v < plan_.vecs; ++v) {
    const bool is_as_it_lies =
        !(plan_.b_in_place && is_partial(v)) && plan_.b_sign == 0 && plan_.weights == WeightFormat::f32;
    if (plan_.rows == 1 && is_as_it_lies) {
      multiply_add(0, v, work_[0], ptr[b_at(k, v)]);
      continue;
    }
    load_b(work_.back(), k, v);
    for (int row = 0; row < plan_.rows; ++row)
      multiply_add(row, v, work_.back(), used(work_[static_cast<size_t>(row)], v));
  }
}

void GemmTileEmitter::load_b(const Vec& into, int k, int v) {
  if (plan_.weights == WeightFormat::bfp24) return load_bfp24(into, k, v);
  if (plan_.weights == WeightFormat::f16) return vcvtph2ps(into, ptr[b_at(k, v)]);
  if (plan_.weights == WeightFormat::bf16) {
    vpmovzxwd(into, ptr[b_at(k, v)]);
    return vpslld(into, into, 16);
  }
  if (!plan_.b_in_place) {
    load(into, b_at(k, v));
    if (plan_.b_sign > 0) vaddps(into, into, ptr[b_at(k, v) + tmp_]);
    if (plan_.b_sign < 0) vsubps(into, into, ptr[b_at(k, v) + tmp_]);
    return;
  }
  load_columns(into, b_at(k, v), v, keeps_mask_ ? *keeps_mask_ : Vec());
}

// --- AVX2 against AVX-512: mask vector against opmask.

void GemmTileEmitter::load_mask(const Vec& vec) {
  if (has_masks()) return;
  mov(tmp_, lanes());
  sub(tmp_, ptr[args_ + offsetof(GemmTileArgs, tail_lanes)]);
  lea(c_, ptr[rip + mask_table_]);
  vmovups(vec, ptr[c_ + tmp_ * kF32]);
  uses_mask_table_ = true;
  mov(c_, ptr[rsp + kC]);
}

void GemmTileEmitter::load_columns(const Vec& vec, const Xbyak::RegExp& at, int v, const Vec& mask) {
  if (!is_partial(v)) {
    load(vec, at);
  } else if (has_masks()) {
    vmovups(vec | tail_k_ | T_z, ptr[at]);
  } else {
    vmaskmovps(vec, mask, ptr[at]);
  }
}

void GemmTileEmitter::emit_constants() {
  if (epilogue_) epilogue_->emit_constants();
  if (!uses_mask_table_) return;
  align(kCacheLine);
  L(mask_table_);
  for (int i = 0; i < lanes(); ++i) dd(~0u);
  for (int i = 0; i < lanes(); ++i) dd(0);
}

GemmTile gemm_tile(const GemmTilePlan& plan) {
  if (!plan.is_valid()) throw JitError("out of range or over the register budget: " + plan.key());
  return GemmTile(cached_code(plan.key(), [&] { return GemmTileEmitter(plan).emit(); }));
}

}  // namespace lathe
