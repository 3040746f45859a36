#pragma once
// Operands for measuring one task alone as if it ran inside a model: what comes from memory there comes from memory
// here, what the step before has just written is in the cache.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "jit/kernel.h"
#include "lathe/tensor.h"
#include "src/base/thread_team.h"
#include "tuner/task.h"

namespace lathe {

// Inputs, outputs and scratch memory, on huge pages as in a model's arena: small pages, which fall into sets of L2 by
// chance, make what is visited again look dearer than it is. Filled with small numbers: untouched pages would all be
// one page of zeros.
Tensor bench_tensor(DType dtype, int64_t count);

// Two copies of packed weights, on pages like those of a model's: one to be used, one that the step behind would have.
// What has been used leaves the caches.
class ColdWeights {
 public:
  explicit ColdWeights(DType dtype, int64_t count);
  const Tensor& current() const { return copies_[turn_]; }
  const Tensor& next() const { return copies_[1 - turn_]; }
  void advance();

 private:
  std::array<Tensor, 2> copies_;
  size_t turn_ = 0;
};

// Brings the caches of all threads into the state that a step in the middle of a model finds: other steps' code and
// data have been there, the step before has used the same scratch memory and written `input`, while the first of
// `weights` were prefetched. `planes`: equal parts of the input, of each of which every thread has written its share.
class ModelCaches {
 public:
  ModelCaches();
  void prepare(ThreadTeam& team, Tensor& input, const Tensor& weights, std::span<Tensor> scratch = {},
               int64_t planes = 1);

  // The same for several inputs, which keep their elements; the first was written last. `constants` come from memory.
  struct Memory {
    const void* begin;
    size_t bytes;
  };
  void prepare(ThreadTeam& team, std::span<Tensor> inputs, std::span<const Memory> constants, const void* weights);

 private:
  Tensor other_;
};

// A candidate's Bench, made of these: run() is timed, prepare() is not. Empty where its code cannot be emitted.
template <class Bench, class... Parts>
Runner bench_runner(const Parts&... parts) {
  try {
    const auto bench = std::make_shared<Bench>(parts...);
    return {[bench] { bench->run(); }, [bench] { bench->prepare(); }};
  } catch (const JitError&) {
    return {};
  }
}

}  // namespace lathe
