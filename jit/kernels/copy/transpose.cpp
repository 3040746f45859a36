#include "jit/kernels/copy/transpose.h"

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kStripTiles = 4;

// A vector holds one 128-bit part of several rows: part g (4 columns) of rows i, i + 4, i + 8, i + 12. Filling it costs
// loads only (an insert from memory needs no shuffle unit); then a 4x4 transpose inside the 128-bit parts gives whole
// output rows: two shuffles a vector instead of four.
class TransposeEmitter : public Emitter {
 public:
  explicit TransposeEmitter(const TransposePlan& plan) : Emitter(plan.isa), plan_(plan) {
    if (plan.rows < 0 || plan.rows >= lanes() || plan.columns < 0 || plan.columns >= lanes()) {
      throw JitError("transpose: " + to_string(plan) + " is out of range");
    }
  }

  void emit() {
    claim();
    begin();
    prepare();
    for_each_tile([&] {
      load_tile();
      for (int part = 0; part * 4 < tile_columns(); ++part) transpose_part(part);
    });
    end();
  }

 private:
  int tile_rows() const { return plan_.rows == 0 ? lanes() : plan_.rows; }
  int tile_columns() const { return plan_.columns == 0 ? lanes() : plan_.columns; }
  bool stores_whole() const { return plan_.rows == 0 || plan_.zero_fill; }
  int parts() const { return lanes() / 4; }

  void claim() {
    from_ = argument(0);
    to_ = argument(1);
    from_stride_ = argument(2);
    to_stride_ = argument(3);
    last_row_ = argument(4);
    last_column_ = argument(5);
    row_ = claim_gpr("row");
    column_ = claim_gpr("column");
    if (plan_.rows == 0 && plan_.columns == 0) strip_ = claim_gpr("strip");
    source_ = claim_gpr("source");
    target_ = claim_gpr("target");
    from_stride_4_ = claim_gpr("from stride x 4");
    from_stride_12_ = claim_gpr("from stride x 12");
    to_stride_3_ = claim_gpr("to stride x 3");
    tile_ = claim_vecs("tile", lanes());
    temps_ = claim_vecs("temps", 4);
    spare_ = claim_vec("spare");
  }

  void prepare() {
    if (plan_.rows == 0) sub(last_row_, lanes());
    if (plan_.columns == 0) sub(last_column_, lanes());
    lea(from_stride_4_, ptr[from_stride_ * 4]);
    lea(from_stride_12_, ptr[from_stride_4_ + from_stride_4_ * 2]);
    lea(to_stride_3_, ptr[to_stride_ + to_stride_ * 2]);
    if (!stores_whole() && has_masks()) {
      mov(row_.cvt32(), (1 << plan_.rows) - 1);
      kmovw(row_mask_, row_.cvt32());
    }
  }

  // The last tile of a row or column is moved back to end with the matrix. A large matrix goes strip by strip of some
  // tiles side by side: lines of a row that lie behind each other are read before what was fetched ahead is lost, where
  // many rows fall into few sets of a cache.
  template <class Body>
  void for_each_tile(Body body) {
    const auto tile = [&] {
      begin_tile();
      body();
    };
    const auto down = [&](auto row) {
      xor_(row_.cvt32(), row_.cvt32());
      loop_over(row_, last_row_, plan_.rows == 0, row);
    };
    xor_(column_.cvt32(), column_.cvt32());
    if (plan_.rows != 0 || plan_.columns != 0)
      return loop_over(column_, last_column_, plan_.columns == 0, [&] { down(tile); });
    xor_(strip_.cvt32(), strip_.cvt32());
    Xbyak::Label top;
    L(top);
    down([&] {
      mov(column_, strip_);
      along_strip(tile);
    });
    add(strip_, kStripTiles * lanes());
    lea(source_, ptr[last_column_ + lanes()]);
    cmp(strip_, source_);
    jl(top, T_NEAR);
  }

  // Tiles from column_ on.
  template <class Body>
  void along_strip(Body body) {
    Xbyak::Label top, done;
    L(top);
    cmp(column_, last_column_);
    cmovg(column_, last_column_);
    body();
    add(column_, lanes());
    lea(source_, ptr[strip_ + kStripTiles * lanes()]);
    cmp(column_, source_);
    jge(done, T_NEAR);
    lea(source_, ptr[last_column_ + lanes()]);
    cmp(column_, source_);
    jl(top, T_NEAR);
    L(done);
  }

  void begin_tile() {
    mov(source_, row_);
    imul(source_, from_stride_);
    add(source_, from_);
    lea(source_, ptr[source_ + column_ * 4]);
    mov(target_, column_);
    imul(target_, to_stride_);
    add(target_, to_);
    lea(target_, ptr[target_ + row_ * 4]);
  }

  template <class Body>
  void loop_over(const Gpr& at, const Gpr& last, bool repeats, Body body) {
    if (!repeats) return body();
    Xbyak::Label top, done;
    L(top);
    body();
    cmp(at, last);
    jge(done, T_NEAR);
    add(at, lanes());
    cmp(at, last);
    cmovg(at, last);
    jmp(top, T_NEAR);
    L(done);
  }

  void load_tile() {
    for (int i = 0; i < 4; ++i) {
      for (int part = 0; part * 4 < tile_columns(); ++part) load_part(part, i);
      if (i < 3) add(source_, from_stride_);
    }
  }

