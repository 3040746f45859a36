// What becomes of a tile's sums: the epilogue, and bytes or floats in C.
#include <algorithm>
#include <array>
#include <cstddef>

#include "jit/kernels/gemm/gemm_int8_emitter.h"

namespace lathe {

int GemmInt8Emitter::waiting_rows(int together) const {
  const int missing = temps_needed(together) - static_cast<int>(work_.size()) - free_vecs();
  return missing <= 0 ? 0 : (missing + plan_.vecs - 1) / plan_.vecs;
}

// Vectors go through the epilogue together, of one row or two: as many as hide its latency and find registers.
void GemmInt8Emitter::choose_together() {
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

void GemmInt8Emitter::finish_tile() {
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
auto GemmInt8Emitter::input_pointers() -> std::vector<Gpr> {
  std::vector<Gpr> free_now = a_stride_;
  free_now.insert(free_now.end(), a_.begin(), a_.end());
  std::vector<Gpr> inputs(free_now.begin(), free_now.begin() + input_count());
  for (int i = 0; i < input_count(); ++i) mov(inputs[static_cast<size_t>(i)], ptr[rsp + kInputs + 8 * i]);
  return inputs;
}

// Takes the registers for partial vectors and for narrowing from `temps`.
void GemmInt8Emitter::set_store_temps(std::vector<Vec>& temps) {
  if (store_temps() == 0) return;
  for (int i = 0; i < narrow_temps(); ++i) {
    narrow_[static_cast<size_t>(i)] = temps.back();
    temps.pop_back();
  }
  if (!needs_mask_vec()) return;
  mask_ = temps.back();
  temps.pop_back();
  mov(tmp_, lanes());
  sub(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, tail_lanes)]);
  lea(b_, ptr[rip + mask_table_]);
  vmovups(mask_, ptr[b_ + tmp_ * 4]);
}

// One row or two; `together`: vectors that go through the epilogue at a time. get(row, v): a sum, in a register.
void GemmInt8Emitter::finish_group(const std::vector<Gpr>& inputs, const std::vector<Vec>& temps, int rows,
                                   int together, const std::function<Vec(int row, int v)>& get) {
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
  for (int row = 0; row < rows; ++row) pass_row(inputs);
}

void GemmInt8Emitter::pass_row(const std::vector<Gpr>& inputs) {
  add(c_, ptr[args_ + offsetof(GemmInt8TileArgs, c_stride_bytes)]);
  for (size_t i = 0; i < inputs.size(); ++i) {
    add(inputs[i], ptr[args_ + offsetof(GemmInt8TileArgs, input_stride_bytes) + 8 * i]);
  }
}

void GemmInt8Emitter::finish_rows(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
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

void GemmInt8Emitter::finish_rows_in_loop(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
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

void GemmInt8Emitter::apply_epilogue(const std::vector<Sum>& sums, const std::vector<Gpr>& inputs,
                                     const std::vector<Vec>& temps) {
  if (!epilogue_) return;
  std::vector<Vec> vecs;
  for (const Sum& sum : sums) vecs.push_back(sum.vec);
  for (const Vec& vec : vecs) vcvtdq2ps(vec, vec);
  epilogue_->apply(vecs, temps, [&](size_t which, int slot, const Xbyak::Xmm& into) {
    const size_t i = static_cast<size_t>(slot - 1);
    const DType dtype = plan_.epilogue->expression.inputs[i + 1];
    Xbyak::RegExp row(i < inputs.size() ? inputs[i] : tmp_);
    if (i >= inputs.size()) {
      mov(tmp_, ptr[rsp + kInputs + 8 * static_cast<int>(i)]);
    } else if (sums[which].row > 0) {
      mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, input_stride_bytes) + 8 * i]);
      row = inputs[i] + tmp_;
    }
    if (plan_.epilogue->inputs[i] == GemmInputAccess::uniform) return broadcast_as_float(into, row, dtype);
    load_columns(into, row + sums[which].v * lanes() * (bits_of(dtype) / 8), sums[which].v, dtype);
  });
  if (has_gelu()) gelu(vecs, temps);
}

void GemmInt8Emitter::store_sums(const std::vector<Sum>& sums) {
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

void GemmInt8Emitter::store_sum(const Xbyak::RegExp& at, const Sum& sum) {
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

void GemmInt8Emitter::load_columns(const Vec& vec, const Xbyak::RegExp& at, int v, DType dtype) {
  if (!is_partial(v)) return load_as_float(vec, at, dtype);
  if (has_masks()) return load_as_float(vec, at, dtype, tail_k_);
  if (bits_of(dtype) == 8) {
    copy_tail(rsp + kTailBytes, at);
    return load_as_float(vec, rsp + kTailBytes, dtype);
  }
  vmaskmovps(vec, mask_, ptr[at]);
  if (dtype == DType::i32) vcvtdq2ps(vec, vec);
}

void GemmInt8Emitter::store_columns(const Xbyak::RegExp& at, const Vec& vec, int v, DType dtype) {
  if (!is_partial(v)) return store_as(at, vec, dtype, narrow_[0]);
  if (has_masks()) return store_as(at, vec, dtype, tail_k_);
  if (bits_of(dtype) == 8) {
    store_as(rsp + kTailBytes, vec, dtype, narrow_[0]);
    return copy_tail(at, rsp + kTailBytes);
  }
  if (dtype == DType::i32) vcvtps2dq(vec, vec);
  vmaskmovps(ptr[at], mask_, vec);
}

// tail_lanes bytes.
void GemmInt8Emitter::copy_tail(const Xbyak::RegExp& to, const Xbyak::RegExp& from) {
  Xbyak::Label next;
  mov(b_, ptr[args_ + offsetof(GemmInt8TileArgs, tail_lanes)]);
  L(next);
  movzx(k_left_.cvt32(), byte[from + b_ - 1]);
  mov(byte[to + b_ - 1], k_left_.cvt8());
  dec(b_);
  jnz(next, T_NEAR);
}

}  // namespace lathe
