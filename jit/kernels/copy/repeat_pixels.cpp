#include "jit/kernels/copy/repeat_pixels.h"

#include <algorithm>
#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

// Vectors that are loaded together, and then stored to one row after the other.
constexpr int kVectors = 8, kPermuted = 4;

class RepeatPixelsEmitter : public Emitter {
 public:
  explicit RepeatPixelsEmitter(const RepeatPixelsPlan& plan) : Emitter(plan.isa), permutes_(plan.permutes) {}

  void emit() {
    claim();
    begin();
    mov(from_, ptr[args_ + offsetof(RepeatPixelsArgs, from)]);
    mov(to_, ptr[args_ + offsetof(RepeatPixelsArgs, to)]);
    mov(offsets_, ptr[args_ + offsetof(RepeatPixelsArgs, offsets)]);
    mov(left_, ptr[args_ + offsetof(RepeatPixelsArgs, elements)]);
    mov(row_bytes_, ptr[args_ + offsetof(RepeatPixelsArgs, row_bytes)]);
    if (permutes_) mov(order_, ptr[args_ + offsetof(RepeatPixelsArgs, order)]);
    const auto together = static_cast<int>(vectors_.size());
    while_at_least(left_, together * lanes(), [&] { repeat(together); });
    while_at_least(left_, lanes(), [&] { repeat(1); });
    if (permutes_) repeat_last();
    end();
  }

 private:
  void claim() {
    args_ = argument(0);
    from_ = claim_gpr("from");
    to_ = claim_gpr("to");
    offsets_ = claim_gpr("offsets");
    left_ = claim_gpr("elements left");
    row_bytes_ = claim_gpr("row bytes");
    row_ = claim_gpr("row");
    rows_left_ = claim_gpr("rows left");
    offset_ = claim_gpr("offset");
    if (permutes_) order_ = claim_gpr("order of elements");
    vectors_ = claim_vecs("vectors", permutes_ ? kPermuted : kVectors);
  }

  // What is left ends a vector.
  void repeat_last() {
    Xbyak::Label done;
    test(left_, left_);
    jz(done, T_NEAR);
    lea(to_, ptr[to_ + left_ * 4 - vec_bytes()]);
    repeat(1);
    L(done);
  }

  void repeat(int count) {
    for (int i = 0; i < count; ++i) {
      movsxd(offset_, dword[offsets_ + i * 4]);
      pick(vectors_[static_cast<size_t>(i)], i);
    }
    mov(row_, to_);
    mov(rows_left_, ptr[args_ + offsetof(RepeatPixelsArgs, rows)]);
    loop_down(rows_left_, [&] {
      for (int i = 0; i < count; ++i) store(row_ + i * vec_bytes(), vectors_[static_cast<size_t>(i)]);
      add(row_, row_bytes_);
    });
    add(offsets_, count * 4);
    if (permutes_) add(order_, count * vec_bytes());
    add(to_, count * vec_bytes());
  }

  void pick(const Vec& vec, int number) {
    if (!permutes_) return load(vec, from_ + offset_);
    load(vec, order_ + number * vec_bytes());
    if (has_masks()) {
      vpermps(Xbyak::Zmm(vec.getIdx()), Xbyak::Zmm(vec.getIdx()), ptr[from_ + offset_]);
    } else {
      vpermps(Xbyak::Ymm(vec.getIdx()), Xbyak::Ymm(vec.getIdx()), ptr[from_ + offset_]);
    }
  }

  const bool permutes_;
  Gpr args_, from_, to_, offsets_, order_, left_, row_bytes_, row_, rows_left_, offset_;
  std::vector<Vec> vectors_;
};

}  // namespace

std::optional<ElementPicks> element_picks(std::span<const int32_t> places, int64_t extent, Isa isa) {
  const auto lanes = static_cast<size_t>(vector_lanes(isa));
  const auto widest = static_cast<int32_t>(lanes);
  if (places.size() < lanes || extent < widest || extent > INT32_MAX / 4) return std::nullopt;
  ElementPicks picks;
  for (size_t begin = 0; begin < places.size(); begin += lanes) {
    const auto vector = places.subspan(std::min(begin, places.size() - lanes), lanes);
    const auto [least, most] = std::minmax_element(vector.begin(), vector.end());
    const int32_t first = std::min(*least, static_cast<int32_t>(extent) - widest);
    if (*most - first >= widest) return std::nullopt;
    picks.offsets.push_back(first * 4);
    for (const int32_t place : vector) picks.order.push_back(place - first);
  }
  return picks;
}

Kernel<RepeatPixelsFn> repeat_pixels_kernel(const RepeatPixelsPlan& plan) {
  const std::string key = vector_set(plan.isa) + (plan.permutes ? " repeat permuted elements" : " repeat pixels");
  return Kernel<RepeatPixelsFn>(cached_code(key, [&] {
    RepeatPixelsEmitter emitter(plan);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
