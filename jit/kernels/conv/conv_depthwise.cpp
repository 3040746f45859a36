#include "jit/kernels/conv/conv_depthwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "jit/emitter.h"
#include "jit/kernels/conv/conv_epilogue_emitter.h"
#include "jit/kernels/conv/conv_tiling.h"

namespace lathe {
namespace {

// Weights of one row of the window in registers; wider windows take several turns.
constexpr int kMostWeights = 5;

// Tiles side by side that see the borders alike: the first of them, what it sees, and how many.
struct Run {
  ConvPart tile;
  std::string valid;
  int64_t repeats = 1;
};

std::vector<Run> runs_of(const ConvAxis& axis, int most) {
  std::vector<Run> runs;
  for (const ConvPart& part : sorted_parts(axis.out, most)) {
    std::string valid = valid_taps(axis, part);
    if (!runs.empty() && runs.back().valid == valid)
      ++runs.back().repeats;
    else
      runs.push_back({part, std::move(valid)});
  }
  return runs;
}

std::string taps_text(const ConvAxis& axis) {
  std::string text = "s" + std::to_string(axis.stride);
  for (const ConvTap& tap : axis.taps) text += "," + std::to_string(tap.offset);
  return text;
}

// All that the code of a strip depends on. `valid_rows`: valid_taps() of its rows.
std::string key_of(const DepthwisePlan& plan, const ConvShape& shape, const std::string& valid_rows,
                   const std::vector<Run>& runs) {
  std::string key = fmt::format("conv_depthwise/{}/{} {}/{} {}", to_string(plan), taps_text(shape.y), valid_rows,
                                taps_text(shape.x), runs.size());
  for (const Run& run : runs) key += (run.repeats == 1 ? " " : " n*") + run.valid;
  return key;
}

class DepthwiseEmitter : public Emitter {
 public:
  DepthwiseEmitter(const DepthwisePlan& plan, const ConvShape& shape)
      : Emitter(plan.isa),
        plan_(plan),
        shape_(shape),
        epilogue_(*this, plan.isa, plan.epilogue),
        pool_(claim_vecs("pool", free_vecs())) {}

  std::shared_ptr<const CodePages> emit(const ConvPart& rows, const std::vector<Run>& runs, const std::string& name) {
    begin();
    mov(source_, qword[call_ + offsetof(DepthwiseCall, source)]);
    mov(weights_, qword[call_ + offsetof(DepthwiseCall, weights)]);
    mov(target_, qword[call_ + offsetof(DepthwiseCall, target)]);
    mov(source_row_, qword[call_ + offsetof(DepthwiseCall, source_row)]);
    mov(target_row_, qword[call_ + offsetof(DepthwiseCall, target_row)]);
    if (plan_.has_bias) mov(bias_, qword[call_ + offsetof(DepthwiseCall, bias)]);
    if (plan_.multiplier > 1) {
      mov(scratch_, qword[call_ + offsetof(DepthwiseCall, lanes)]);
      load(lanes_, scratch_ + 0);
    }
    move_down(source_, source_row_, shape_.y.taps.front().offset);
    xor_(done_, done_);
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].repeats == 1) {
        emit_tile(rows, runs[i].tile);
        continue;
      }
      mov(left_, qword[call_ + offsetof(DepthwiseCall, repeats)]);
      mov(left_, qword[left_ + static_cast<int>(i * sizeof(int64_t))]);
      loop_down(left_, [&] { emit_tile(rows, runs[i].tile); });
    }
    end();
    epilogue_.emit_constants();
    return finish(name);
  }

 private:
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
    mov(tap_row_, source_);
    tap_row_offset_ = shape_.y.taps.front().offset;
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
    move_down(tap_row_, source_row_, tap_y.offset - std::exchange(tap_row_offset_, tap_y.offset));
    mov(at_, tap_row_);
    int64_t below = 0;  // rows from that of `at_` to the one to read
    for (int64_t row = 0; row < rows.size; ++row, below += shape_.y.stride) {
      if (!shape_.y.is_inside(rows.begin + row, tap_y)) continue;
      move_down(at_, source_row_, std::exchange(below, 0));
      // Input column (relative to the tile's origin) -> the products it takes part in.
      std::map<int64_t, std::vector<std::pair<int64_t, size_t>>> uses;
      for (int64_t col = 0; col < cols.size; ++col) {
        for (size_t tx = first; tx < end; ++tx) {
          if (!shape_.x.is_inside(cols.begin + col, shape_.x.taps[tx])) continue;
          uses[col * shape_.x.stride + shape_.x.taps[tx].offset].emplace_back(col, tx);
        }
      }
      for (const auto& [in_col, products] : uses) {
        if (std::abs(in_col) > INT32_MAX / 2 / vec_bytes()) throw JitError("convolution columns are too far apart");
        const Xbyak::RegExp at = at_ + static_cast<int>(in_col * vec_bytes());
        if (products.size() == 1 && plan_.multiplier == 1) {
          vfmadd231ps(accumulator(row, products[0].first), weight(products[0].second), ptr[at]);
          continue;
        }
        const Vec& value = pool_[static_cast<size_t>(accumulators + next_value_++ % values)];
        load_channels(value, at);
        for (const auto& [col, tx] : products) vfmadd231ps(accumulator(row, col), weight(tx), value);
      }
    }
  }

  // The channels of the source that the block's are made from.
  void load_channels(const Vec& value, const Xbyak::RegExp& at) {
    if (plan_.multiplier == 1) return load(value, at);
    const int to = value.getIdx(), order = lanes_.getIdx();
    has_masks() ? vpermps(Xbyak::Zmm(to), Xbyak::Zmm(order), ptr[at])
                : vpermps(Xbyak::Ymm(to), Xbyak::Ymm(order), ptr[at]);
  }

  // A pointer goes so many rows further.
  void move_down(const Gpr& pointer, const Gpr& row_bytes, int64_t rows) {
    switch (rows) {
      case 0:
        return;
      case 1:
        add(pointer, row_bytes);
        return;
      case 2:
      case 4:
      case 8:
        lea(pointer, ptr[pointer + row_bytes * static_cast<int>(rows)]);
        return;
      default:
        imul(scratch_, row_bytes, static_cast<int>(rows));
        add(pointer, scratch_);
    }
  }

  void store_tile(const ConvPart& rows, const ConvPart& cols, int accumulators) {
    const std::span<const Vec> temps(pool_.data() + accumulators, static_cast<size_t>(epilogue_.temps_needed()));
    mov(at_, target_);
    if (!epilogue_.is_empty()) mov(row_done_, done_);
    for (int64_t row = 0; row < rows.size; ++row) {
      for (int64_t col = 0; col < cols.size; ++col) {
        const auto offset = static_cast<int>(col * vec_bytes());
        const Vec& value = accumulator(row, col);
        if (!epilogue_.is_empty()) {
          epilogue_.apply(value, temps, call_ + offsetof(DepthwiseCall, operands), scratch_, row_done_ + offset, 0);
        }
        store(at_ + offset, value);
      }
      if (row + 1 == rows.size) break;
      move_down(at_, target_row_, 1);
      if (!epilogue_.is_empty()) move_down(row_done_, target_row_, 1);
    }
  }

  const DepthwisePlan& plan_;
  const ConvShape& shape_;
  ConvEpilogueEmitter epilogue_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), weights_ = claim_gpr("weights"), target_ = claim_gpr("target");
  const Gpr bias_ = claim_gpr("bias"), scratch_ = claim_gpr("scratch"), left_ = claim_gpr("left");
  const Gpr done_ = claim_gpr("bytes done"), row_done_ = claim_gpr("bytes done in a row");
  const Gpr source_row_ = claim_gpr("source row"), target_row_ = claim_gpr("target row");
  const Gpr tap_row_ = claim_gpr("row of the first output's tap");
  const Gpr at_ = claim_gpr("row of the source, then of the target");
  const Vec lanes_ = plan_.multiplier > 1 ? claim_vec("lanes of the source") : Vec();
  const std::vector<Vec> pool_;
  int64_t cols_ = 1;
  int64_t tap_row_offset_ = 0;  // of the tap whose row `tap_row_` is
  int next_value_ = 0;
};

}  // namespace

