#include "jit/kernels/gemm/gemm_int8_emitter.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "jit/kernels/gemm/row_tile_emitter.h"

namespace lathe {
namespace {

constexpr int kGroupBytes = 4;

}  // namespace

std::shared_ptr<const CodePages> GemmInt8Emitter::emit() {
  begin();
  open_frame();
  load_arguments();
  if (plan_.row_groups > 0) {
    emit_tiles_overlapped();
  } else {
    L(next_tile_);
    init_accumulators();
    multiply();
    finish_tile();
    dec(qword[rsp + kTilesLeft]);
    jnz(next_tile_, T_NEAR);
    if (may_repeat()) go_on_to_next_product();
  }
  mov(tmp_, ptr[rsp + kPrefetch]);
  mov(ptr[args_ + offsetof(GemmInt8TileArgs, prefetch)], tmp_);
  close_frame();
  end();
  emit_aside();
  emit_constants();
  return finish(plan_.key());
}

void GemmInt8Emitter::open_frame() {
  mov(tmp_, rsp);
  sub(rsp, kSpill + waiting_ * plan_.vecs * vec_bytes());
  and_(rsp, -kCacheLine);
  mov(ptr[rsp + kOldStack], tmp_);
}

void GemmInt8Emitter::load_arguments() {
  copy_to_frame(kTilesLeft, offsetof(GemmInt8TileArgs, tiles));
  copy_to_frame(kA, offsetof(GemmInt8TileArgs, a));
  copy_to_frame(kC, offsetof(GemmInt8TileArgs, c));
  copy_to_frame(kPrefetch, offsetof(GemmInt8TileArgs, prefetch));
  if (may_repeat()) copy_to_frame(kProductsLeft, offsetof(GemmInt8TileArgs, products));
  if (plan_.has_rows) copy_to_frame(kRowInit, offsetof(GemmInt8TileArgs, row_init));
  if (is_halved(plan_.dot)) copy_to_frame(kLarge, offsetof(GemmInt8TileArgs, large));
  for (int i = 0; i < input_count(); ++i) copy_to_frame(kInputs + 8 * i, offsetof(GemmInt8TileArgs, inputs) + 8 * i);
  if (!plan_.masked || !has_masks()) return;
  mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, tail_lanes)]);
  mov(b_.cvt32(), -1);
  bzhi(b_.cvt32(), b_.cvt32(), tmp_.cvt32());
  kmovw(tail_k_, b_.cvt32());
}

void GemmInt8Emitter::copy_to_frame(int to, size_t from) {
  mov(tmp_, ptr[args_ + from]);
  mov(ptr[rsp + to], tmp_);
}

void GemmInt8Emitter::go_on_to_next_product() {
  Xbyak::Label done, is_last;
  dec(qword[rsp + kProductsLeft]);
  jz(done, T_NEAR);
  mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, steps)]);
  const auto move_on = [&](size_t place, size_t step) {
    mov(b_, ptr[args_ + place]);
    add(b_, ptr[tmp_ + step]);
    mov(ptr[args_ + place], b_);
  };
  move_on(offsetof(GemmInt8TileArgs, a), offsetof(GemmInt8Step, a));
  move_on(offsetof(GemmInt8TileArgs, c), offsetof(GemmInt8Step, c));
  if (plan_.has_rows) {
    move_on(offsetof(GemmInt8TileArgs, column_init), offsetof(GemmInt8Step, columns));
    move_on(offsetof(GemmInt8TileArgs, row_init), offsetof(GemmInt8Step, rows));
  }
  move_on(offsetof(GemmInt8TileArgs, b), offsetof(GemmInt8Step, b));
  if (plan_.prefetch_lines && !plan_.prefetches_on) {
    mov(k_left_, ptr[args_ + offsetof(GemmInt8TileArgs, prefetch_last)]);
    cmp(qword[rsp + kProductsLeft], 1);
    je(is_last);
    mov(k_left_, b_);
    add(k_left_, ptr[tmp_ + sizeof(GemmInt8Step) + offsetof(GemmInt8Step, b)]);
    L(is_last);
    mov(ptr[rsp + kPrefetch], k_left_);
  }
  add(tmp_, sizeof(GemmInt8Step));
  mov(ptr[args_ + offsetof(GemmInt8TileArgs, steps)], tmp_);
  copy_to_frame(kTilesLeft, offsetof(GemmInt8TileArgs, tiles));
  copy_to_frame(kA, offsetof(GemmInt8TileArgs, a));
  copy_to_frame(kC, offsetof(GemmInt8TileArgs, c));
  if (plan_.has_rows) copy_to_frame(kRowInit, offsetof(GemmInt8TileArgs, row_init));
  jmp(next_tile_, T_NEAR);
  L(done);
}

