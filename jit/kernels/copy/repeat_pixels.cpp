#include "jit/kernels/copy/repeat_pixels.h"

#include <cstddef>

#include "jit/emitter.h"

namespace lathe {
namespace {

constexpr int kPixels = 8;  // loaded together, and then stored to one row after the other

class RepeatPixelsEmitter : public Emitter {
 public:
  explicit RepeatPixelsEmitter(Isa isa) : Emitter(isa) {}

  void emit() {
    claim();
    begin();
    mov(from_, ptr[args_ + offsetof(RepeatPixelsArgs, from)]);
    mov(to_, ptr[args_ + offsetof(RepeatPixelsArgs, to)]);
    mov(offsets_, ptr[args_ + offsetof(RepeatPixelsArgs, offsets)]);
    mov(left_, ptr[args_ + offsetof(RepeatPixelsArgs, pixels)]);
    mov(row_bytes_, ptr[args_ + offsetof(RepeatPixelsArgs, row_bytes)]);
    while_at_least(left_, kPixels, [&] { repeat(kPixels); });
    while_at_least(left_, 1, [&] { repeat(1); });
    end();
  }

 private:
  void claim() {
    args_ = argument(0);
    from_ = claim_gpr("from");
    to_ = claim_gpr("to");
    offsets_ = claim_gpr("offsets");
    left_ = claim_gpr("pixels left");
    row_bytes_ = claim_gpr("row bytes");
    row_ = claim_gpr("row");
    rows_left_ = claim_gpr("rows left");
    offset_ = claim_gpr("offset");
    pixels_ = claim_vecs("pixels", kPixels);
  }

  void repeat(int count) {
    for (int i = 0; i < count; ++i) {
      movsxd(offset_, dword[offsets_ + i * 4]);
      load(pixels_[static_cast<size_t>(i)], from_ + offset_);
    }
    mov(row_, to_);
    mov(rows_left_, ptr[args_ + offsetof(RepeatPixelsArgs, rows)]);
    loop_down(rows_left_, [&] {
      for (int i = 0; i < count; ++i) store(row_ + i * vec_bytes(), pixels_[static_cast<size_t>(i)]);
      add(row_, row_bytes_);
    });
    add(offsets_, count * 4);
    add(to_, count * vec_bytes());
  }

  Gpr args_, from_, to_, offsets_, left_, row_bytes_, row_, rows_left_, offset_;
  std::vector<Vec> pixels_;
};

}  // namespace

Kernel<RepeatPixelsFn> repeat_pixels_kernel(Isa isa) {
  const std::string key = std::string(has_avx512(isa) ? "avx512 " : "avx2 ") + "repeat pixels";
  return Kernel<RepeatPixelsFn>(cached_code(key, [&] {
    RepeatPixelsEmitter emitter(isa);
    emitter.emit();
    return emitter.finish(key);
  }));
}

}  // namespace lathe
