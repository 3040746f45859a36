#include "jit/kernels/pool/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "jit/emitter.h"
#include "jit/kernels/conv/conv_tiling.h"

namespace lathe {
namespace {

constexpr int kPixels = 8;          // accumulators in a tile: as many independent chains
constexpr int kMostLoads = 60'000;  // in all tiles that are emitted

std::string signature_of(const ConvAxis& axis, const std::vector<int>& counts, int64_t begin, int64_t size) {
  std::string signature = valid_taps(axis, {begin, size});
  if (counts.empty()) return signature;
  for (int64_t i = begin; i < begin + size; ++i) signature += "/" + std::to_string(counts[static_cast<size_t>(i)]);
  return signature;
}

class PoolBase : public Emitter {
 public:
  PoolBase(Isa isa, PoolKind kind) : Emitter(isa), kind_(kind) {}

 protected:
  void combine(const Vec& into, const Xbyak::Operand& value) {
    if (kind_ == PoolKind::max) {
      vmaxps(into, into, value);
    } else {
      vaddps(into, into, value);
    }
  }
  const PoolKind kind_;
};

class PoolEmitter : public PoolBase {
 public:
  PoolEmitter(Isa isa, PoolKind kind, const PoolShape& shape)
      : PoolBase(isa, kind), shape_(shape), accumulators_(claim_vecs("pixel", kPixels)), scale_(claim_vec("scale")) {
    columns_ = accumulators_;
    for (const Vec& more : claim_vecs("column", free_vecs() - 1)) columns_.push_back(more);
    result_ = claim_vec("result");
  }

  std::shared_ptr<const CodePages> emit(const std::vector<int64_t>& rows, const std::string& name) {
    for (int64_t row : rows) {
      begin_entry();
      emit_row(row);
    }
    for (auto& [divisor, label] : scales_) {
      align(4);
      L(label);
      const float scale = 1.0f / static_cast<float>(divisor);
      uint32_t bits = 0;
      std::memcpy(&bits, &scale, sizeof bits);
      dd(bits);
    }
    return finish(name);
  }

 private:
  void emit_row(int64_t row) {
    begin();
    const ConvAxis& x = shape_.windows.x;
    for (int64_t col = 0; col < x.out;) {
      const int64_t size = std::min<int64_t>(kPixels, x.out - col);
      const std::string signature = signature_of(x, shape_.x_counts, col, size);
      int64_t repeats = 1;
      while (col + (repeats + 1) * size <= x.out &&
             signature_of(x, shape_.x_counts, col + repeats * size, size) == signature) {
        ++repeats;
      }
      if (repeats == 1) {
        emit_tile(row, col, size);
      } else {
        mov(left_, repeats);
        loop_down(left_, [&] { emit_tile(row, col, size); });
      }
      col += repeats * size;
    }
    end();
  }

  // Columns of the input that the windows of a tile reach, all of them inside.
  struct Columns {
    int64_t begin = 0, end = 0;
  };
  Columns columns_of(int64_t col, int64_t size) const {
    const ConvAxis& x = shape_.windows.x;
    Columns columns{x.in, 0};
    for (const ConvTap& tap : x.taps) {
      columns.begin = std::min(columns.begin, std::max<int64_t>(col * x.stride + tap.offset, 0));
      columns.end = std::max(columns.end, std::min((col + size - 1) * x.stride + tap.offset + 1, x.in));
    }
    return columns;
  }

  // Windows that overlap share what is summed along y: a column at a time, which then stays in its register.
  bool shares_columns(int64_t row, int64_t col, int64_t size) const {
    const ConvAxis &y = shape_.windows.y, &x = shape_.windows.x;
    const auto inside = std::count_if(y.taps.begin(), y.taps.end(), [&](const auto& t) { return y.is_inside(row, t); });
    const Columns columns = columns_of(col, size);
    const int64_t count = columns.end - columns.begin;
    return !has_bytes() && inside > 1 && count < size * static_cast<int64_t>(x.taps.size()) &&
           count <= static_cast<int64_t>(columns_.size());
  }