void GemmInt8Emitter::init_accumulators() {
  if (has_fours(plan_)) load_ones(ones());
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

void GemmInt8Emitter::multiply() {
  point_at_a();
  mov(b_, ptr[args_ + offsetof(GemmInt8TileArgs, b)]);
  if (plan_.prefetch_lines) mov(prefetch_, ptr[rsp + kPrefetch]);
  if (is_halved(plan_.dot)) {
    mov(large_, ptr[rsp + kLarge]);
    mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, large_tile_bytes)]);
    add(ptr[rsp + kLarge], tmp_);
  }
  mov(k_left_, ptr[args_ + offsetof(GemmInt8TileArgs, k_groups)]);
  sum_groups();
  if (plan_.prefetch_lines) mov(ptr[rsp + kPrefetch], prefetch_);
}

// k_left_ groups, from where A and B are pointed at.
void GemmInt8Emitter::sum_groups() {
  Xbyak::Label unrolled, rest, single, done;
  if (plan_.k_unroll > 1) {
    sub(k_left_, plan_.k_unroll);
    jl(rest, T_NEAR);
    align(32);
    L(unrolled);
    updates_of(plan_.k_unroll, plan_.prefetch_lines, true);
    sub(k_left_, plan_.k_unroll);
    jge(unrolled, T_NEAR);
    L(rest);
    add(k_left_, plan_.k_unroll);
  } else {
    test(k_left_, k_left_);
  }
  jz(done, T_NEAR);
  L(single);
  updates_of(lanes_of(plan_.dot), plan_.k_unroll == 1 ? plan_.prefetch_lines : 0, plan_.k_unroll == 1);
  sub(k_left_, lanes_of(plan_.dot));
  jnz(single, T_NEAR);
  L(done);
}

