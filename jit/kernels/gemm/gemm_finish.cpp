// What becomes of a tile's products: the epilogue in registers when they suffice, else through the frame, row by row in
// a loop; or sums of several matrices.
#include <cstddef>

#include "jit/kernels/gemm/gemm_emitter.h"

namespace lathe {

void GemmTileEmitter::finish_tile() {
  mov(c_, ptr[rsp + kC]);
  std::vector<Gpr> inputs = input_pointers();
  std::vector<Vec> temps = work_;
  while (free_vecs() > 0) temps.push_back(claim_vec("temp"));
  load_vector_bytes();
  const std::vector<Vec> claimed(temps.begin() + static_cast<long>(work_.size()), temps.end());
  if (spills_) {
    finish_rows_in_loop(inputs, temps);
  } else {
    finish_rows_in_registers(inputs, temps);
  }
  if (epilogue_ && static_cast<int>(temps.size()) + (spills_ ? rows_x_vecs() - 1 : 0) < temps_needed()) {
    throw JitError("the epilogue needs more registers than there are: " + plan_.key());
  }
  for (const Vec& vec : claimed) release(vec);
  for (size_t i = 0; i < inputs.size(); ++i) mov(ptr[rsp + kInputs + 8 * static_cast<int>(i)], inputs[i]);
  mov(ptr[rsp + kC], c_);
  imul(tmp_, ptr[args_ + offsetof(GemmTileArgs, a_stride_bytes)], plan_.rows);
  add(ptr[rsp + kA], tmp_);
}

auto GemmTileEmitter::input_pointers() -> std::vector<Gpr> {
  std::vector<Gpr> free_now = a_stride_;
  free_now.insert(free_now.end(), {k_left_, prefetch_, b_});
  free_now.insert(free_now.end(), a_.begin(), a_.end());
  std::vector<Gpr> inputs(free_now.begin(), free_now.begin() + input_count());
  for (int i = 0; i < input_count(); ++i) mov(inputs[static_cast<size_t>(i)], ptr[rsp + kInputs + 8 * i]);
  return inputs;
}

void GemmTileEmitter::finish_rows_in_registers(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
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

void GemmTileEmitter::finish_rows_in_loop(const std::vector<Gpr>& inputs, std::vector<Vec> temps) {
  for (size_t i = 0; i < acc_.size(); ++i) vmovups(kept(i), acc_[i]);
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
void GemmTileEmitter::finish_row(const std::vector<Gpr>& inputs, const std::vector<Vec>& temps, const Vec& mask,
                                 Accumulator get) {
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

void GemmTileEmitter::load_vector_bytes() {
  if (!plan_.apart) return;
  mov(vector_bytes(), ptr[args_ + offsetof(GemmTileArgs, c_vector_bytes)]);
  lea(vector_bytes_x3(), ptr[vector_bytes() + vector_bytes() * 2]);
}

Xbyak::RegExp GemmTileEmitter::vector_at(const Gpr& row, int v) const {
  if (!plan_.apart) return row + v * vec_bytes();
  if (v == 0) return row;
  return v == 3 ? row + vector_bytes_x3() : row + vector_bytes() * v;
}

void GemmTileEmitter::fold_vector(const Vec& product, int v, const std::vector<Gpr>& inputs,
                                  const std::vector<Vec>& temps) {
  const size_t count = inputs.size() + 1;
  for (size_t i = 0; i < count; ++i) {
    const Gpr& row = i == 0 ? c_ : inputs[i - 1];
    const Xbyak::RegExp at = vector_at(row, v);
    if (!plan_.completes[i]) {
      const Vec sum = fold(plan_.folds[i], product, at, temps[(static_cast<size_t>(v) * count + i) % temps.size()]);
      if (plan_.folds[i] != GemmFold::take) store(at, sum);
      continue;
    }
    const Vec sum = fold(plan_.folds[i], product, at, temps[0]);
    if (sum.getIdx() == product.getIdx()) vmovaps(temps[0], product);  // which others may still need
    complete(i, temps[0], row, v, std::vector<Xbyak::Xmm>(temps.begin() + 1, temps.end()));
    store(at, temps[0]);
  }
}

auto GemmTileEmitter::fold(GemmFold how, const Vec& product, const Xbyak::RegExp& at, const Vec& temp) -> Vec {
  switch (how) {
    case GemmFold::take:
      vaddps(product, product, ptr[at]);
      return product;
    case GemmFold::add:
      vaddps(temp, product, ptr[at]);
      return temp;
    case GemmFold::subtract:
      load(temp, at);
      vsubps(temp, temp, product);
      return temp;
    default:
      return product;
  }
}

void GemmTileEmitter::complete(size_t fold, const Vec& sum, const Gpr& row, int v, std::span<const Xbyak::Xmm> temps) {
  epilogue_->apply(sum, temps, [&](int slot, const Xbyak::Xmm& into) {
    const size_t i = static_cast<size_t>(slot - 1);
    const GemmInputAccess access = plan_.epilogue->inputs[i];
    if (access == GemmInputAccess::alike) {
      mov(input_at(), row);
      add(input_at(), ptr[args_ + offsetof(GemmTileArgs, alike_bytes) + 8 * i]);
      return load(into, vector_at(input_at(), v));
    }
    mov(input_at(), ptr[args_ + offsetof(GemmTileArgs, fold_inputs) + 8 * (fold * kMaxGemmInputs + i)]);
    access == GemmInputAccess::uniform ? broadcast(into, Xbyak::RegExp(input_at()))
                                       : load(into, input_at() + v * vec_bytes());
  });
}

void GemmTileEmitter::store_columns(const Xbyak::RegExp& at, const Vec& vec, int v, const Vec& mask) {
  if (!is_partial(v)) {
    store(at, vec);
  } else if (has_masks()) {
    vmovups(ptr[at] | tail_k_, vec);
  } else {
    vmaskmovps(ptr[at], mask, vec);
  }
}

void GemmTileEmitter::store_bf16(const Xbyak::RegExp& at, const Vec& vec, int v) {
  const Xbyak::Ymm half(vec.getIdx());
  vcvtneps2bf16(half, vec);
  if (is_partial(v)) {
    vmovdqu16(ptr[at] | tail_k_, half);
  } else {
    vmovdqu16(ptr[at], half);
  }
}

}  // namespace lathe
