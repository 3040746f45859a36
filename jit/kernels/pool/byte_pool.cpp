// Maxima of bytes in windows that slide.
#include <map>
#include <span>

#include "jit/kernels/pool/pool_rows.h"

namespace lathe {
namespace {

constexpr int64_t kQuad = 4;  // pixels of 16 bytes in a vector

int64_t quad_of(int64_t pixel) { return pixel >= 0 ? pixel / kQuad : -((kQuad - 1 - pixel) / kQuad); }

// Pixels of 16 bytes are taken four at a time where a tile's windows are whole and its pixels inside of the row: the
// maxima along y of quads of pixels that follow each other; then of each tap's pixels, permuted out of them. Others go
// one by one.
class BytePoolEmitter : public PoolRowsEmitter {
 public:
  BytePoolEmitter(Isa isa, const PoolShape& shape) : PoolRowsEmitter(isa, shape) {
    find_quads();
    accumulators_ = claim_vecs("pixel", static_cast<int>(kQuad));
    other_ = claim_vec("another");
    if (!has_quads_) return;
    for (int64_t quad = first_; quad <= last_; ++quad) quads_.emplace(quad, claim_vec("quad"));
    for (const auto& key : phases_needed_) phases_.emplace(key, claim_vec("phase"));
  }

  std::shared_ptr<const CodePages> emit(const std::vector<int64_t>& rows, const std::string& name) {
    emit_rows(rows);
    return finish(name);
  }

 private:
  // Pixels of a tile's first window and every `stride`th behind it that a tap reads, by fours: the phase is the
  // tap's place between strides.
  struct Place {
    int64_t phase, vector, shift;  // of four pixels from `shift` on, the rest in the next vector
  };
  using PhaseKey = std::pair<int64_t, int64_t>;  // phase and vector

  Place place_of(const ConvTap& tap) const {
    const int64_t stride = shape_.windows.x.stride;
    const int64_t phase = ((tap.offset % stride) + stride) % stride, step = (tap.offset - phase) / stride;
    const int64_t vector = quad_of(step);
    return {phase, vector, step - vector * kQuad};
  }

  void find_quads() {
    const ConvAxis& x = shape_.windows.x;
    if (!has_masks() || lanes() != 16 || x.stride > 2) return;
    const auto [least, most] = std::minmax_element(
        x.taps.begin(), x.taps.end(), [](const ConvTap& a, const ConvTap& b) { return a.offset < b.offset; });
    first_ = quad_of(least->offset);
    last_ = quad_of((kQuad - 1) * x.stride + most->offset);
    for (const ConvTap& tap : x.taps) {
      const Place place = place_of(tap);
      if (x.stride == 1) continue;
      for (int64_t i = 0; i <= (place.shift > 0 ? 1 : 0); ++i) {
        const PhaseKey key{place.phase, place.vector + i};
        if (std::find(phases_needed_.begin(), phases_needed_.end(), key) == phases_needed_.end())
          phases_needed_.push_back(key);
      }
    }
    const auto vectors = last_ - first_ + 1 + static_cast<int64_t>(phases_needed_.size());
    has_quads_ = vectors + kQuad + 1 <= free_vecs();
  }

  // The quad that the first tap reads begins inside of the row where the tap does.
  bool takes_quads(int64_t col) const {
    const ConvAxis& x = shape_.windows.x;
    if (!has_quads_ || col % kQuad != 0 || col + kQuad > x.out || col * x.stride + (last_ + 1) * kQuad > x.in)
      return false;
    return std::all_of(x.taps.begin(), x.taps.end(),
                       [&](const ConvTap& tap) { return x.is_inside(col, tap) && x.is_inside(col + kQuad - 1, tap); });
  }

  int64_t tile_size(int64_t) const override { return kQuad; }
  std::string tile_key(int64_t col, int64_t size) const override {
    return PoolRowsEmitter::tile_key(col, size) + (takes_quads(col) ? " quads" : "");
  }
  int pixel_bytes() const override { return lanes(); }

  void emit_tile(int64_t row, int64_t col, int64_t size) override {
    takes_quads(col) ? emit_quads(row) : emit_pixels(row, col, size);
  }

  // ---- Four pixels together

