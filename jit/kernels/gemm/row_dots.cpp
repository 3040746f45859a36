#include "jit/kernels/gemm/row_dots.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>

#include "jit/expression/epilogue.h"
#include "jit/kernels/gemm/row_tile_emitter.h"

namespace lathe {
namespace {

class RowDotsEmitter : public RowTileEmitter {
 public:
  explicit RowDotsEmitter(const RowDotsPlan& plan) : RowTileEmitter(plan.isa, plan.rows), plan_(plan) {
    if (!plan.epilogue.nodes.empty()) {
      epilogue_ = std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa, plan.epilogue);
    }
  }

  std::shared_ptr<const CodePages> emit() {
    begin();
    open_frame();
    Xbyak::Label next_tile;
    L(next_tile);
    for (const Vec& sum : sums_) zero(sum);
    multiply();
    join_parts();
    join_lanes();
    finish_tile();
    dec(qword[rsp + kTilesLeft]);
    jnz(next_tile, T_NEAR);
    mov(rsp, ptr[rsp + kOldStack]);
    end();
    emit_constants();
    return finish(plan_.key());
  }

 private:
  // State that changes from tile to tile; behind it a vector for C and for each input.
  enum Frame { kOldStack = 0, kTilesLeft = 8, kA = 16, kC = 24, kSteps = 32, kTail = 40, kInputs = 64 };
  static constexpr int kF32 = sizeof(float);
  static constexpr int kLine = 64;
  static constexpr int kVectors = kInputs + 8 * kMaxGemmInputs;

  int outputs() const { return plan_.rows * plan_.columns; }
  // Sums of each output: a multiply-add takes four cycles, so a few outputs alone would wait for one another.
  int parts() const {
    return std::min(8, static_cast<int>(std::bit_floor(static_cast<unsigned>(lanes() / outputs()))));
  }
  const Vec& sum(int output, int part = 0) const { return sums_[static_cast<size_t>(part * outputs() + output)]; }
  static size_t row_bytes_of(size_t i) { return offsetof(RowDotsArgs, input_row_bytes) + 8 * i; }
  static size_t column_bytes_of(size_t i) { return offsetof(RowDotsArgs, input_column_bytes) + 8 * i; }
  static int slot_of(size_t i) { return kInputs + 8 * static_cast<int>(i); }
  static int vector_of(size_t i) { return kVectors + kLine * static_cast<int>(i + 1); }

  void open_frame() {
    mov(tmp_, rsp);
    sub(rsp, kVectors + kLine * (1 + static_cast<int>(plan_.inputs.size())));
    and_(rsp, -kLine);
    mov(ptr[rsp + kOldStack], tmp_);
    copy_to_frame(kTilesLeft, offsetof(RowDotsArgs, tiles));
    copy_to_frame(kA, offsetof(RowDotsArgs, a));
    copy_to_frame(kC, offsetof(RowDotsArgs, c));
    mov(tmp_, ptr[args_ + offsetof(RowDotsArgs, k)]);
    mov(left_, tmp_);
    and_(left_, lanes() - 1);
    mov(ptr[rsp + kTail], left_);
    shr(tmp_, std::countr_zero(static_cast<unsigned>(lanes())));
    mov(ptr[rsp + kSteps], tmp_);
    if (has_masks()) {
      mov(tmp_.cvt32(), -1);
      bzhi(tmp_.cvt32(), tmp_.cvt32(), left_.cvt32());
      kmovw(tail_k_, tmp_.cvt32());
      mov(tmp_.cvt32(), (1 << outputs()) - 1);
      kmovw(outputs_k_, tmp_.cvt32());
    }
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      copy_to_frame(slot_of(i), offsetof(RowDotsArgs, inputs) + 8 * i);
      if (plan_.inputs[i] == RowDotsAccess::repeated) collect_input(i);
    }
  }

  void copy_to_frame(int to, size_t from) {
    mov(tmp_, ptr[args_ + from]);
    mov(ptr[rsp + to], tmp_);
  }

  // --- Sums of products

  void multiply() {
    point_at_a(ptr[rsp + kA], ptr[args_ + offsetof(RowDotsArgs, a_stride_bytes)]);
    mov(b_, ptr[args_ + offsetof(RowDotsArgs, b)]);
    mov(left_, ptr[rsp + kSteps]);
    for_steps(left_, std::max(2, parts()), [&](int steps, bool) {
      for (int step = 0; step < steps; ++step) add_products(step, false);
      advance_a(steps * lanes());
      add(b_, steps * plan_.columns * vec_bytes());
    });
    Xbyak::Label whole;
    cmp(qword[rsp + kTail], 0);
    je(whole, T_NEAR);
    add_products(0, true);
    L(whole);
  }

