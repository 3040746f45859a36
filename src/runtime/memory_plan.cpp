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

// Another operand of the step lies there too, as a view that is read in an order of its own.
bool is_shared(const LoweredGraph& lowered, const Step& step, BufferId read) {
  const BufferId root = lowered.root(read).first;
  return std::any_of(step.reads.begin(), step.reads.end(),
                     [&](BufferId other) { return other != read && lowered.root(other).first == root; });
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
          lowered.buffer(root).bytes != target.bytes || source_life.last != s || target_life.first != s ||
          is_shared(lowered, lowered.steps[s], read))
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

using Ids = std::vector<size_t>;

// What all threads use, and what each of several has of its own.
struct Planned {
  Ids shared, own;
};
Planned planned(const LoweredGraph& lowered, size_t threads) {
  Planned ids;
  for (size_t b = 0; b < lowered.buffers.size(); ++b) {
    const Buffer& buffer = lowered.buffers[b];
    if (buffer.is_planned()) (buffer.per_thread && threads > 1 ? ids.own : ids.shared).push_back(b);
  }
  return ids;
}

// Where `ids` lie, from 0 on, at multiples of `unit`; the bytes that they take.
size_t place_buffers(const LoweredGraph& lowered, const std::vector<Life>& lives, Ids ids, size_t unit, size_t slack,
                     std::vector<size_t>& offsets) {
  std::stable_sort(ids.begin(), ids.end(),
                   [&](size_t a, size_t b) { return lowered.buffers[a].bytes > lowered.buffers[b].bytes; });
  size_t all = 0;
  std::vector<Placed> placed;
  for (size_t b : ids) {
    const size_t bytes = round_up(checked_add(lowered.buffers[b].bytes, slack), unit);
    const size_t at = lowest_free(placed, lives[b], bytes);
    offsets[b] = at;
    all = std::max(all, checked_add(at, bytes));
    const Placed entry{at, at + bytes, lives[b]};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry,
                                   [](const Placed& x, const Placed& y) { return x.begin < y.begin; }),
                  entry);
  }
  return all;
}

// Buffers with the same size of plane, which have a part of the arena to themselves; of size 0: all others.
struct Region {
  size_t plane_bytes = 0;
  Ids ids;
};

std::vector<Region> regions_by_plane(const LoweredGraph& lowered, const Ids& ids) {
  std::vector<Region> regions(1);
  for (const size_t b : ids) {
    const Buffer& buffer = lowered.buffers[b];
    const size_t plane = buffer.plane_bytes;
    const bool fits = plane > 0 && plane % kAlignment == 0 && buffer.bytes > 0 && buffer.bytes % plane == 0;
    if (!fits) {
      regions[0].ids.push_back(b);
      continue;
    }
    auto at = std::find_if(regions.begin() + 1, regions.end(),
                           [&](const Region& region) { return region.plane_bytes == plane; });
    if (at == regions.end()) at = regions.insert(at, {plane, {}});
    at->ids.push_back(b);
  }
  return regions;
}

// Of several regions, one behind the other.
size_t place_regions(const LoweredGraph& lowered, const std::vector<Life>& lives, const std::vector<Region>& regions,
                     std::vector<size_t>& offsets) {
  size_t begin = 0;
  for (const Region& region : regions) {
    const bool has_planes = region.plane_bytes > 0;
    const size_t bytes = place_buffers(lowered, lives, region.ids, has_planes ? region.plane_bytes : kAlignment,
                                       has_planes ? 0 : kSlack, offsets);
    for (const size_t b : region.ids) offsets[b] = checked_add(offsets[b], begin);
    if (bytes > 0) begin = round_up(checked_add(begin, checked_add(bytes, kSlack)), kPage);
  }
  return begin;
}

// What lines gain by staying with their thread is worth some memory, unless there is more than caches hold: lines go
// back to memory then, and nobody waits for another core.
bool pays_regions(size_t bytes, size_t together) {
  constexpr size_t kMostBytes = 64 << 20, kMostGrowth = 3;
  return bytes <= kMostBytes && bytes / kMostGrowth <= together;
}

// The shared buffers; the bytes that they take.
size_t place_shared(const LoweredGraph& lowered, const std::vector<Life>& lives, const Ids& ids, bool has_threads,
                    std::vector<size_t>& offsets) {
  const size_t together = place_buffers(lowered, lives, ids, kAlignment, kSlack, offsets);
  if (!has_threads) return together;
  const std::vector<Region> regions = regions_by_plane(lowered, ids);
  if (regions.size() == 1) return together;
  std::vector<size_t> apart = offsets;
  const size_t bytes = place_regions(lowered, lives, regions, apart);
  if (!pays_regions(bytes, together)) return together;
  offsets = std::move(apart);
  return bytes;
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
  const size_t threads = threads_of(lowered);
  const Planned ids = planned(lowered, threads);
  plan.arena_bytes = place_shared(lowered, lives, ids.shared, threads > 1, plan.offsets);
  const size_t begin = round_up(plan.arena_bytes, kPage);
  plan.thread_bytes = round_up(place_buffers(lowered, lives, ids.own, kAlignment, kSlack, plan.offsets), kPage);
  for (const size_t b : ids.own) plan.offsets[b] = checked_add(plan.offsets[b], begin);
  if (plan.thread_bytes > 0) plan.arena_bytes = checked_add(begin, checked_multiply(plan.thread_bytes, threads));
  for (size_t b = 0; b < lowered.buffers.size(); ++b) {
    const auto [root, offset] = lowered.root(static_cast<BufferId>(b));
    const size_t base = plan.offsets[static_cast<size_t>(root)];
    if (base != MemoryPlan::kNotInArena) plan.offsets[b] = base + offset;
  }
  return plan;
}

}  // namespace lathe
