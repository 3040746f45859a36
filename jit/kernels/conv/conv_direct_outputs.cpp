// What a tile's sums begin with, and where they go.
#include <algorithm>
#include <cstddef>

#include "jit/kernels/conv/conv_direct_emitter.h"

namespace lathe {

void DirectEmitter::start_accumulators() {
  Xbyak::Label from_zero, started;
  const bool adds_bias = plan_.has_bias && plan_.channels.lead == 0;
  if (adds_bias) {
    cmp(qword[call_ + offsetof(ConvCall, accumulate)], 0);
    jne(from_zero, T_NEAR);
  }
  if (adds_bias) mov(scratch_, qword[call_ + offsetof(ConvCall, bias)]);
  for (int block = 0; block < plan_.blocks; ++block) {
    for (int pixel = 0; pixel < shape_->pixels; ++pixel) {
      if (is_shared(block) && !shared_.is_holder(pixel)) continue;
      if (!adds_bias) {
        zero(accumulator(pixel, block));
      } else if (pixel == 0) {
        load_block(accumulator(0, block), block, scratch_ + block * vec_bytes());
      } else {
        vmovaps(accumulator(pixel, block), accumulator(0, block));
      }
    }
  }
  if (!adds_bias) return;
  jmp(started, T_NEAR);
  L(from_zero);
  for (int i = 0; i < accumulators_; ++i) zero(pool_[static_cast<size_t>(i)]);
  L(started);
}

// Earlier visits' sums come last: of two short sums the rounding errors are smaller than of one long one.
void DirectEmitter::add_earlier_visits() {
  Xbyak::Label done;
  cmp(qword[call_ + offsetof(ConvCall, accumulate)], 0);
  je(done, T_NEAR);
  for_outputs([&](int pixel, int block) {
    const Vec& sum = accumulator(pixel, block);
    vaddps(sum, sum, ptr[output_at(pixel, block)]);
  });
  L(done);
}

void DirectEmitter::store_tile() {
  Xbyak::Label finish_tile, done;
  if (!epilogue_.is_empty()) {
    cmp(qword[call_ + offsetof(ConvCall, finish)], 0);
    jne(finish_tile, T_NEAR);
  }
  for_outputs([&](int pixel, int block) { store(output_at(pixel, block), accumulator(pixel, block)); });
  if (epilogue_.is_empty()) return;
  jmp(done, T_NEAR);
  L(finish_tile);
  apply_epilogue();
  L(done);
}

// Accumulators that the epilogue needs as temporaries wait in the target, where they belong anyway.
void DirectEmitter::apply_epilogue() {
  const auto all = pool_.size(), temps = static_cast<size_t>(epilogue_.temps_needed());
  const auto accumulators = static_cast<size_t>(accumulators_);
  std::vector<Vec> free(pool_.begin() + accumulators_, pool_.end());
  const size_t waiting = temps > free.size() ? temps - free.size() : 0;
  if (waiting >= accumulators || all < temps + 1) throw JitError("the epilogue needs too many registers");
  std::vector<Output> outputs;
  for_outputs([&](int pixel, int block) {
    const bool waits = outputs.size() + waiting >= accumulators;
    const Vec& value = accumulator(pixel, block);
    if (waits) {
      store(output_at(pixel, block), value);
      free.push_back(value);
    }
    outputs.push_back({pixel, block, waits});
  });
  int block_there = plan_.blocks - 1;
  for (size_t first = 0; first < outputs.size();) {
    const size_t last = first + group_size(std::span(outputs).subspan(first), free.size(), temps);
    const int block = outputs[first].block;
    if (block != block_there) move_to_block(block, block_there);
    block_there = block;
    finish_outputs(std::span(outputs).subspan(first, last - first), free);
    first = last;
  }
}

// How many of the next outputs are finished together: of one block, with registers for all.
size_t DirectEmitter::group_size(std::span<const Output> outputs, size_t free, size_t temps) {
  constexpr size_t kMost = 6;
  const size_t each = temps + (outputs[0].waits ? 1 : 0);
  size_t size = 1;
  while (size < std::min(kMost, outputs.size()) && (size + 1) * each <= free &&
         outputs[size].block == outputs[0].block && outputs[size].waits == outputs[0].waits)
    ++size;
  return size;
}

void DirectEmitter::move_to_block(int block, int block_there) {
  if (block == 1) {
    mov(block_at_, target_block_);
  } else if (block > 1) {
    for (int i = block_there; i < block; ++i) add(block_at_, target_block_);
  }
}

// `free` registers become more by those of the outputs that are done.
void DirectEmitter::finish_outputs(std::span<const Output> outputs, std::vector<Vec>& free) {
  std::vector<Vec> values;
  for (const Output& output : outputs) {
    Vec value = accumulator(output.pixel, output.block);
    if (output.waits) {
      value = free.back();
      free.pop_back();
      load(value, output_at(output.pixel, output.block));
    }
    values.push_back(value);
  }
  const auto at = [&](size_t which) { return operand_at(outputs[which].pixel, outputs[which].block); };
  epilogue_.apply(values, free, call_ + offsetof(ConvCall, operands), scratch_, at, outputs[0].block * vec_bytes());
  for (size_t i = 0; i < values.size(); ++i) {
    store(output_at(outputs[i].pixel, outputs[i].block), values[i]);
    free.push_back(values[i]);
  }
}

}  // namespace lathe
