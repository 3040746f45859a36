#pragma once
// The code of jit/kernels/conv/conv_direct.h: the loops over input channels and taps in conv_direct_emitter.cpp, what a
// tile begins and ends with in conv_direct_outputs.cpp. Nobody else includes it.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "jit/kernels/common/shared_vector.h"
#include "jit/kernels/conv/conv_direct.h"
#include "jit/kernels/conv/conv_epilogue_emitter.h"

namespace lathe {

// How steps of one channel each are emitted.
struct ConvRounds {
  int loops;  // rounds of `unroll` steps in a loop
  int rest;   // steps behind it
};
// Straight code up to so many channels; longer runs loop.
constexpr int kStraightSteps = 8;
ConvRounds rounds_of(int steps, int unroll);

class DirectEmitter : public Emitter {
 public:
  explicit DirectEmitter(const ConvKernelPlan& plan)
      : Emitter(plan.isa),
        plan_(plan),
        epilogue_(*this, plan.isa, plan.epilogue),
        shared_(*this, plan.last_share, kFirstMask),
        pool_(claim_vecs("pool", free_vecs())) {}

  std::shared_ptr<const CodePages> emit(std::span<const ConvTileShape> shapes, const std::string& name);

 private:
  static constexpr int kFirstMask = 1;

  void emit_tile(const ConvTileShape& shape);
  void emit_blocks();
  void emit_channels();
  void end_lead();
  void load_moving_arguments();
  void step();
  void load_arguments();
  void assign_registers();
  void prefetch_below();
  void prefetch_ahead();
  void emit_block(int lanes, bool more_follow, bool stays_in_block = false);
  void loop_tap(const ConvTapRun& tap, int64_t weights_at, int loops);
  void end_round();
  void emit_step(const ConvTapRun& tap, int64_t weights_at, int source_at, int step);
  void zero_dots();
  void add_dots(int lanes, bool more_follow);
  void load_tail(const Vec& input, const Xbyak::RegExp& at);
  void sum_dots();
  void sum_groups();
  void add_bias_to_dots();
  void sum_four(std::span<const Vec> sums, const Vec& into);
  const Vec& dot(int pixel, int output) const { return pool_[static_cast<size_t>(pixel * plan_.dots + output)]; }
  void multiply_shared(const ConvTapRun& tap, int64_t source_at, int set);
  void part_shared();

  const Vec& accumulator(int pixel, int block) const {
    return pool_[static_cast<size_t>(pixel * plan_.blocks + block)];
  }
  const Vec& weight(int set, int block) const {
    return pool_[static_cast<size_t>(first_weight_ + set * plan_.blocks + block)];
  }
  // Multiply-adds of half a vector take half the time; they leave zeros in the other half.
  Vec used(const Vec& vec, int block) const {
    return is_lead_ || (plan_.half_last && block == plan_.blocks - 1) ? Vec(Xbyak::Ymm(vec.getIdx())) : vec;
  }
  bool is_shared(int block) const { return shared_.is_on() && block == plan_.blocks - 1; }
  void load_block(const Vec& vec, int block, const Xbyak::RegExp& at);
  Vec next_broadcast() { return broadcasts_[static_cast<size_t>(next_broadcast_++) % broadcasts_.size()]; }
  // Taps of the whole window, border or not: their weights are skipped.
  int window_taps() const { return shape_->taps_in_window; }
  void begin_round() { prefetched_ = 0; }
  void prefetch_line() { prefetcht1(ptr[prefetch_ + 64 * prefetched_++]); }

  struct Output {
    int pixel, block;
    bool waits;  // in the target
  };
  void start_accumulators();
  void add_earlier_visits();
  void store_tile();
  void apply_epilogue();
  static size_t group_size(std::span<const Output> outputs, size_t free, size_t temps);
  void move_to_block(int block, int block_there);
  void finish_outputs(std::span<const Output> outputs, std::vector<Vec>& free);
  // body(pixel, block, offset from target) for each accumulator, with block_at_ moving along.
  template <class Body>
  void for_outputs(Body body) {
    for (int block = 0; block < plan_.blocks; ++block) {
      if (block == 1) mov(block_at_, target_block_);
      if (block > 1) add(block_at_, target_block_);
      for (int pixel = 0; pixel < shape_->pixels; ++pixel) body(pixel, block);
    }
  }
  Xbyak::RegExp output_at(int pixel, int block) const {
    const int32_t offset = shape_->stores[static_cast<size_t>(pixel)];
    return block == 0 ? target_ + offset : target_ + block_at_ + offset;
  }
  Xbyak::RegExp operand_at(int pixel, int block) const {
    const int32_t offset = shape_->stores[static_cast<size_t>(pixel)];
    return block == 0 ? Xbyak::RegExp() + offset : block_at_ + offset;
  }

  const ConvKernelPlan& plan_;
  ConvEpilogueEmitter epilogue_;
  SharedVector shared_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), weights_ = claim_gpr("weights"), target_ = claim_gpr("target");
  const Gpr source_block_ = claim_gpr("source block"), target_block_ = claim_gpr("target block");
  const Gpr block_at_ = claim_gpr("block at"), scratch_ = claim_gpr("scratch");
  const Gpr blocks_left_ = claim_gpr("blocks left"), steps_left_ = claim_gpr("steps left");
  const Gpr prefetch_ = claim_gpr("prefetch"), prefetch_step_ = claim_gpr("prefetch step");
  const Gpr ahead_ = claim_gpr("bytes ahead");
  const std::vector<Vec> pool_;
  const ConvTileShape* shape_ = nullptr;
  int accumulators_ = 0, weight_sets_ = 1, first_weight_ = 0;
  std::vector<Vec> broadcasts_;
  int next_set_ = 0, next_broadcast_ = 0, prefetched_ = 0;
  int first_channel_ = 0;  // of the input block
  bool is_lead_ = false;
  int64_t source_moved_ = 0, weights_moved_ = 0;
};

}  // namespace lathe