  void emit_columns(int64_t row, int64_t col, int64_t size) {
    const ConvAxis &y = shape_.windows.y, &x = shape_.windows.x;
    const Columns columns = columns_of(col, size);
    const auto column = [&](int64_t at) { return columns_[static_cast<size_t>(at - columns.begin)]; };
    bool is_first = true;
    for (const ConvTap& ty : y.taps) {
      if (!y.is_inside(row, ty)) continue;
      for (int64_t at = columns.begin; at < columns.end; ++at) {
        const auto from = source_ + load_offset((ty.offset * x.in + at - col * x.stride) * pixel_bytes());
        is_first ? load(column(at), from) : combine(column(at), ptr[from]);
      }
      is_first = false;
    }
    for (int64_t i = 0; i < size; ++i) {
      std::vector<Vec> parts;
      for (const ConvTap& tx : x.taps) {
        if (x.is_inside(col + i, tx)) parts.push_back(column((col + i) * x.stride + tx.offset));
      }
      if (parts.empty()) throw JitError("a pooling window is empty");
      if (parts.size() == 1) {
        vmovaps(result_, parts[0]);
      } else {
        join(result_, parts[0], parts[1]);
      }
      for (size_t part = 2; part < parts.size(); ++part) combine(result_, parts[part]);
      finish_pixel(row, col + i, result_);
      store_pixel(target_ + static_cast<int>(i * pixel_bytes()), result_);
    }
  }

  void join(const Vec& into, const Vec& a, const Vec& b) {
    kind_ == PoolKind::max ? vmaxps(into, a, b) : vaddps(into, a, b);
  }

  int load_offset(int64_t bytes) {
    if (std::abs(bytes) > INT32_MAX / 2) throw JitError("pooling rows are too far apart");
    if (++loads_ > kMostLoads) throw JitError("pooling windows are too large");
    return static_cast<int>(bytes);
  }

  void emit_tile(int64_t row, int64_t col, int64_t size) {
    if (shares_columns(row, col, size)) {
      emit_columns(row, col, size);
    } else {
      emit_windows(row, col, size);
    }
    add(source_, static_cast<uint32_t>(size * shape_.windows.x.stride * pixel_bytes()));
    add(target_, static_cast<uint32_t>(size * pixel_bytes()));
  }