// Row r is at a_[r / 9] + (r % 9) * stride: strides 1, 3, 5, 7 and the scales 1, 2, 4, 8 reach 0 .. 8.
void GemmInt8Emitter::point_at_a() {
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

Xbyak::RegExp GemmInt8Emitter::a_at(int row, int group) const {
  const Gpr& base = a_[static_cast<size_t>(row / kRowsPerBase)];
  const int step = row % kRowsPerBase;
  if (step == 0) return base + group * kGroupBytes;
  int odd = step, scale = 1;
  for (; odd % 2 == 0; odd /= 2) scale *= 2;
  return base + a_stride_[static_cast<size_t>(odd / 2)] * scale + group * kGroupBytes;
}

// A group of a row in the working register `first` and, by signs, its sizes in the next one.
void GemmInt8Emitter::broadcast_a(int first, int row, int group) {
  const Vec& a = work_[static_cast<size_t>(first)];
  vpbroadcastd(a, dword[a_at(row, group)]);
  if (is_by_signs(plan_)) vpabsb(work_[static_cast<size_t>(first + 1)], a);
}

void GemmInt8Emitter::dot_with(int first, const Vec& acc, const Vec& b) {
  const Vec& a = work_[static_cast<size_t>(first)];
  if (is_by_signs(plan_)) return dot_by_signs(acc, a, work_[static_cast<size_t>(first + 1)], b, products());
  dot(plan_.dot, acc, a, b, products());
}

template <class Pace>
void GemmInt8Emitter::update_holding_b(int group, Pace pace) {
  for (int v = 0; v < plan_.vecs; ++v) load(work_[static_cast<size_t>(v)], b_at(group, v));
  const auto multiply = [&](int row, std::optional<Half> half) {
    broadcast_a(plan_.vecs, row, group);
    if (half) take_half(plan_.dot, work_[static_cast<size_t>(plan_.vecs)], *half);
    for (int v = 0; v < plan_.vecs; ++v) dot_with(plan_.vecs, acc(row, v), work_[static_cast<size_t>(v)]);
  };
  for (int row = 0; row < plan_.rows; ++row) {
    for_halves([&](std::optional<Half> half) { multiply(row, half); });
    pace();
  }
}

// Two groups. The last vector's sums take the place of A's broadcasts.
template <class Pace>
void GemmInt8Emitter::update_crossed(int group, Pace pace) {
  const auto pair_at = [&](int first) {
    return std::array{work_[static_cast<size_t>(first)], work_[static_cast<size_t>(first + 1)]};
  };
  const std::array<Vec, 2> a = pair_at(2 * plan_.vecs);
  for (int v = 0; v < plan_.vecs; ++v) {
    for (int lane = 0; lane < 2; ++lane) load(work_[static_cast<size_t>(2 * v + lane)], b_at(group + lane, v));
  }
  for (int row = 0; row < plan_.rows; ++row) {
    for (int lane = 0; lane < 2; ++lane) {
      vpbroadcastd(a[static_cast<size_t>(lane)], dword[a_at(row, group + lane)]);
    }
    for (int v = 0; v < plan_.vecs; ++v) {
      cross(acc(row, v), a, pair_at(2 * v), v == plan_.vecs - 1 ? a : pair_at(2 * plan_.vecs + 2));
    }
    pace();
  }
}

template <class Pace>
void GemmInt8Emitter::update_holding_a(int group, Pace pace) {
  const int of_a = registers_of_a(plan_);
  const Vec& b_vec = work_[static_cast<size_t>(of_a * plan_.rows)];
  const auto multiply = [&](std::optional<Half> half) {
    for (int row = 0; row < plan_.rows; ++row) {
      broadcast_a(of_a * row, row, group);
      if (half) take_half(plan_.dot, work_[static_cast<size_t>(of_a * row)], *half);
      if (half != Half::lower) pace();
    }
    for (int v = 0; v < plan_.vecs; ++v) {
      load(b_vec, b_at(group, v));
      for (int row = 0; row < plan_.rows; ++row) dot_with(of_a * row, acc(row, v), b_vec);
    }
  };
  for_halves(multiply);
}

template <class Pace>
void GemmInt8Emitter::update_bytes(int group, Pace pace) {
  const Vec& a = work_[0];
  for (int row = 0; row < plan_.rows; ++row) {
    for_halves([&](std::optional<Half> half) {
      vpbroadcastd(a, dword[a_at(row, group)]);
      if (half) take_half(plan_.dot, a, *half);
      for (int v = 0; v < plan_.vecs; ++v) {
        dot_in_16_bits(acc(row, v), a, b_at(group, v), {products(), work_[2], ones()});
      }
    });
    pace();
  }
}

// Two groups.
template <class Pace>
void GemmInt8Emitter::update_fours(int group, Pace pace) {
  const std::array<Vec, 2> a = {work_[0], work_[1]};
  for (int row = 0; row < plan_.rows; ++row) {
    for (int i = 0; i < 2; ++i) vpbroadcastd(a[static_cast<size_t>(i)], dword[a_at(row, group + i)]);
    for (int v = 0; v < plan_.vecs; ++v) {
      dot_of_fours(acc(row, v), a, {b_at(group, v), b_at(group + 1, v)}, {products(), work_[2], ones()});
    }
    pace();
  }
}

// The next groups of k, with `lines` prefetches spread among them; after(group) behind each.
template <class After>
void GemmInt8Emitter::update_round(int groups, int lines, After after) {
  const int together = adds_fours() && groups % 2 == 0 ? 2 : lanes_of(plan_.dot);
  PrefetchPace paced(groups / together * plan_.rows, lines);
  const auto pace = [&] {  // called once a row of each group, or of those that are multiplied together
    paced.next_slot([&](int line) { prefetcht1(ptr[prefetch_ + line * kCacheLine]); });
  };
  for (int group = 0; group < groups; group += together) {
    if (is_crossed(plan_)) {
      update_crossed(group, pace);
    } else if (has_fours(plan_)) {
      together == 2 ? update_fours(group, pace) : update_bytes(group, pace);
    } else if (holds_a(plan_)) {
      update_holding_a(group, pace);
    } else {
      update_holding_b(group, pace);
    }
    after(group);
  }
  for (const Gpr& base : a_) add(base, groups * kGroupBytes);
  add(b_, groups * plan_.vecs * vec_bytes());
  if (lines) add(prefetch_, lines * kCacheLine);
}

void GemmInt8Emitter::updates(int groups, int lines) {
  update_round(groups, lines, [](int) {});
}

void GemmInt8Emitter::updates_of(int groups, int lines, bool has_own_flag) {
  if (!is_halved(plan_.dot)) return updates(groups, lines);
  emit_by_size(plan_.dot, large_, [=, this] { updates(groups, lines); });
  if (has_own_flag) inc(large_);
}

void GemmInt8Emitter::emit_tiles_overlapped() {
  const int groups = plan_.row_groups;
  const int lines = (plan_.prefetch_lines * groups + plan_.k_unroll - 1) / plan_.k_unroll;
  Xbyak::Label next_tile, is_first;
  mov(c_, ptr[rsp + kC]);
  for (size_t i = 0; i < row_inputs_.size(); ++i) mov(row_inputs_[i], ptr[rsp + kInputs + 8 * static_cast<int>(i)]);
  if (plan_.prefetch_lines) mov(prefetch_, ptr[rsp + kPrefetch]);
  start_tile();
  mov(k_left_, ptr[args_ + offsetof(GemmInt8TileArgs, k_groups)]);
  jmp(is_first, T_NEAR);
  L(next_tile);
  start_tile();
  for_waiting_rows([&] {
    int finished = 0;
    update_round(groups, lines, [&](int group) {
      for (; finished < plan_.vecs * (group + 1) / groups; ++finished) finish_waiting(finished);
    });
    pass_waiting_row();
  });
  mov(k_left_, ptr[args_ + offsetof(GemmInt8TileArgs, k_groups)]);
  sub(k_left_, plan_.rows * groups);
  L(is_first);
  sum_groups();
  keep_sums();
  dec(qword[rsp + kTilesLeft]);
  jnz(next_tile, T_NEAR);
  finish_last_tile();
  if (plan_.prefetch_lines) mov(ptr[rsp + kPrefetch], prefetch_);
}

void GemmInt8Emitter::start_tile() {
  init_accumulators();
  point_at_a();
  imul(tmp_, a_stride_[0], plan_.rows);
  add(ptr[rsp + kA], tmp_);
  mov(b_, ptr[args_ + offsetof(GemmInt8TileArgs, b)]);
}

void GemmInt8Emitter::emit_constants() {
  emit_dot_constants(plan_.dot);
  if (epilogue_) epilogue_->emit_constants();
  if (plan_.requantizes()) emit_requantization(plan_.store);
  if (has_gelu()) emit_gelu_tables(plan_.store.gelu);
  if (!needs_mask_vec()) return;
  align(kCacheLine);
  L(mask_table_);
  for (int i = 0; i < lanes(); ++i) dd(~0u);
  for (int i = 0; i < lanes(); ++i) dd(0);
}

}  // namespace lathe
