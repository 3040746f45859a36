#include "jit/kernels/pool/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "jit/kernels/pool/pool_rows.h"

namespace lathe {
namespace {

constexpr int kPixels = 8;  // accumulators in a tile: as many independent chains

class PoolEmitter : public PoolRowsEmitter {
 public:
  PoolEmitter(Isa isa, PoolKind kind, const PoolShape& shape)
      : PoolRowsEmitter(isa, shape),
        kind_(kind),
        accumulators_(claim_vecs("pixel", kPixels)),
        scale_(claim_vec("scale")) {
    columns_ = accumulators_;
    for (const Vec& more : claim_vecs("column", free_vecs() - 1)) columns_.push_back(more);
    result_ = claim_vec("result");
  }

  std::shared_ptr<const CodePages> emit(const std::vector<int64_t>& rows, const std::string& name) {
    emit_rows(rows);
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
  int64_t tile_size(int64_t) const override { return kPixels; }
  int pixel_bytes() const override { return vec_bytes(); }

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
    return inside > 1 && count < size * static_cast<int64_t>(x.taps.size()) &&
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
        const auto from = source_ + source_offset(ty, at - col * x.stride);
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
      store(target_ + static_cast<int>(i * pixel_bytes()), result_);
    }
  }

  void join(const Vec& into, const Vec& a, const Xbyak::Operand& b) {
    kind_ == PoolKind::max ? vmaxps(into, a, b) : vaddps(into, a, b);
  }
  void combine(const Vec& into, const Xbyak::Operand& value) { join(into, into, value); }

  void emit_tile(int64_t row, int64_t col, int64_t size) override {
    shares_columns(row, col, size) ? emit_columns(row, col, size) : emit_windows(row, col, size);
  }

  void emit_windows(int64_t row, int64_t col, int64_t size) {
    for_each_element(row, col, size, [&](size_t i, const Xbyak::RegExp& from, bool is_first) {
      is_first ? load(accumulators_[i], from) : combine(accumulators_[i], ptr[from]);
    });
    for (int64_t i = 0; i < size; ++i) {
      finish_pixel(row, col + i, accumulators_[static_cast<size_t>(i)]);
      store(target_ + static_cast<int>(i * pixel_bytes()), accumulators_[static_cast<size_t>(i)]);
    }
  }

  void finish_pixel(int64_t row, int64_t col, const Vec& value) {
    if (kind_ == PoolKind::max) return;
    const int divisor = shape_.y_counts[static_cast<size_t>(row)] * shape_.x_counts[static_cast<size_t>(col)];
    vbroadcastss(scale_, dword[rip + scales_[divisor]]);
    vmulps(value, value, scale_);
  }

  const PoolKind kind_;
  const std::vector<Vec> accumulators_;
  const Vec scale_;
  std::vector<Vec> columns_;  // the accumulators and more
  Vec result_;
  std::map<int, Xbyak::Label> scales_;
};

class GlobalEmitter : public Emitter {
 public:
  GlobalEmitter(Isa isa, PoolKind kind) : Emitter(isa), kind_(kind) {}

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

 private:
  void combine(const Vec& into, const Xbyak::Operand& value) {
    kind_ == PoolKind::max ? vmaxps(into, into, value) : vaddps(into, into, value);
  }

  const PoolKind kind_;
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
    const auto [at, is_new] =
        known.try_emplace(pool_signature(y, shape.y_counts, row, 1), static_cast<int>(rows.size()));
    if (is_new) rows.push_back(row);
    const int64_t lane_bytes = shape.windows.lanes * bits_of(shape.dtype) / 8;
    kernels.strips_.push_back({at->second, row * y.stride * x.in * lane_bytes, row * x.out * lane_bytes});
  }
  const std::string key = fmt::format("pool/{} {} {} {} {} {}", name_of(isa), name_of(kind), name_of(shape.dtype),
                                      to_string(shape.windows), to_string(shape.y_counts), to_string(shape.x_counts));
  const auto emit = [&] {
    if (shape.dtype != DType::f32) return emit_byte_pool(isa, shape, rows, key);
    return PoolEmitter(isa, kind, shape).emit(rows, key);
  };
  kernels.code_ = {cached_code(key, emit), rows.size()};
  return kernels;
}

Kernel<GlobalPool> make_global_pool(Isa isa, PoolKind kind) {
  const std::string key = fmt::format("global_pool/{} {}", name_of(isa), name_of(kind));
  return Kernel<GlobalPool>(cached_code(key, [&] { return GlobalEmitter(isa, kind).emit(key); }));
}

}  // namespace lathe