  // Where row i + 4 * group begins, given that source_ is at row i.
  Xbyak::RegExp row_of(int group) const {
    if (group == 0) return source_;
    if (group == 3) return source_ + from_stride_12_;
    return source_ + from_stride_4_ * group;
  }

  void load_part(int part, int i) {
    const Vec& vec = tile_[static_cast<size_t>(part * 4 + i)];
    const Xbyak::Xmm low(vec.getIdx()), spare(spare_.getIdx());
    const int width = std::min(4, tile_columns() - part * 4);
    if (i >= tile_rows()) {
      zero(vec);
      return;
    }
    load_elements(low, row_of(0) + part * 16, width);
    for (int group = 1; group < parts() && i + 4 * group < tile_rows(); ++group) {
      const Xbyak::RegExp at = row_of(group) + part * 16;
      if (width < 4) load_elements(spare, at, width);
      if (has_masks()) {
        if (width < 4) {
          vinsertf32x4(Xbyak::Zmm(vec.getIdx()), Xbyak::Zmm(vec.getIdx()), spare, static_cast<uint8_t>(group));
        } else {
          vinsertf32x4(Xbyak::Zmm(vec.getIdx()), Xbyak::Zmm(vec.getIdx()), ptr[at], static_cast<uint8_t>(group));
        }
      } else if (width < 4) {
        vinsertf128(Xbyak::Ymm(vec.getIdx()), Xbyak::Ymm(vec.getIdx()), spare, static_cast<uint8_t>(group));
      } else {
        vinsertf128(Xbyak::Ymm(vec.getIdx()), Xbyak::Ymm(vec.getIdx()), ptr[at], static_cast<uint8_t>(group));
      }
    }
  }

  // `width` elements, zeros behind them in the whole register.
  void load_elements(const Xbyak::Xmm& into, const Xbyak::RegExp& at, int width) {
    if (width == 4) vmovups(into, ptr[at]);
    if (width == 1) vmovss(into, dword[at]);
    if (width == 2 || width == 3) vmovq(into, qword[at]);
    if (width == 3) vinsertps(into, into, dword[at + 8], 0x20);
  }

  void transpose_part(int part) {
    const auto row = [&](int i) { return tile_[static_cast<size_t>(part * 4 + i)]; };
    vunpcklps(temps_[0], row(0), row(1));
    vunpckhps(temps_[1], row(0), row(1));
    vunpcklps(temps_[2], row(2), row(3));
    vunpckhps(temps_[3], row(2), row(3));
    vunpcklpd(row(0), temps_[0], temps_[2]);
    vunpckhpd(row(1), temps_[0], temps_[2]);
    vunpcklpd(row(2), temps_[1], temps_[3]);
    vunpckhpd(row(3), temps_[1], temps_[3]);
    const Xbyak::RegExp places[] = {target_, target_ + to_stride_, target_ + to_stride_ * 2, target_ + to_stride_3_};
    for (int i = 0; i < 4 && part * 4 + i < tile_columns(); ++i) store_row(places[i], row(i));
    if ((part + 1) * 4 < tile_columns()) lea(target_, ptr[target_ + to_stride_ * 4]);
  }

  void store_row(const Xbyak::RegExp& at, const Vec& vec) {
    if (stores_whole()) return store(at, vec);
    if (has_masks()) {
      vmovups(ptr[at] | row_mask_, vec);
      return;
    }
    const Xbyak::Xmm low(vec.getIdx());
    if (plan_.rows < 4) return store_elements(at, low, plan_.rows);
    vmovups(ptr[at], low);
    if (plan_.rows == 4) return;
    vextractf128(low, Xbyak::Ymm(vec.getIdx()), 1);
    store_elements(at + 16, low, plan_.rows - 4);
  }

  void store_elements(const Xbyak::RegExp& at, const Xbyak::Xmm& vec, int width) {
    if (width == 1) vmovss(dword[at], vec);
    if (width >= 2) vmovlps(qword[at], vec);
    if (width == 3) vextractps(dword[at + 8], vec, 2);
  }

  TransposePlan plan_;
  Gpr from_, to_, from_stride_, to_stride_, last_row_, last_column_, row_, column_, strip_, source_, target_,
      from_stride_4_, from_stride_12_, to_stride_3_;
  std::vector<Vec> tile_, temps_;
  Vec spare_;
  Xbyak::Opmask row_mask_{1};
};

}  // namespace

std::string to_string(const TransposePlan& plan) {
  return "transpose rows=" + std::to_string(plan.rows) + " columns=" + std::to_string(plan.columns) +
         (plan.zero_fill ? " zero_fill" : "");
}

TransposePlan plan_transpose(Isa isa, int64_t rows, int64_t columns, bool zero_fill) {
  const int lanes = vector_lanes(isa);
  TransposePlan plan{isa, 0, 0, false};
  if (rows < lanes) {
    plan.rows = static_cast<int>(rows);
    plan.zero_fill = zero_fill;
  }
  if (columns < lanes) plan.columns = static_cast<int>(columns);
  return plan;
}

Kernel<TransposeFn> transpose_kernel(const TransposePlan& plan) {
  const std::string key = vector_set(plan.isa) + " " + to_string(plan);
  return Kernel<TransposeFn>(cached_code(key, [&] {
    TransposeEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
