#include "ops/bench_operands.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>

#include "ops/lower.h"
#include "src/base/cpu.h"

namespace lathe {
namespace {

constexpr size_t kFlushedBytes = size_t{64} << 20;  // what is longer drives its own beginning out
constexpr int64_t kPrefetchedBytes = 64 << 10;      // as convolutions do for the step behind them
constexpr int64_t kLine = 64;

void fill(Tensor& tensor) {
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
  const auto size = static_cast<int64_t>(tensor.bytes());
  if (tensor.dtype() == DType::f32) {
    auto* values = tensor.mutable_data<float>();
    for (int64_t i = 0; i < tensor.size(); ++i) values[i] = static_cast<float>(i * 7 % 31 - 15) / 64;
  } else {
    for (int64_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 7 % 31);
  }
}

// Leaves the lines in no cache.
void flush(const void* begin, size_t bytes) {
  const auto* line = static_cast<const char*>(begin);
  for (size_t at = 0; at < std::min(bytes, kFlushedBytes); at += kLine) _mm_clflush(line + at);
  _mm_mfence();
}

}  // namespace

Tensor bench_tensor(DType dtype, int64_t count) {
  Tensor tensor = allocate_weights(dtype, {count});
  fill(tensor);
  return tensor;
}

ColdWeights::ColdWeights(DType dtype, int64_t count) {
  for (Tensor& copy : copies_) {
    copy = bench_tensor(dtype, count);
    flush(copy.raw(), copy.bytes());
  }
}

void ColdWeights::advance() {
  flush(current().raw(), current().bytes());
  turn_ = 1 - turn_;
}

ModelCaches::ModelCaches() : other_(bench_tensor(DType::f32, static_cast<int64_t>(cpu_facts().l2_bytes) * 2 / 4)) {}

namespace {

void read_all(const Tensor& tensor) {
  const auto* line = static_cast<const volatile char*>(tensor.raw());
  for (size_t at = 0; at < tensor.bytes(); at += kLine) (void)line[at];
}

// Leaves the lines as a thread that wrote them would.
void write_again(Tensor& tensor, int thread, int threads) {
  auto* bytes = static_cast<volatile char*>(tensor.mutable_raw());
  const long lines = (static_cast<long>(tensor.bytes()) + kLine - 1) / kLine;
  const Range range = split_evenly(lines, thread, threads);
  for (long line = range.begin; line < range.end; ++line) bytes[line * kLine] = bytes[line * kLine];
}

}  // namespace

void ModelCaches::prepare(ThreadTeam& team, Tensor& input, const Tensor& weights, std::span<Tensor> scratch,
                          int64_t planes) {
  const auto lines = static_cast<long>(other_.bytes()) / kLine;
  team.run(team.size(), [&](int thread) {
    const auto* line = static_cast<const volatile char*>(other_.raw());
    for (long i = 0; i < lines; ++i) (void)line[i * kLine];
    for (Tensor& used : scratch)
      if (used.defined()) write_again(used, thread, team.size());
    const auto plane_size = static_cast<long>(input.size() / planes);
    const Range range = split_evenly(plane_size, thread, team.size());
    for (int64_t plane = 0; plane < planes; ++plane) {
      const long begin = plane * plane_size + range.begin, end = plane * plane_size + range.end;
      if (input.dtype() == DType::f32) {
        auto* values = input.mutable_data<float>();
        std::fill(values + begin, values + end, 0.25F);
      } else {
        auto* values = static_cast<char*>(input.mutable_raw());
        std::fill(values + begin, values + end, char{1});
      }
    }
    const auto* head = static_cast<const char*>(weights.raw());
    const int64_t prefetched =
        thread == 0 ? std::min<int64_t>(kPrefetchedBytes, static_cast<int64_t>(weights.bytes())) : 0;
    for (int64_t at = 0; at < prefetched; at += kLine) __builtin_prefetch(head + at, 0, 2);
  });
}

void ModelCaches::prepare(ThreadTeam& team, std::span<Tensor> inputs, std::span<const Memory> constants,
                          const void* weights) {
  for (const Memory& memory : constants) flush(memory.begin, memory.bytes);
  team.run(team.size(), [&](int thread) {
    read_all(other_);
    for (size_t i = inputs.size(); i-- > 0;) write_again(inputs[i], thread, team.size());
    if (thread != 0 || weights == nullptr) return;
    const auto* head = static_cast<const char*>(weights);
    for (const Memory& memory : constants) {
      const auto* begin = static_cast<const char*>(memory.begin);
      if (head < begin || head >= begin + memory.bytes) continue;
      const auto left = static_cast<int64_t>(begin + memory.bytes - head);
      for (int64_t at = 0; at < std::min(left, kPrefetchedBytes); at += kLine) __builtin_prefetch(head + at, 0, 2);
    }
  });
}

}  // namespace lathe
