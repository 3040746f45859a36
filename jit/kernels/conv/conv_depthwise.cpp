#include "jit/kernels/conv/conv_depthwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include "jit/emitter.h"
#include "jit/kernels/conv/conv_epilogue_emitter.h"
#include "jit/kernels/conv/conv_tiling.h"

namespace lathe {
namespace {

// Weights of one row of the window in registers; wider windows take several turns.
constexpr int kMostWeights = 5;

// Equal column parts in a row.
struct Columns {
  ConvPart part;
  int64_t repeats = 1;
};

class DepthwiseEmitter : public Emitter {
 public:
  DepthwiseEmitter(const DepthwisePlan& plan, const ConvShape& shape)
      : Emitter(plan.isa),
        plan_(plan),
        shape_(shape),
        epilogue_(*this, plan.isa, plan.epilogue),
        pool_(claim_vecs("pool", free_vecs())) {
    std::string last;
    for (const ConvPart& part : sorted_parts(shape.x.out, plan.cols)) {
      const std::string valid = valid_taps(shape.x, part);
      if (valid == last) {
        ++columns_.back().repeats;
      } else {
        columns_.push_back({part});
      }
      last = valid;
    }
  }

  std::shared_ptr<const CodePages> emit(const std::vector<ConvPart>& row_parts, const std::string& name) {
    for (const ConvPart& rows : row_parts) {
      begin_entry();
      emit_strip(rows);
    }
    epilogue_.emit_constants();
    return finish(name);
  }

 private:
  void emit_strip(const ConvPart& rows) {
    begin();
    mov(source_, qword[call_ + offsetof(DepthwiseCall, source)]);
    mov(weights_, qword[call_ + offsetof(DepthwiseCall, weights)]);
    mov(target_, qword[call_ + offsetof(DepthwiseCall, target)]);
    if (plan_.has_bias) mov(bias_, qword[call_ + offsetof(DepthwiseCall, bias)]);
    xor_(done_, done_);
    for (const Columns& columns : columns_) {
      if (columns.repeats == 1) {
        emit_tile(rows, columns.part);
        continue;
      }
      mov(left_, columns.repeats);
      loop_down(left_, [&] { emit_tile(rows, columns.part); });
    }
    end();
  }

  const Vec& accumulator(int64_t row, int64_t col) const { return pool_[static_cast<size_t>(row * cols_ + col)]; }

  void emit_tile(const ConvPart& rows, const ConvPart& cols) {
    cols_ = cols.size;
    const auto accumulators = static_cast<int>(rows.size * cols.size);
    const int all = static_cast<int>(pool_.size());
    const int weights = std::min({kMostWeights, static_cast<int>(shape_.x.taps.size()), all - accumulators - 1});
    if (weights < 1 || all - accumulators < epilogue_.temps_needed()) {
      throw JitError("a depthwise tile needs too many registers");
    }
    for (int i = 0; i < accumulators; ++i) start_accumulator(i);
    for (size_t ty = 0; ty < shape_.y.taps.size(); ++ty) {
      for (size_t tx = 0; tx < shape_.x.taps.size(); tx += static_cast<size_t>(weights)) {
        const size_t end = std::min(tx + static_cast<size_t>(weights), shape_.x.taps.size());
        emit_taps(rows, cols, ty, tx, end, accumulators);
      }
    }
    store_tile(rows, cols, accumulators);
    add(source_, static_cast<uint32_t>(cols.size * shape_.x.stride * vec_bytes()));
    add(target_, static_cast<uint32_t>(cols.size * vec_bytes()));
    add(done_, static_cast<uint32_t>(cols.size * vec_bytes()));
  }

  void start_accumulator(int i) {
    const Vec& value = pool_[static_cast<size_t>(i)];
    if (!plan_.has_bias) {
      zero(value);
    } else if (i == 0) {
      load(value, bias_ + 0);
    } else {
      vmovaps(value, pool_[0]);
    }
  }

