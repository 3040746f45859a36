#include "ops/copy/run_copies.h"

#include <algorithm>

#include "ops/copy/copy_bytes.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kLongestRun = 4096;  // elements: longer ones are cut, so that threads have shares

// Short ones without a call.
template <int64_t kBytes>
void copy_whole(char* to, const char* from) {
  std::memcpy(to, from, kBytes);
}

void copy_run(char* to, const char* from, int64_t bytes) {
  if (bytes > 256) return copy_bytes(to, from, static_cast<size_t>(bytes));
  for (; bytes >= 32; bytes -= 32, to += 32, from += 32) copy_whole<32>(to, from);
  for (; bytes >= 8; bytes -= 8, to += 8, from += 8) copy_whole<8>(to, from);
  for (; bytes > 0; --bytes) *to++ = *from++;
}

}  // namespace

void ElementRuns::add(int64_t from, int64_t to, int64_t count) {
  elements_ += count;
  ++added_;
  if (!runs_.empty()) {
    Run& last = runs_.back();
    const bool goes_on = last.from + last.count == from && last.to + last.count == to;
    if (goes_on && last.count + count <= kLongestRun) {
      last.count += count;
      return;
    }
  }
  runs_.push_back({from, to, count});
}

bool ElementRuns::are_long() const {
  constexpr int64_t kFewestElements = 4;
  const auto runs = static_cast<int64_t>(runs_.size());
  return runs > 0 && elements_ >= kFewestElements * runs && added_ >= 2 * runs;
}

bool ElementRuns::are_apart() const {
  const auto is_before = [](const Run& a, const Run& b) { return a.to < b.to; };
  const auto meet = [](const Run& a, const Run& b) { return a.to + a.count > b.to; };
  if (std::is_sorted(runs_.begin(), runs_.end(), is_before))
    return std::adjacent_find(runs_.begin(), runs_.end(), meet) == runs_.end();
  std::vector<Run> sorted = runs_;
  std::sort(sorted.begin(), sorted.end(), is_before);
  return std::adjacent_find(sorted.begin(), sorted.end(), meet) == sorted.end();
}

Step ElementRuns::copy_step(BufferId from, BufferId to, int64_t element_bytes, const Repeats& repeats,
                            int threads) const {
  const auto count = static_cast<int64_t>(runs_.size()), all = count * repeats.times;
  Step step;
  step.kernel = "copy runs of " + std::to_string(elements_ / std::max<int64_t>(count, 1) * element_bytes) + " bytes";
  step.reads = {from};
  step.writes = {to};
  step.bytes = 2 * static_cast<double>(elements_ * repeats.times * element_bytes);
  constexpr double kWorkOfRun = 32;
  const double work = step.bytes + kWorkOfRun * static_cast<double>(all);
  step.threads = static_cast<int>(std::min<int64_t>(worthwhile_threads(work, threads), std::max<int64_t>(all, 1)));
  step.run = [=, runs = runs_](const StepArgs& args) {
    const Range own = split_evenly(all, args.share, args.shares);
    const auto* source = args.at<const char>(from);
    auto* target = args.at<char>(to);
    for (int64_t i = own.begin; i < own.end;) {
      const int64_t repeat = i / count, end = std::min(own.end, (repeat + 1) * count);
      const char* in = source + repeat * repeats.from_step * element_bytes;
      char* out = target + repeat * repeats.to_step * element_bytes;
      for (; i < end; ++i) {
        const Run& run = runs[static_cast<size_t>(i - repeat * count)];
        copy_run(out + run.to * element_bytes, in + run.from * element_bytes, run.count * element_bytes);
      }
    }
  };
  return step;
}

std::optional<ElementRuns> scattered_runs(const IndexTuples& indices, const std::vector<int64_t>& strides,
                                          int64_t count) {
  if (!are_known_within(indices)) return std::nullopt;
  ElementRuns runs;
  visit_index_type(indices.dtype, [&]<class Index>() {
    const Index* tuple = indices.constant.data<Index>();
    for (int64_t i = 0; i < indices.tuples; ++i, tuple += indices.depth()) {
      int64_t to = 0;
      for (size_t k = 0; k < strides.size(); ++k) to += from_front(tuple[k], indices.extents[k]) * strides[k];
      runs.add(i * count, to, count);
    }
  });
  return runs;
}

Step take_over_step(BufferId data, BufferId out, size_t bytes, int threads) {
  Step step;
  step.kernel = "copy";
  step.reads = {data};
  step.writes = {out};
  step.in_place = {{out, data}};
  step.bytes = 2 * static_cast<double>(bytes);
  step.threads = worthwhile_threads(step.bytes, threads);
  step.run = [=](const StepArgs& args) {
    if (args.at<const void>(data) == args.at<const void>(out)) return;
    const Range lines = split_evenly(static_cast<long>(bytes + 63) / 64, args.share, args.shares);
    const size_t begin = static_cast<size_t>(lines.begin) * 64,
                 end = std::min(static_cast<size_t>(lines.end) * 64, bytes);
    std::memcpy(args.at<char>(out) + begin, args.at<const char>(data) + begin, end - begin);
  };
  return step;
}

}  // namespace lathe
