#include "jit/kernels/conv/conv_depthwise_int8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>

#include "jit/kernels/conv/conv_depthwise_int8_reads.h"
#include "jit/kernels/conv/conv_tiling.h"

namespace lathe {
namespace {

// Emitted dot products of all entries: beyond this, code would not even fit the caches.
constexpr int64_t kMostProducts = 100'000;
constexpr int kReadsAtOnce = 3;  // registers that reads take turns in

std::vector<int64_t> rows_read(const ConvAxis& axis, int64_t outputs) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < outputs; ++row) {
    for (const ConvTap& tap : axis.taps) rows.push_back(row * axis.stride + tap.offset);
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

// Equal column parts in a row.
struct Columns {
  ConvPart part;
  DepthwiseReads row;
  std::string inside;  // by read and pixel
  int64_t repeats = 1;
};

class DepthwiseInt8Emitter : public DepthwiseInt8Reads {
 public:
  DepthwiseInt8Emitter(const DepthwiseInt8Plan& plan, const ConvShape& shape)
      : DepthwiseInt8Reads(plan),
        plan_(plan),
        shape_(shape),
        out_bytes_(static_cast<int>(bits_of(plan.store.dtype) / 8)),
        pool_(claim_vecs("pool", free_vecs())) {
    find_columns();
    assign_registers();
  }

  std::shared_ptr<const CodePages> emit(const std::vector<int64_t>& heights, const std::string& name) {
    for (const int64_t rows : heights) {
      begin_entry();
      emit_strip(rows);
    }
    emit_output_constants();
    emit_read_constants();
    return finish(name);
  }

 private:
  void find_columns() {
    for (const ConvPart& part : sorted_parts(shape_.x.out, plan_.cols)) {
      Columns columns{part, make_depthwise_reads(shape_.x, group(), plan_.step, part.size), std::to_string(part.size)};
      for (const DepthwiseRead& read : columns.row.reads) {
        for (int pixel = 0; pixel < group(); ++pixel) columns.inside += is_inside(part, read, pixel) ? '1' : '0';
      }
      if (columns_.empty() || columns.inside != columns_.back().inside) {
        columns_.push_back(std::move(columns));
      } else {
        ++columns_.back().repeats;
      }
    }
    sets_ = columns_.front().row.sets.size();
  }
  bool is_inside(const ConvPart& part, const DepthwiseRead& read, int pixel) const {
    const int64_t in = part.begin * shape_.x.stride + read.first + pixel;
    return in >= 0 && in < shape_.x.in;
  }

  // Accumulators first, then reads, which outputs take for temporaries, what products pass through, and weights: as
  // many as there is room for, the others stay in memory.
  void assign_registers() {
    const int all = static_cast<int>(pool_.size());
    const int accumulators = plan_.rows * plan_.cols;
    reads_ = std::max(kReadsAtOnce, temps_needed());
    const int left = all - accumulators - reads_ - (needs_temp() ? 1 : 0);
    if (left < 0) throw JitError("a depthwise tile of bytes needs too many registers");
    first_read_ = accumulators;
    first_weight_ = accumulators + reads_ + (needs_temp() ? 1 : 0);
    held_weights_ = std::min<size_t>(static_cast<size_t>(left), sets_ * shape_.y.taps.size());
  }
  bool needs_temp() const { return dot_needs_temp(plan_.isa, plan_.dot); }
  const Vec& accumulator(int64_t row, int64_t col) const { return pool_[static_cast<size_t>(row * cols_ + col)]; }
  std::span<const Vec> reads() const {
    return std::span<const Vec>(pool_).subspan(static_cast<size_t>(first_read_), static_cast<size_t>(reads_));
  }

  void emit_strip(int64_t rows) {
    begin();
    mov(rows_, qword[call_ + offsetof(DepthwiseInt8Call, rows)]);
    mov(weights_, qword[call_ + offsetof(DepthwiseInt8Call, weights)]);
    mov(target_, qword[call_ + offsetof(DepthwiseInt8Call, target)]);
    for (size_t i = 0; i < std::min(plan_.epilogue.operands.size(), held_.size()); ++i) {
      mov(held_[i], qword[call_ + offsetof(DepthwiseInt8Call, operands) + 8 * i]);
    }
    mov(scratch_, qword[call_ + offsetof(DepthwiseInt8Call, border)]);
    load_constants(scratch_ + 0);
    for (size_t i = 0; i < held_weights_; ++i) {
      load(pool_[static_cast<size_t>(first_weight_) + i], weights_ + static_cast<int>(i) * vec_bytes());
    }
    xor_(column_, column_);
    xor_(done_, done_);
    for (const Columns& columns : columns_) {
      if (columns.repeats == 1) {
        emit_tile(rows, columns);
        continue;
      }
      mov(left_, columns.repeats);
      loop_down(left_, [&] { emit_tile(rows, columns); });
    }
    end();
  }

  void emit_tile(int64_t rows, const Columns& columns) {
    cols_ = columns.part.size;
    const auto accumulators = static_cast<size_t>(rows * cols_);
    mov(scratch_, qword[call_ + offsetof(DepthwiseInt8Call, init)]);
    load(pool_[0], scratch_ + 0);
    for (size_t i = 1; i < accumulators; ++i) vmovaps(pool_[i], pool_[0]);
    const std::vector<int64_t> in_rows = rows_read(shape_.y, rows);
    for (size_t i = 0; i < in_rows.size(); ++i) {
      mov(row_, qword[rows_ + static_cast<int>(8 * i)]);
      for (const DepthwiseRead& read : columns.row.reads) emit_read(rows, in_rows[i], columns.part, read);
      // Outputs are finished beside the products of the rows below.
      for (int64_t row = 0; row < rows; ++row) {
        if (row * shape_.y.stride + shape_.y.taps.back().offset == in_rows[i]) finish_row(row);
      }
    }
    add(column_, static_cast<uint32_t>(cols_ * shape_.x.stride * lanes()));
    add(target_, static_cast<uint32_t>(cols_ * lanes() * out_bytes_));
    add(done_, static_cast<uint32_t>(cols_ * lanes()));
  }

  void emit_read(int64_t rows, int64_t in_row, const ConvPart& part, const DepthwiseRead& read) {
    const Vec& value = reads()[static_cast<size_t>(next_read_++ % reads_)];
    load_read(value, part, read);
    for (size_t ty = 0; ty < shape_.y.taps.size(); ++ty) {
      const int64_t distance = in_row - shape_.y.taps[ty].offset;
      if (distance < 0 || distance % shape_.y.stride != 0 || distance / shape_.y.stride >= rows) continue;
      for (const DepthwiseUse& use : read.uses) {
        const size_t weight = ty * sets_ + static_cast<size_t>(use.set);
        const Vec& sum = accumulator(distance / shape_.y.stride, use.col);
        if (weight < held_weights_) {
          multiply(sum, value, pool_[static_cast<size_t>(first_weight_) + weight]);
        } else {
          multiply(sum, value, ptr[weights_ + static_cast<int>(weight) * vec_bytes()]);
        }
      }
    }
  }

  void multiply(const Vec& sum, const Vec& value, const Xbyak::Operand& weight) {
    if (plan_.dot == Int8Dot::u8s8) return vpdpbusd(sum, value, weight);
    if (!needs_temp()) return vpdpwssd(sum, value, weight);
    const Vec& temp = pool_[static_cast<size_t>(first_weight_) - 1];
    vpmaddwd(temp, value, weight);
    vpaddd(sum, sum, temp);
  }

  void finish_row(int64_t row) {
    const int bytes = lanes() * out_bytes_;
    std::vector<int32_t> stores;
    for (int64_t col = 0; col < cols_; ++col) stores.push_back(static_cast<int32_t>(col) * bytes);
    const int64_t row_elements = row * shape_.x.out_extent * lanes();
    if (row_elements * 4 > INT32_MAX / 2) throw JitError("convolution rows are too far apart");
    for (int pixel = 0; pixel < static_cast<int>(cols_);) {
      const int count = stored_together(stores, pixel);
      std::vector<Vec> sums;
      for (int i = 0; i < count; ++i) {
        sums.push_back(accumulator(row, pixel + i));
        const int element = static_cast<int>(row_elements) + (pixel + i) * lanes();
        finish_sum(sums.back(), reads(),
                   [&](size_t operand, const Vec& into) { load_element(operand, into, element); });
      }
      store_finished(target_ + (static_cast<int>(row_elements) * out_bytes_ + pixel * bytes), sums, reads());
      pixel += count;
    }
  }

  void load_element(size_t operand, const Vec& into, int element) {
    if (operand >= held_.size()) mov(scratch_, qword[call_ + offsetof(DepthwiseInt8Call, operands) + 8 * operand]);
    const Gpr& at = operand < held_.size() ? held_[operand] : scratch_;
    const int bytes = operand_bytes(operand);
    if (plan_.epilogue.operands[operand] != ConvOperand::full) return load_operand(operand, into, at + 0);
    load_operand(operand, into, at + done_ * bytes + element * bytes);
  }

  void load_read(const Vec& value, const ConvPart& part, const DepthwiseRead& read) {
    unsigned inside = 0;
    for (int pixel = 0; pixel < group(); ++pixel) inside |= (is_inside(part, read, pixel) ? 1U : 0U) << pixel;
    if (std::abs(read.first * lanes()) > INT32_MAX / 2) throw JitError("convolution columns are too far apart");
    load_pixels(value, row_ + column_ + static_cast<int>(read.first * lanes()), inside, scratch_);
  }

  const DepthwiseInt8Plan& plan_;
  const ConvShape& shape_;
  const int out_bytes_;
  const Gpr call_ = argument(0);
  const Gpr rows_ = claim_gpr("rows"), row_ = claim_gpr("row"), column_ = claim_gpr("bytes of the row done");
  const Gpr weights_ = claim_gpr("weights"), target_ = claim_gpr("target"), done_ = claim_gpr("elements done");
  const Gpr left_ = claim_gpr("left"), scratch_ = claim_gpr("scratch");
  const std::array<Gpr, 3> held_ = {claim_gpr("operand"), claim_gpr("operand"), claim_gpr("operand")};
  const std::vector<Vec> pool_;
  std::vector<Columns> columns_;
  size_t sets_ = 0, held_weights_ = 0;
  int reads_ = 0, first_read_ = 0, first_weight_ = 0, next_read_ = 0;
  int64_t cols_ = 1;
};

void check_size(const DepthwiseInt8Plan& plan, const ConvShape& shape, size_t entries) {
  // A tile for each set of reads that leaves the picture, and one inside.
  const int64_t window = static_cast<int64_t>(shape.x.taps.size());
  const int64_t kinds = std::min((shape.x.out + plan.cols - 1) / plan.cols, 2 + 2 * window);
  const int64_t products = static_cast<int64_t>(entries) * kinds * plan.rows * plan.cols *
                           static_cast<int64_t>(shape.y.taps.size()) * (window / group_of(plan.dot) + 1);
  if (products > kMostProducts) throw JitError("a depthwise convolution of bytes needs too much code");
}

}  // namespace

std::string to_string(const DepthwiseInt8Plan& plan) {
  return fmt::format("{} {}{} {}x{} s{} {} > {}", name_of(plan.isa), to_string(plan.dot),
                     plan.is_signed ? " signed" : "", plan.rows, plan.cols, plan.step, to_string(plan.epilogue),
                     to_string(plan.store));
}

DepthwiseInt8Kernels DepthwiseInt8Kernels::make(const DepthwiseInt8Plan& plan, const ConvShape& shape) {
  DepthwiseInt8Kernels kernels;
  std::vector<int64_t> heights;
  for (const ConvPart& part : sorted_parts(shape.y.out, plan.rows)) {
    if (heights.empty() || heights.back() != part.size) heights.push_back(part.size);
    kernels.strips_.push_back({static_cast<int>(heights.size()) - 1, part.begin});
  }
  for (const int64_t rows : heights) {
    kernels.rows_.push_back(rows_read(shape.y, rows));
    if (kernels.rows_.back().size() > kMostRows) throw JitError("a depthwise strip of bytes reads too many rows");
  }
  check_size(plan, shape, heights.size());
  const std::string key = "conv_depthwise_int8/" + to_string(plan) + "/" + to_string(shape);
  kernels.code_ = {cached_code(key, [&] { return DepthwiseInt8Emitter(plan, shape).emit(heights, key); }),
                   heights.size()};
  return kernels;
}

}  // namespace lathe