  // Taps [first, end) of row ty of the window: each input vector is read once and used for all of them.
  void emit_taps(const ConvPart& rows, const ConvPart& cols, size_t ty, size_t first, size_t end, int accumulators) {
    const ConvTap& tap_y = shape_.y.taps[ty];
    const int all = static_cast<int>(pool_.size());
    const auto weight = [&](size_t tx) { return pool_[static_cast<size_t>(all) - 1 - (tx - first)]; };
    const int values = all - accumulators - static_cast<int>(end - first);
    bool is_used = false;
    for (int64_t row = 0; row < rows.size; ++row) is_used = is_used || shape_.y.is_inside(rows.begin + row, tap_y);
    if (!is_used) return;
    for (size_t tx = first; tx < end; ++tx) {
      load(weight(tx),
           weights_ + static_cast<int>((ty * shape_.x.taps.size() + tx) * static_cast<size_t>(vec_bytes())));
    }
    for (int64_t row = 0; row < rows.size; ++row) {
      if (!shape_.y.is_inside(rows.begin + row, tap_y)) continue;
      // Input column (relative to the tile's origin) -> the products it takes part in.
      std::map<int64_t, std::vector<std::pair<int64_t, size_t>>> uses;
      for (int64_t col = 0; col < cols.size; ++col) {
        for (size_t tx = first; tx < end; ++tx) {
          if (!shape_.x.is_inside(cols.begin + col, shape_.x.taps[tx])) continue;
          uses[col * shape_.x.stride + shape_.x.taps[tx].offset].emplace_back(col, tx);
        }
      }
      const int64_t in_row = row * shape_.y.stride + tap_y.offset;
      for (const auto& [in_col, products] : uses) {
        const int64_t offset = (in_row * shape_.x.in + in_col) * vec_bytes();
        if (std::abs(offset) > INT32_MAX / 2) throw JitError("convolution rows are too far apart");
        const Xbyak::RegExp at = source_ + static_cast<int>(offset);
        if (products.size() == 1) {
          vfmadd231ps(accumulator(row, products[0].first), weight(products[0].second), ptr[at]);
          continue;
        }
        const Vec& value = pool_[static_cast<size_t>(accumulators + next_value_++ % values)];
        load(value, at);
        for (const auto& [col, tx] : products) vfmadd231ps(accumulator(row, col), weight(tx), value);
      }
    }
  }

  void store_tile(const ConvPart& rows, const ConvPart& cols, int accumulators) {
    const std::span<const Vec> temps(pool_.data() + accumulators, static_cast<size_t>(epilogue_.temps_needed()));
    for (int64_t row = 0; row < rows.size; ++row) {
      for (int64_t col = 0; col < cols.size; ++col) {
        const auto offset = static_cast<int>((row * shape_.x.out_extent + col) * vec_bytes());
        const Vec& value = accumulator(row, col);
        if (!epilogue_.is_empty()) {
          epilogue_.apply(value, temps, call_ + offsetof(DepthwiseCall, operands), scratch_, done_ + offset, 0);
        }
        store(target_ + offset, value);
      }
    }
  }

  const DepthwisePlan& plan_;
  const ConvShape& shape_;
  ConvEpilogueEmitter epilogue_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), weights_ = claim_gpr("weights"), target_ = claim_gpr("target");
  const Gpr bias_ = claim_gpr("bias"), scratch_ = claim_gpr("scratch"), left_ = claim_gpr("left");
  const Gpr done_ = claim_gpr("bytes done");
  const std::vector<Vec> pool_;
  std::vector<Columns> columns_;
  int64_t cols_ = 1;
  int next_value_ = 0;
};

}  // namespace

std::string to_string(const DepthwisePlan& plan) {
  return fmt::format("depthwise {} {}x{} bias={} then {}", name_of(plan.isa), plan.rows, plan.cols,
                     plan.has_bias ? 1 : 0, to_string(plan.epilogue));
}

DepthwiseKernels DepthwiseKernels::make(const DepthwisePlan& plan, const ConvShape& shape) {
  DepthwiseKernels kernels;
  std::map<std::string, int> known;
  std::vector<ConvPart> row_parts;
  for (const ConvPart& part : sorted_parts(shape.y.out, plan.rows)) {
    const auto [at, is_new] = known.try_emplace(valid_taps(shape.y, part), static_cast<int>(row_parts.size()));
    if (is_new) row_parts.push_back(part);
    DepthwiseStrip strip;
    strip.entry = at->second;
    strip.source = part.begin * shape.y.stride * shape.x.in * shape.lanes * 4;
    strip.target = part.begin * shape.x.out_extent * shape.lanes * 4;
    kernels.strips_.push_back(strip);
  }
  const std::string key = "conv_depthwise/" + to_string(plan) + "/" + to_string(shape);
  kernels.code_ = {cached_code(key, [&] { return DepthwiseEmitter(plan, shape).emit(row_parts, key); }),
                   row_parts.size()};
  return kernels;
}

DepthwisePlan choose_depthwise_plan(Isa isa, const ConvShape& shape) {
  DepthwisePlan plan;
  plan.isa = isa;
  // Enough accumulators to hide the latency of multiply-adds, some registers left for epilogues.
  const int64_t most = has_avx512(isa) ? 21 : 8;
  const int64_t widest = has_avx512(isa) ? 7 : 8;
  const int64_t parts = (shape.x.out + widest - 1) / widest;
  plan.cols = static_cast<int>(std::max<int64_t>(1, (shape.x.out + parts - 1) / parts));
  plan.rows = static_cast<int>(std::clamp<int64_t>(most / plan.cols, 1, std::max<int64_t>(1, shape.y.out)));
  return plan;
}

}  // namespace lathe
