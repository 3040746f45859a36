// Tiles whose rows are finished among the products of the next tile: what waits, and how it is finished.
#include <algorithm>
#include <cstddef>

#include "jit/kernels/gemm/gemm_int8_emitter.h"

namespace lathe {

// Sums wait where rows of other tiles are spilled.
void GemmInt8Emitter::claim_for_outputs() {
  waiting_ = plan_.rows;
  for (int i = 0; i < std::min(input_count(), kInputsHeld); ++i) row_inputs_.push_back(claim_gpr("input"));
  // Bytes of two vectors are stored together where there is a register for the second.
  const int temps = std::max(epilogue_temps(), narrow_temps());
  const int together = plan_.requantizes() && plan_.vecs > 1 && free_vecs() >= temps + 2 ? 2 : 1;
  if (free_vecs() < temps + together) throw JitError("too few registers to finish rows beside sums: " + plan_.key());
  row_sums_ = claim_vecs("waiting sum", together);
  row_temps_ = claim_vecs("temp", temps);
  for (size_t i = 0; i < static_cast<size_t>(narrow_temps()); ++i) {
    narrow_[i] = row_temps_[i];  // when its epilogue is done
  }
}

void GemmInt8Emitter::keep_sums() {
  // Where few products have nothing beside them, the shuffling units are busy, too.
  constexpr int kManyGroups = 8;
  for (size_t i = 0; i < acc_.size(); ++i) {
    const Xbyak::RegExp at = rsp + kSpill + static_cast<int>(i) * vec_bytes();
    plan_.row_groups >= kManyGroups ? store_beside_products(at, acc_[i]) : store(at, acc_[i]);
  }
}

// Column vector v of the row; stored together with the one before where that is possible.
void GemmInt8Emitter::finish_waiting(int v) {
  const bool is_second = row_sums_.size() == 2 && v % 2 == 1;
  const Sum sum{0, v, row_sums_[is_second ? 1 : 0]};
  load(sum.vec, k_left_ + v * vec_bytes());
  apply_epilogue({sum}, row_inputs_, row_temps_);
  if (is_second) return store_sums({{0, v - 1, row_sums_[0]}, sum});
  const bool waits = row_sums_.size() == 2 && v + 1 < plan_.vecs;
  if (!waits) store_sums({sum});
}

// Nothing goes on beside it: vectors of two rows hide each other's latency, in the registers of the sums.
void GemmInt8Emitter::finish_last_tile() {
  std::vector<Vec> free = acc_;
  for (const std::vector<Vec>* more : {&work_, &row_sums_, &row_temps_}) {
    free.insert(free.end(), more->begin(), more->end());
  }
  const auto registers = static_cast<int>(free.size());
  const int rows = plan_.rows % 2 == 0 && input_count() <= kInputsHeld ? 2 : 1, vectors = rows * plan_.vecs;
  int together = std::min(4, vectors);
  while (together > 1 && vectors + together * epilogue_temps() > registers) --together;
  const std::vector<Vec> temps(free.begin() + vectors, free.end());
  for_waiting_rows([&] {
    finish_group(row_inputs_, temps, rows, together, [&](int row, int v) {
      const int i = row * plan_.vecs + v;
      load(free[static_cast<size_t>(i)], k_left_ + i * vec_bytes());
      return free[static_cast<size_t>(i)];
    });
    for (int row = 0; row < rows; ++row) pass_frame_row();
  });
}

void GemmInt8Emitter::pass_waiting_row() {
  pass_row(row_inputs_);
  pass_frame_row();
}

// What no register points at.
void GemmInt8Emitter::pass_frame_row() {
  add(k_left_, plan_.vecs * vec_bytes());
  for (int i = kInputsHeld; i < input_count(); ++i) {
    mov(tmp_, ptr[args_ + offsetof(GemmInt8TileArgs, input_stride_bytes) + 8 * static_cast<size_t>(i)]);
    add(ptr[rsp + kInputs + 8 * i], tmp_);
  }
}

}  // namespace lathe