  void add_products(int step, bool is_tail) {
    const int part = step % parts();
    const auto b_at = [&](int column) { return b_ + (step * plan_.columns + column) * vec_bytes(); };
    if (is_tail && !has_masks())
      load_mask(mask_, [&] {
        mov(tmp_, lanes());
        sub(tmp_, ptr[rsp + kTail]);
      });
    const bool holds_b = plan_.rows > 1 || plan_.columns == 1;
    if (holds_b) {
      for (int column = 0; column < plan_.columns; ++column) load(work_[static_cast<size_t>(column)], b_at(column));
    }
    for (int row = 0; row < plan_.rows; ++row) {
      const Xbyak::RegExp at = a_at(row, step * lanes());
      if (plan_.columns == 1 && !is_tail) {
        vfmadd231ps(sum(row, part), work_[0], ptr[at]);
        continue;
      }
      load_row(a_vec_, at, is_tail);
      for (int column = 0; column < plan_.columns; ++column) {
        const Vec& to = sum(row * plan_.columns + column, part);
        if (holds_b) {
          vfmadd231ps(to, a_vec_, work_[static_cast<size_t>(column)]);
        } else {
          vfmadd231ps(to, a_vec_, ptr[b_at(column)]);
        }
      }
    }
  }

  void load_row(const Vec& into, const Xbyak::RegExp& at, bool is_tail) {
    if (!is_tail) return load(into, at);
    has_masks() ? vmovups(into | tail_k_ | T_z, ptr[at]) : vmaskmovps(into, mask_, ptr[at]);
  }

  void join_parts() {
    for (int count = parts(); count > 1; count /= 2) {
      for (int part = 0; part < count / 2; ++part) {
        for (int i = 0; i < outputs(); ++i) vaddps(sum(i, part), sum(i, part), sum(i, part + count / 2));
      }
    }
  }

  // Sums of pairs of vectors, lanes of one beside those of the other, then of pairs of these, until lane i of the first
  // one is output i. An output without a partner joins itself: what is left over is in lanes that nobody reads.
  void join_lanes() {
    for (int distance = 1; distance < lanes(); distance *= 2) {
      for (int i = 0; i < outputs(); i += 2 * distance) {
        join(distance, sum(i), i + distance < outputs() ? sum(i + distance) : sum(i));
      }
    }
  }

  void join(int distance, const Vec& x, const Vec& y) {
    const Vec& other = a_vec_;
    if (distance == 1) {
      vunpcklps(other, x, y);
      vunpckhps(x, x, y);
    } else if (distance == 2) {
      vunpcklpd(other, x, y);
      vunpckhpd(x, x, y);
    } else if (has_masks()) {
      // Parts of four lanes: 0 and 2 of both, 1 and 3 of both.
      const Xbyak::Zmm z(other.getIdx()), x512(x.getIdx()), y512(y.getIdx());
      vshuff32x4(z, x512, y512, 0x88);
      vshuff32x4(x512, x512, y512, 0xdd);
    } else {
      const Xbyak::Ymm z(other.getIdx()), x256(x.getIdx()), y256(y.getIdx());
      vperm2f128(z, x256, y256, 0x20);
      vperm2f128(x256, x256, y256, 0x31);
    }
    vaddps(x, x, other);
  }

  // --- Outputs

  void finish_tile() {
    if (!has_masks()) load_mask(mask_, [&] { mov(tmp_, lanes() - outputs()); });
    if (epilogue_) apply_epilogue();
    mov(tmp_, ptr[rsp + kC]);
    if (plan_.c == RowDotsAccess::dense) {
      has_masks() ? vmovups(ptr[tmp_] | outputs_k_, sum(0)) : vmaskmovps(ptr[tmp_], mask_, sum(0));
    } else {
      store(rsp + kVectors, sum(0));
      each_element(tmp_, offsetof(RowDotsArgs, c_row_bytes), offsetof(RowDotsArgs, c_column_bytes), [&](int i) {
        mov(left_.cvt32(), ptr[rsp + kVectors + i * kF32]);
        mov(ptr[at_], left_.cvt32());
      });
    }
    advance(kC, offsetof(RowDotsArgs, c_row_bytes));
    advance(kA, offsetof(RowDotsArgs, a_stride_bytes));
    for (size_t i = 0; i < plan_.inputs.size(); ++i) advance(slot_of(i), row_bytes_of(i));
  }