  static Xbyak::Zmm zmm(const Vec& vec) { return Xbyak::Zmm(vec.getIdx()); }
  void maximum(const Vec& into, const Vec& a, const Xbyak::Operand& b) {
    shape_.dtype == DType::u8 ? vpmaxub(into, a, b) : vpmaxsb(into, a, b);
  }

  void emit_quads(int64_t row) {
    load_quads(row);
    for (const auto& [key, vec] : phases_) pick_phase(key, zmm(vec));
    const Xbyak::Zmm result = zmm(accumulators_[0]), moved = zmm(other_);
    const std::span<const ConvTap> taps = shape_.windows.x.taps;
    for (const ConvTap& tap : taps) {
      const bool is_first = &tap == taps.data();
      const Place place = place_of(tap);
      const Xbyak::Zmm vec = zmm(phase({place.phase, place.vector}));
      const Xbyak::Zmm into = is_first ? result : moved;
      if (place.shift > 0) {
        const auto words = static_cast<uint8_t>(2 * place.shift);
        valignq(into, zmm(phase({place.phase, place.vector + 1})), vec, words);
      } else if (is_first) {
        vmovaps(result, vec);
      }
      if (!is_first) maximum(result, result, place.shift > 0 ? moved : vec);
    }
    vmovups(ptr[target_], result);
  }

  void load_quads(int64_t row) {
    const ConvAxis& y = shape_.windows.y;
    bool is_first = true;
    for (const ConvTap& ty : y.taps) {
      if (!y.is_inside(row, ty)) continue;
      for (const auto& [quad, vec] : quads_) {
        const Xbyak::Address from = ptr[source_ + source_offset(ty, quad * kQuad)];
        is_first ? vmovups(zmm(vec), from) : maximum(zmm(vec), zmm(vec), from);
      }
      is_first = false;
    }
    if (is_first) throw JitError("a pooling window is empty");
  }

  const Vec& phase(const PhaseKey& key) const {
    return shape_.windows.x.stride == 1 ? quads_.at(key.second) : phases_.at(key);
  }

  // Every second pixel of two quads; of one that no tap needs anything goes.
  void pick_phase(const PhaseKey& key, const Xbyak::Zmm& into) {
    const auto low = quads_.find(2 * key.second), high = quads_.find(2 * key.second + 1);
    const auto either = low == quads_.end() ? high : low;
    if (either == quads_.end()) throw JitError("a pooling tap has no pixels");
    const Xbyak::Zmm first = zmm(either->second), second = zmm((high == quads_.end() ? low : high)->second);
    vshufi64x2(into, first, second, key.first == 0 ? 0b10001000 : 0b11011101);
  }

  // ---- One by one: 16 or 8 bytes

  void load_pixel(const Xbyak::Xmm& pixel, const Xbyak::RegExp& at) {
    lanes() == 16 ? vmovups(pixel, ptr[at]) : vmovq(pixel, ptr[at]);
  }

  void emit_pixels(int64_t row, int64_t col, int64_t size) {
    const Xbyak::Xmm other(other_.getIdx());
    for_each_element(row, col, size, [&](size_t i, const Xbyak::RegExp& from, bool is_first) {
      const Xbyak::Xmm pixel(accumulators_[i].getIdx());
      load_pixel(is_first ? pixel : other, from);
      if (!is_first) maximum(pixel, pixel, other);
    });
    for (int64_t i = 0; i < size; ++i) {
      const Xbyak::Xmm pixel(accumulators_[static_cast<size_t>(i)].getIdx());
      const Xbyak::Address to = ptr[target_ + static_cast<int>(i * pixel_bytes())];
      lanes() == 16 ? vmovups(to, pixel) : vmovq(to, pixel);
    }
  }

  bool has_quads_ = false;
  int64_t first_ = 0, last_ = 0;  // quads that a tile's windows reach, from the tile's first pixel on
  std::vector<PhaseKey> phases_needed_;
  std::map<int64_t, Vec> quads_;
  std::map<PhaseKey, Vec> phases_;  // with stride 2
  std::vector<Vec> accumulators_;
  Vec other_;
};

}  // namespace

std::shared_ptr<const CodePages> emit_byte_pool(Isa isa, const PoolShape& shape, const std::vector<int64_t>& rows,
                                                const std::string& name) {
  return BytePoolEmitter(isa, shape).emit(rows, name);
}

}  // namespace lathe