std::string to_string(const DepthwisePlan& plan) {
  return fmt::format("depthwise {} {}x{}{} bias={} then {}", name_of(plan.isa), plan.rows, plan.cols,
                     plan.multiplier > 1 ? fmt::format(" times {}", plan.multiplier) : "", plan.has_bias ? 1 : 0,
                     to_string(plan.epilogue));
}

DepthwiseKernels DepthwiseKernels::make(const DepthwisePlan& plan, const ConvShape& shape) {
  DepthwiseKernels kernels;
  kernels.source_row_ = shape.x.in * shape.lanes * 4;
  kernels.target_row_ = shape.x.out_extent * shape.lanes * 4;
  const std::vector<Run> runs = runs_of(shape.x, plan.cols);
  for (const Run& run : runs) kernels.repeats_.push_back(run.repeats);
  for (int block = 0; plan.multiplier > 1 && block < plan.multiplier; ++block) {
    std::vector<int32_t>& lanes = kernels.source_lanes_.emplace_back();
    for (int lane = 0; lane < shape.lanes; ++lane)
      lanes.push_back((block * shape.lanes + lane) / plan.multiplier % shape.lanes);
  }
  std::map<std::string, int> known;
  for (const ConvPart& rows : sorted_parts(shape.y.out, plan.rows)) {
    const auto [at, is_new] = known.try_emplace(valid_taps(shape.y, rows), static_cast<int>(kernels.kernels_.size()));
    if (is_new) {
      const std::string key = key_of(plan, shape, at->first, runs);
      kernels.kernels_.emplace_back(
          cached_code(key, [&] { return DepthwiseEmitter(plan, shape).emit(rows, runs, key); }));
    }
    DepthwiseStrip strip;
    strip.kernel = at->second;
    strip.source = rows.begin * shape.y.stride * kernels.source_row_;
    strip.target = rows.begin * kernels.target_row_;
    kernels.strips_.push_back(strip);
  }
  return kernels;
}

DepthwiseCall DepthwiseKernels::call() const {
  DepthwiseCall call;
  call.source_row = source_row_;
  call.target_row = target_row_;
  call.repeats = repeats_.data();
  return call;
}

const int32_t* DepthwiseKernels::lanes_of(int64_t block) const {
  return source_lanes_.empty() ? nullptr : source_lanes_[static_cast<size_t>(block) % source_lanes_.size()].data();
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