  void apply_epilogue() {
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      if (plan_.inputs[i] == RowDotsAccess::strided) collect_input(i);
    }
    std::vector<Vec> temps(sums_.begin() + 1, sums_.end());
    temps.insert(temps.end(), work_.begin(), work_.end());
    temps.push_back(a_vec_);
    std::vector<Vec> claimed;
    while (free_vecs() > 0) claimed.push_back(claim_vec("temp"));
    temps.insert(temps.end(), claimed.begin(), claimed.end());
    if (static_cast<int>(temps.size()) < epilogue_->temps_needed()) {
      throw JitError("the epilogue needs more registers than there are: " + plan_.key());
    }
    epilogue_->apply(sum(0), temps, [&](int slot, const Xbyak::Xmm& into) {
      const auto i = static_cast<size_t>(slot - 1);
      if (plan_.inputs[i] != RowDotsAccess::dense) return load(into, rsp + vector_of(i));
      mov(tmp_, ptr[rsp + slot_of(i)]);
      has_masks() ? vmovups(into | outputs_k_ | T_z, ptr[tmp_]) : vmaskmovps(into, mask_, ptr[tmp_]);
    });
    for (const Vec& vec : claimed) release(vec);
  }

  // The tile's elements of an input, one behind the other in the frame.
  void collect_input(size_t i) {
    mov(tmp_, ptr[rsp + slot_of(i)]);
    each_element(tmp_, row_bytes_of(i), column_bytes_of(i), [&](int element) {
      mov(left_.cvt32(), ptr[at_]);
      mov(ptr[rsp + vector_of(i) + element * kF32], left_.cvt32());
    });
  }

  // body(i) with element i at at_. Overwrites `row`.
  template <class Body>
  void each_element(const Gpr& row, size_t row_bytes, size_t column_bytes, Body body) {
    for (int i = 0; i < outputs(); ++i) {
      if (i % plan_.columns == 0) {
        if (i > 0) add(row, ptr[args_ + row_bytes]);
        mov(at_, row);
      } else {
        add(at_, ptr[args_ + column_bytes]);
      }
      body(i);
    }
  }

  void advance(int slot, size_t row_bytes) {
    imul(tmp_, ptr[args_ + row_bytes], plan_.rows);
    add(ptr[rsp + slot], tmp_);
  }

  // The first lanes() - tmp_ lanes, `count` having put that into tmp_.
  template <class Count>
  void load_mask(const Vec& vec, Count count) {
    count();
    lea(at_, ptr[rip + mask_table_]);
    vmovups(vec, ptr[at_ + tmp_ * kF32]);
    uses_mask_table_ = true;
  }

  void emit_constants() {
    if (epilogue_) epilogue_->emit_constants();
    if (!uses_mask_table_) return;
    align(kLine);
    L(mask_table_);
    for (int i = 0; i < lanes(); ++i) dd(~0U);
    for (int i = 0; i < lanes(); ++i) dd(0);
  }

  const RowDotsPlan plan_;
  std::unique_ptr<EpilogueEmitter> epilogue_;
  const Gpr args_ = argument(0);
  const Gpr b_ = claim_gpr("b"), left_ = claim_gpr("left"), tmp_ = claim_gpr("tmp"), at_ = claim_gpr("at");
  const std::vector<Vec> sums_ = claim_vecs("sums", outputs() * parts());
  const std::vector<Vec> work_ = claim_vecs("columns", plan_.rows > 1 || plan_.columns == 1 ? plan_.columns : 0);
  const Vec a_vec_ = claim_vec("row");
  const Vec mask_ = has_masks() ? Vec() : claim_vec("mask");
  bool uses_mask_table_ = false;
  const Xbyak::Opmask tail_k_ = k1, outputs_k_ = k2;
  Xbyak::Label mask_table_;
};

}  // namespace

bool RowDotsPlan::is_valid() const {
  if (rows < 1 || columns < 1 || columns > most_columns(isa) || rows * columns > vector_lanes(isa)) return false;
  if (c == RowDotsAccess::repeated || inputs.size() > static_cast<size_t>(kMaxGemmInputs)) return false;
  return inputs.empty() || inputs.size() + 1 == epilogue.inputs.size();
}

std::string RowDotsPlan::key() const {
  static constexpr char kAccess[] = {'d', 'r', 's'};
  std::string text = fmt::format("row_dots {} {}x{} {}", name_of(isa), rows, columns, kAccess[static_cast<int>(c)]);
  if (!epilogue.nodes.empty()) text += " " + to_string(epilogue) + " ";
  for (const RowDotsAccess access : inputs) text += kAccess[static_cast<int>(access)];
  return text;
}

RowDots row_dots(const RowDotsPlan& plan) {
  if (!plan.is_valid()) throw JitError("out of range: " + plan.key());
  return RowDots(cached_code(plan.key(), [&] { return RowDotsEmitter(plan).emit(); }));
}

}  // namespace lathe
