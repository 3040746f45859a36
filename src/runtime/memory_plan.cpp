#include "src/runtime/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr size_t kAlignment = 64;  // cache line
constexpr size_t kPage = 4096;
// Vector loads may read, never write, up to one vector past a buffer's end.
constexpr size_t kSlack = 64;

size_t round_up(size_t bytes, size_t unit) { return checked_add(bytes, unit - 1) / unit * unit; }

struct Life {
  size_t first = ~size_t{0}, last = 0;  // steps
  void extend(size_t step) {
    first = std::min(first, step);
    last = std::max(last, step);
  }
};

std::vector<Life> lives_of_roots(const LoweredGraph& lowered) {
  std::vector<Life> lives(lowered.buffers.size());
  for (size_t s = 0; s < lowered.steps.size(); ++s)
    for (const auto* list : {&lowered.steps[s].reads, &lowered.steps[s].writes})
      for (BufferId id : *list) lives[static_cast<size_t>(lowered.root(id).first)].extend(s);
  return lives;
}

void grant_in_place(LoweredGraph& lowered) {
  std::vector<Life> lives = lives_of_roots(lowered);
  for (size_t s = 0; s < lowered.steps.size(); ++s)
    for (const auto& [write, read] : lowered.steps[s].in_place) {
      Buffer& target = lowered.buffer(write);
      const auto [root, offset] = lowered.root(read);
      Life& source_life = lives[static_cast<size_t>(root)];
      Life& target_life = lives[static_cast<size_t>(write)];
      if (!target.is_planned() || !lowered.buffer(root).is_planned() || root == write || offset != 0 ||
          lowered.buffer(root).bytes != target.bytes || source_life.last != s || target_life.first != s)
        continue;
      target.inside = root;
      source_life.extend(target_life.last);
      break;
    }
}

struct Placed {
  size_t begin, end;
  Life life;
};

// The lowest offset at which `bytes` fit beside everything alive at the same time. `placed` is sorted by begin.
size_t lowest_free(const std::vector<Placed>& placed, const Life& life, size_t bytes) {
  size_t at = 0;
  for (const Placed& other : placed) {
    if (other.life.last < life.first || life.last < other.life.first) continue;
    if (at + bytes <= other.begin) break;
    at = std::max(at, other.end);
  }
  return at;
}

// Places the shared buffers or those of one thread, behind `begin`; the bytes that they take.
size_t place_buffers(const LoweredGraph& lowered, const std::vector<Life>& lives, bool per_thread, size_t begin,
                     std::vector<size_t>& offsets) {
  std::vector<size_t> order;
  for (size_t b = 0; b < lowered.buffers.size(); ++b)
    if (lowered.buffers[b].is_planned() && lowered.buffers[b].per_thread == per_thread) order.push_back(b);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lowered.buffers[a].bytes > lowered.buffers[b].bytes; });
  size_t all = 0;
  std::vector<Placed> placed;
  for (size_t b : order) {
    const size_t bytes = round_up(checked_add(lowered.buffers[b].bytes, kSlack), kAlignment);
    const size_t at = lowest_free(placed, lives[b], bytes);
    offsets[b] = checked_add(begin, at);
    all = std::max(all, checked_add(at, bytes));
    const Placed entry{at, at + bytes, lives[b]};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry,
                                   [](const Placed& x, const Placed& y) { return x.begin < y.begin; }),
                  entry);
  }
  return all;
}

size_t threads_of(const LoweredGraph& lowered) {
  int threads = 1;
  for (const Step& step : lowered.steps) threads = std::max(threads, step.threads);
  return static_cast<size_t>(threads);
}

}  // namespace

MemoryPlan plan_memory(LoweredGraph& lowered) {
  grant_in_place(lowered);
  const std::vector<Life> lives = lives_of_roots(lowered);
  MemoryPlan plan;
  plan.offsets.assign(lowered.buffers.size(), MemoryPlan::kNotInArena);
  plan.arena_bytes = place_buffers(lowered, lives, false, 0, plan.offsets);
  const size_t begin = round_up(plan.arena_bytes, kPage);
  plan.thread_bytes = round_up(place_buffers(lowered, lives, true, begin, plan.offsets), kPage);
  if (plan.thread_bytes > 0) {
    plan.arena_bytes = checked_add(begin, checked_multiply(plan.thread_bytes, threads_of(lowered)));
  }
  for (size_t b = 0; b < lowered.buffers.size(); ++b) {
    const auto [root, offset] = lowered.root(static_cast<BufferId>(b));
    const size_t base = plan.offsets[static_cast<size_t>(root)];
    if (base != MemoryPlan::kNotInArena) plan.offsets[b] = base + offset;
  }
  return plan;
}

}  // namespace lathe