  void emit_windows(int64_t row, int64_t col, int64_t size) {
    const ConvAxis &y = shape_.windows.y, &x = shape_.windows.x;
    std::vector<bool> is_started(static_cast<size_t>(size), false);
    for (const ConvTap& ty : y.taps) {
      if (!y.is_inside(row, ty)) continue;
      for (const ConvTap& tx : x.taps) {
        for (int64_t i = 0; i < size; ++i) {
          if (!x.is_inside(col + i, tx)) continue;
          const int offset = load_offset((ty.offset * x.in + i * x.stride + tx.offset) * pixel_bytes());
          const Vec& value = accumulators_[static_cast<size_t>(i)];
          if (is_started[static_cast<size_t>(i)]) {
            join_pixel(value, source_ + offset);
          } else {
            load_pixel(value, source_ + offset);
          }
          is_started[static_cast<size_t>(i)] = true;
        }
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      // A window that lies in the padding has no elements; the reference knows what that means.
      if (!is_started[static_cast<size_t>(i)]) throw JitError("a pooling window is empty");
      finish_pixel(row, col + i, accumulators_[static_cast<size_t>(i)]);
      store_pixel(target_ + static_cast<int>(i * pixel_bytes()), accumulators_[static_cast<size_t>(i)]);
    }
  }

  // The channels of one pixel: a vector of float32, or 16 or 8 bytes.
  bool has_bytes() const { return shape_.dtype != DType::f32; }
  int pixel_bytes() const { return has_bytes() ? lanes() : vec_bytes(); }

  void load_pixel(const Vec& value, const Xbyak::RegExp& at) {
    if (!has_bytes()) return load(value, at);
    const Xbyak::Xmm low(value.getIdx());
    lanes() == 16 ? vmovups(low, ptr[at]) : vmovq(low, ptr[at]);
  }
  void store_pixel(const Xbyak::RegExp& at, const Vec& value) {
    if (!has_bytes()) return store(at, value);
    const Xbyak::Xmm low(value.getIdx());
    lanes() == 16 ? vmovups(ptr[at], low) : vmovq(ptr[at], low);
  }
  void join_pixel(const Vec& value, const Xbyak::RegExp& at) {
    if (!has_bytes()) return combine(value, ptr[at]);
    const Xbyak::Xmm low(value.getIdx()), other(scale_.getIdx());
    load_pixel(scale_, at);
    shape_.dtype == DType::u8 ? vpmaxub(low, low, other) : vpmaxsb(low, low, other);
  }

  void finish_pixel(int64_t row, int64_t col, const Vec& value) {
    if (kind_ == PoolKind::max) return;
    const int divisor = shape_.y_counts[static_cast<size_t>(row)] * shape_.x_counts[static_cast<size_t>(col)];
    vbroadcastss(scale_, dword[rip + scales_[divisor]]);
    vmulps(value, value, scale_);
  }

  const PoolShape& shape_;
  const Gpr source_ = argument(0), target_ = argument(1), left_ = claim_gpr("left");
  const std::vector<Vec> accumulators_;
  const Vec scale_;
  std::vector<Vec> columns_;  // the accumulators and more
  Vec result_;
  std::map<int, Xbyak::Label> scales_;
  int loads_ = 0;
};

class GlobalEmitter : public PoolBase {
 public:
  GlobalEmitter(Isa isa, PoolKind kind) : PoolBase(isa, kind) {}

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    const Gpr source = argument(0), target = argument(1), left = argument(2);
    const Vec scale = claim_vec("scale");  // the fourth argument, in the first register
    const std::vector<Vec> sums = claim_vecs("sum", kPixels);
    begin();
    if (kind_ == PoolKind::average) vbroadcastss(scale, Xbyak::Xmm(scale.getIdx()));
    for (const Vec& sum : sums) {
      // The first pixel stands for all: a maximum does not change by it.
      if (kind_ == PoolKind::max) {
        load(sum, source + 0);
      } else {
        zero(sum);
      }
    }
    while_at_least(left, kPixels, [&] {
      for (int i = 0; i < kPixels; ++i) combine(sums[static_cast<size_t>(i)], ptr[source + i * vec_bytes()]);
      add(source, kPixels * vec_bytes());
    });
    while_at_least(left, 1, [&] {
      combine(sums[0], ptr[source]);
      add(source, vec_bytes());
    });
    for (size_t step = kPixels / 2; step > 0; step /= 2) {
      for (size_t i = 0; i < step; ++i) combine(sums[i], sums[i + step]);
    }
    if (kind_ == PoolKind::average) vmulps(sums[0], sums[0], scale);
    store(target + 0, sums[0]);
    end();
    return finish(name);
  }
};

std::string_view name_of(PoolKind kind) { return kind == PoolKind::max ? "max" : "average"; }

std::string to_string(const std::vector<int>& counts) {
  std::string text;
  for (int count : counts) text += std::to_string(count) + ",";
  return text;
}

}  // namespace

PoolKernels PoolKernels::make(Isa isa, PoolKind kind, const PoolShape& shape) {
  if (shape.dtype != DType::f32 && kind != PoolKind::max) throw JitError("bytes have maxima only");
  PoolKernels kernels;
  std::map<std::string, int> known;
  std::vector<int64_t> rows;
  const ConvAxis &y = shape.windows.y, &x = shape.windows.x;
  for (int64_t row = 0; row < y.out; ++row) {
    const auto [at, is_new] = known.try_emplace(signature_of(y, shape.y_counts, row, 1), static_cast<int>(rows.size()));
    if (is_new) rows.push_back(row);
    const int64_t lane_bytes = shape.windows.lanes * bits_of(shape.dtype) / 8;
    kernels.strips_.push_back({at->second, row * y.stride * x.in * lane_bytes, row * x.out * lane_bytes});
  }
  const std::string key = fmt::format("pool/{} {} {} {} {} {}", name_of(isa), name_of(kind), name_of(shape.dtype),
                                      to_string(shape.windows), to_string(shape.y_counts), to_string(shape.x_counts));
  kernels.code_ = {cached_code(key, [&] { return PoolEmitter(isa, kind, shape).emit(rows, key); }), rows.size()};
  return kernels;
}

Kernel<GlobalPool> make_global_pool(Isa isa, PoolKind kind) {
  const std::string key = fmt::format("global_pool/{} {}", name_of(isa), name_of(kind));
  return Kernel<GlobalPool>(cached_code(key, [&] { return GlobalEmitter(isa, kind).emit(key); }));
}

}  // namespace lathe
