#pragma once
// What the kernels of a few rows share (bits_rows.cpp, bits_int8_rows.cpp): the way along a panel of weights, block by
// block, with totals in registers.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "jit/kernels/gemm/bits_emitter.h"
#include "jit/kernels/gemm/bits_panel.h"
#include "jit/kernels/gemm/stream_ahead.h"

namespace lathe {

class BitsPanelEmitter : public BitsEmitter {
 public:
  virtual ~BitsPanelEmitter() = default;

  void emit() {
    begin();
    load_constants();
    load_arguments();
    for (const Vec& total : totals_) zero(total);
    loop_down(blocks_, [&] { add_block(); });
    mov(codes_, ptr[args_ + offsetof(BitsPanelArgs, c)]);
    mov(stride_, ptr[args_ + offsetof(BitsPanelArgs, c_stride_bytes)]);
    for (int row = 0; row < shape_.rows; ++row) {
      if (row > 0) add(codes_, stride_);
      for (int v = 0; v < shape_.vecs; ++v) store(codes_ + v * vec_bytes(), total(row, v));
    }
    end();
  }

 protected:
  struct Shape {
    int rows, vecs, block_groups;
    int most_straight;  // groups in straight code
    int a_group_bytes;  // of a row of A that meet a group
    int a_block_bytes;  // in BitsPanelArgs::a_blocks
    bool has_offsets, codes_to_l2;
  };
  BitsPanelEmitter(Isa isa, int bits, const Shape& shape) : BitsEmitter(isa, bits), shape_(shape) {
    for (int row = 0; row < shape.rows; ++row) a_.push_back(claim_gpr("a"));
    totals_ = claim_vecs("totals", shape.rows * shape.vecs);
  }

  // left_ is free for each of them.
  virtual void load_constants() = 0;
  virtual void start_block() = 0;
  virtual void add_group(int group) = 0;  // counted from where codes_ and a_ point
  virtual void finish_block() = 0;        // adds to the totals

  int group_bytes() const { return shape_.vecs * vec_bytes(); }
  Xbyak::RegExp codes_at(int group, int v) const { return codes_ + group * group_bytes() + v * vec_bytes(); }
  const Vec& total(int row, int v) const { return totals_[static_cast<size_t>(row * shape_.vecs + v)]; }

  // With left_ at what this block has of each row.
  template <class Body>
  void for_rows_of_block(Body body) {
    mov(left_, a_blocks_);
    for (int row = 0; row < shape_.rows; ++row) {
      if (row > 0) add(left_, stride_);
      body(row);
    }
  }

  const Gpr args_ = argument(0);
  const Gpr codes_ = claim_gpr("codes"), scales_ = claim_gpr("scales"), left_ = claim_gpr("left");
  std::vector<Gpr> a_;

 private:
  static constexpr int kAhead = 1024;  // bytes of codes: the CPU's own prefetching ends at a page's end

  void load_arguments() {
    mov(codes_, ptr[args_ + offsetof(BitsPanelArgs, codes)]);
    mov(scales_, ptr[args_ + offsetof(BitsPanelArgs, scales)]);
    mov(a_blocks_, ptr[args_ + offsetof(BitsPanelArgs, a_blocks)]);
    mov(blocks_, ptr[args_ + offsetof(BitsPanelArgs, blocks)]);
    mov(a_[0], ptr[args_ + offsetof(BitsPanelArgs, a)]);
    mov(stride_, ptr[args_ + offsetof(BitsPanelArgs, a_stride_bytes)]);
    for (size_t row = 1; row < a_.size(); ++row) lea(a_[row], ptr[a_[row - 1] + stride_]);
    mov(stride_, ptr[args_ + offsetof(BitsPanelArgs, a_blocks_stride_bytes)]);
  }

  void add_block() {
    fetch_scales();
    start_block();
    int straight = std::min(shape_.block_groups, shape_.most_straight);
    while (shape_.block_groups % straight != 0) --straight;
    if (straight == shape_.block_groups) {
      add_groups(straight);
    } else {
      mov(left_, shape_.block_groups / straight);
      loop_down(left_, [&] { add_groups(straight); });
    }
    finish_block();
    add(scales_, scales_bytes());
    add(a_blocks_, shape_.a_block_bytes);
  }

  int ahead() const { return shape_.codes_to_l2 ? kAheadOfL2 : kAhead; }
  void fetch(const Xbyak::RegExp& at) { shape_.codes_to_l2 ? prefetcht1(ptr[at]) : prefetcht0(ptr[at]); }
  int scales_bytes() const { return (shape_.has_offsets ? 2 : 1) * group_bytes(); }

  // Those of the codes that are fetched meanwhile. One row reads so fast that the CPU's own prefetching has them.
  void fetch_scales() {
    if (shape_.rows == 1) return;
    const int blocks = std::max(1, ahead() / (shape_.block_groups * group_bytes()));
    for (int at = blocks * scales_bytes(); at < (blocks + 1) * scales_bytes(); at += kCacheLine) fetch(scales_ + at);
  }

  void add_groups(int count) {
    int prefetched = 0;
    for (int group = 0; group < count; ++group) {
      for (; prefetched < (group + 1) * group_bytes(); prefetched += kCacheLine) fetch(codes_ + ahead() + prefetched);
      add_group(group);
    }
    add(codes_, count * group_bytes());
    for (const Gpr& a : a_) add(a, count * shape_.a_group_bytes);
  }

  const Shape shape_;
  const Gpr a_blocks_ = claim_gpr("a blocks"), stride_ = claim_gpr("stride"), blocks_ = claim_gpr("blocks");
  std::vector<Vec> totals_;
};

}  // namespace lathe
