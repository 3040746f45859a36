// Plans are checked by running them: every step marks each byte that it writes, and finds its own marks in what it
// reads.
#include "src/runtime/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lathe {
namespace {

BufferId id_of(size_t i) { return static_cast<BufferId>(i); }

BufferId add_buffer(LoweredGraph& graph, size_t bytes, bool external = false) {
  Buffer buffer;
  buffer.bytes = bytes;
  buffer.external = external;
  graph.buffers.push_back(buffer);
  return id_of(graph.buffers.size() - 1);
}

void add_step(LoweredGraph& graph, std::vector<BufferId> reads, std::vector<BufferId> writes,
              std::vector<std::pair<BufferId, BufferId>> in_place = {}) {
  Step step;
  step.reads = std::move(reads);
  step.writes = std::move(writes);
  step.in_place = std::move(in_place);
  graph.steps.push_back(std::move(step));
}

// An arena with a mark on each byte: which buffer's elements lie there.
class MarkedArena {
 public:
  MarkedArena(const LoweredGraph& graph, const MemoryPlan& plan)
      : graph_(graph), plan_(plan), marks_(plan.arena_bytes, -1) {}

  // Where no buffer's life is broken, every read sees what was written.
  void run() {
    for (size_t s = 0; s < graph_.steps.size(); ++s) {
      for (BufferId id : graph_.steps[s].reads)
        if (is_written(id)) expect_marks(id, s);
      for (BufferId id : graph_.steps[s].writes) write(id);
    }
  }

 private:
  bool in_arena(BufferId id) const { return plan_.offsets[static_cast<size_t>(id)] != MemoryPlan::kNotInArena; }
  bool is_written(BufferId id) const {
    return in_arena(id) && std::find(written_.begin(), written_.end(), id) != written_.end();
  }
  void write(BufferId id) {
    if (!in_arena(id)) return;
    const size_t begin = plan_.offsets[static_cast<size_t>(id)], bytes = graph_.buffer(id).bytes;
    ASSERT_LE(begin + bytes, marks_.size()) << "a buffer lies past the arena's end";
    std::fill_n(marks_.begin() + static_cast<std::ptrdiff_t>(begin), bytes, static_cast<int>(id));
    written_.push_back(id);
  }
  void expect_marks(BufferId id, size_t step) const {
    const size_t begin = plan_.offsets[static_cast<size_t>(id)];
    for (size_t i = 0; i < graph_.buffer(id).bytes; ++i)
      ASSERT_EQ(marks_[begin + i], static_cast<int>(id)) << "step " << step << " reads byte " << i << " of buffer "
                                                         << static_cast<int>(id) << ", which was overwritten";
  }

  const LoweredGraph& graph_;
  const MemoryPlan& plan_;
  std::vector<int> marks_;
  std::vector<BufferId> written_;
};

TEST(MemoryPlan, SharesMemoryOfBuffersThatDoNotLiveTogether) {
  LoweredGraph graph;
  const BufferId input = add_buffer(graph, 4096, true), output = add_buffer(graph, 4096, true);
  std::vector<BufferId> chain{input};
  for (int i = 0; i < 10; ++i) {
    chain.push_back(add_buffer(graph, 4096));
    add_step(graph, {chain[chain.size() - 2]}, {chain.back()});
  }
  add_step(graph, {chain.back()}, {output});
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_LE(plan.arena_bytes, 2 * (4096 + 64)) << "two buffers are alive at a time";
  EXPECT_EQ(plan.offsets[static_cast<size_t>(input)], MemoryPlan::kNotInArena);
  EXPECT_EQ(plan.offsets[static_cast<size_t>(output)], MemoryPlan::kNotInArena);
  MarkedArena(graph, plan).run();
}

TEST(MemoryPlan, KeepsABufferUntilItsLastUse) {
  LoweredGraph graph;
  const BufferId early = add_buffer(graph, 640), a = add_buffer(graph, 640), b = add_buffer(graph, 640);
  add_step(graph, {}, {early});
  add_step(graph, {early}, {a});
  add_step(graph, {a}, {b});
  add_step(graph, {b, early}, {});  // a residual connection
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
  EXPECT_NE(plan.offsets[0], plan.offsets[2]);
  MarkedArena(graph, plan).run();
}

// A chain of pictures: of `planes` planes of `plane_bytes` each, one step for each.
struct Picture {
  size_t plane_bytes, planes;
};
LoweredGraph chain_of_pictures(const std::vector<Picture>& pictures, int threads) {
  LoweredGraph graph;
  for (const Picture& picture : pictures) {
    const BufferId id = add_buffer(graph, picture.plane_bytes * picture.planes);
    graph.buffer(id).plane_bytes = picture.plane_bytes;
    add_step(graph, graph.steps.empty() ? std::vector<BufferId>{} : graph.steps.back().writes, {id});
    graph.steps.back().threads = threads;
  }
  return graph;
}

TEST(MemoryPlan, LaysPicturesOfOneSizePlaneUponPlaneForSeveralThreads) {
  const std::vector<Picture> pictures = {{6400, 3}, {6400, 8}, {1600, 16}, {6400, 5}, {1600, 24}, {6400, 4}, {1600, 5}};
  LoweredGraph graph = chain_of_pictures(pictures, 2);
  const BufferId odd = add_buffer(graph, 1000);
  graph.steps[2].reads.push_back(odd);
  graph.steps[0].writes.push_back(odd);
  const MemoryPlan plan = plan_memory(graph);
  MarkedArena(graph, plan).run();
  std::vector<std::pair<size_t, size_t>> covered;  // by pictures of 6400 and of 1600
  for (const size_t plane : {6400, 1600}) {
    size_t begin = ~size_t{0}, end = 0;
    for (size_t i = 0; i < pictures.size(); ++i) {
      if (pictures[i].plane_bytes != plane) continue;
      const size_t first = plane == 6400 ? 0 : 2;
      const auto distance = static_cast<ptrdiff_t>(plan.offsets[i]) - static_cast<ptrdiff_t>(plan.offsets[first]);
      EXPECT_EQ(distance % static_cast<ptrdiff_t>(plane), 0) << "buffer " << i;
      begin = std::min(begin, plan.offsets[i]);
      end = std::max(end, plan.offsets[i] + plane * pictures[i].planes);
    }
    covered.emplace_back(begin, end);
  }
  EXPECT_TRUE(covered[0].second <= covered[1].first || covered[1].second <= covered[0].first)
      << "pictures of two sizes share memory";
}

TEST(MemoryPlan, SharesMemoryOfAllPicturesForOneThread) {
  LoweredGraph graph = chain_of_pictures({{6400, 3}, {6400, 8}, {1600, 16}, {1600, 24}}, 1);
  EXPECT_LE(plan_memory(graph).arena_bytes, 6400U * 8 + 1600U * 16 + 3 * 64) << "the largest that live together";
}

TEST(MemoryPlan, SharesMemoryOfPicturesOfManySizesOrMoreThanCachesHold) {
  std::vector<Picture> sizes;
  for (size_t i = 1; i <= 12; ++i) sizes.push_back({i * 64, 720720 / i / 64});  // about as large each
  LoweredGraph many = chain_of_pictures(sizes, 2);
  EXPECT_LE(plan_memory(many).arena_bytes, 3 * 720720U);
  LoweredGraph large = chain_of_pictures({{1 << 20, 30}, {1 << 20, 30}, {1 << 18, 30}, {1 << 18, 30}}, 2);
  EXPECT_LE(plan_memory(large).arena_bytes, 61U << 20);
}

TEST(MemoryPlan, WritesInPlaceWhereTheReadEndsItsLife) {
  LoweredGraph graph;
  const BufferId x = add_buffer(graph, 640), y = add_buffer(graph, 640);
  add_step(graph, {}, {x});
  add_step(graph, {x}, {y}, {{y, x}});
  add_step(graph, {y}, {});
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_EQ(plan.offsets[0], plan.offsets[1]);
  EXPECT_EQ(graph.buffer(y).inside, x);
  EXPECT_LE(plan.arena_bytes, 640U + 64);
}

TEST(MemoryPlan, DoesNotWriteInPlaceOfWhatIsReadLater) {
  LoweredGraph graph;
  const BufferId x = add_buffer(graph, 640), y = add_buffer(graph, 640);
  add_step(graph, {}, {x});
  add_step(graph, {x}, {y}, {{y, x}});
  add_step(graph, {y, x}, {});
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
}

TEST(MemoryPlan, DoesNotWriteInPlaceOfWhatIsReadAsAViewToo) {
  LoweredGraph graph;
  const BufferId x = add_buffer(graph, 640), view = add_buffer(graph, 640), y = add_buffer(graph, 640);
  graph.buffer(view).inside = x;
  add_step(graph, {}, {x});
  add_step(graph, {x, view}, {y}, {{y, x}});
  add_step(graph, {y}, {});
  (void)plan_memory(graph);
  EXPECT_EQ(graph.buffer(y).inside, BufferId::none);
}

TEST(MemoryPlan, DoesNotWriteInPlaceOfInputsConstantsOrOtherSizes) {
  static const float constant[160] = {};
  LoweredGraph graph;
  const BufferId input = add_buffer(graph, 640, true), fixed = add_buffer(graph, 640), larger = add_buffer(graph, 1280);
  graph.buffer(fixed).fixed = constant;
  const BufferId out[] = {add_buffer(graph, 640), add_buffer(graph, 640), add_buffer(graph, 640)};
  add_step(graph, {}, {larger});
  const BufferId reads[] = {input, fixed, larger};
  for (int i = 0; i < 3; ++i) add_step(graph, {reads[i]}, {out[i]}, {{out[i], reads[i]}});
  add_step(graph, {out[0], out[1], out[2]}, {});
  (void)plan_memory(graph);
  for (BufferId id : out) EXPECT_EQ(graph.buffer(id).inside, BufferId::none);
}

TEST(MemoryPlan, KeepsAViewedBufferAsLongAsItsViews) {
  LoweredGraph graph;
  const BufferId whole = add_buffer(graph, 1280), view = add_buffer(graph, 640), other = add_buffer(graph, 1280);
  graph.buffer(view).inside = whole;
  graph.buffer(view).offset = 640;
  add_step(graph, {}, {whole});
  add_step(graph, {}, {other});
  add_step(graph, {view, other}, {});
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_EQ(plan.offsets[static_cast<size_t>(view)], plan.offsets[static_cast<size_t>(whole)] + 640);
  const size_t a = plan.offsets[static_cast<size_t>(whole)], b = plan.offsets[static_cast<size_t>(other)];
  EXPECT_TRUE(a + 1280 <= b || b + 1280 <= a) << a << " and " << b;
}

TEST(MemoryPlan, AlignsEveryBufferAndLeavesRoomForVectorReads) {
  LoweredGraph graph;
  std::vector<BufferId> all;
  for (size_t bytes : {1U, 63U, 64U, 65U, 4097U}) all.push_back(add_buffer(graph, bytes));
  add_step(graph, {}, all);
  add_step(graph, all, {});
  const MemoryPlan plan = plan_memory(graph);
  for (BufferId id : all) {
    EXPECT_EQ(plan.offsets[static_cast<size_t>(id)] % 64, 0U);
    EXPECT_LE(plan.offsets[static_cast<size_t>(id)] + graph.buffer(id).bytes + 64, plan.arena_bytes);
  }
}

TEST(MemoryPlan, GivesEveryThreadMemoryThatNobodyElseTouches) {
  constexpr size_t kThreads = 3;
  LoweredGraph graph;
  const BufferId shared = add_buffer(graph, 5000);
  std::vector<BufferId> own;
  for (const size_t bytes : {700U, 9000U, 64U}) {
    own.push_back(add_buffer(graph, bytes));
    graph.buffer(own.back()).per_thread = true;
  }
  add_step(graph, {}, {shared, own[0], own[1]});
  add_step(graph, {own[0], own[1]}, {});
  add_step(graph, {shared}, {own[2]});
  add_step(graph, {own[2]}, {});
  graph.steps[1].threads = kThreads;
  const MemoryPlan plan = plan_memory(graph);
  const auto begin = [&](BufferId id) { return plan.offsets[static_cast<size_t>(id)]; };
  const auto end = [&](BufferId id) { return begin(id) + graph.buffer(id).bytes; };
  for (const BufferId id : own) {
    EXPECT_GE(begin(id), end(shared));
    EXPECT_LE(end(id), begin(own[1]) + plan.thread_bytes) << "reaches into the next thread's";
    EXPECT_LE(end(id) + (kThreads - 1) * plan.thread_bytes, plan.arena_bytes);
  }
  EXPECT_TRUE(end(own[0]) <= begin(own[1]) || end(own[1]) <= begin(own[0])) << "they live together";
  EXPECT_EQ(begin(own[2]), begin(own[1])) << "it comes later";
}

TEST(MemoryPlan, KeepsASingleThreadsOwnMemoryAmongTheRest) {
  LoweredGraph graph;
  const BufferId first = add_buffer(graph, 9000), own = add_buffer(graph, 8000), beside = add_buffer(graph, 500);
  graph.buffer(own).per_thread = true;
  add_step(graph, {}, {first});
  add_step(graph, {first}, {beside});
  add_step(graph, {beside}, {own});
  add_step(graph, {beside, own}, {});
  const MemoryPlan plan = plan_memory(graph);
  const auto begin = [&](BufferId id) { return plan.offsets[static_cast<size_t>(id)]; };
  EXPECT_EQ(begin(own), begin(first)) << "the first one's life is over";
  EXPECT_GE(begin(beside), begin(own) + 8000);
  EXPECT_LT(plan.arena_bytes, 9000U + 8000U);
}

// Steps that read random earlier buffers, offer in-place writes, and use scratch.
LoweredGraph random_graph(std::mt19937& random) {
  LoweredGraph graph;
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const size_t sizes[] = {64, 100, 640, 640, 640, 4000};
  std::vector<BufferId> known{add_buffer(graph, 640, true)};
  const size_t steps = 2 + below(40);
  for (size_t s = 0; s < steps; ++s) {
    std::vector<BufferId> reads, writes;
    for (size_t i = 0; i <= below(3); ++i)
      reads.push_back(known[known.size() - 1 - below(std::min<size_t>(known.size(), 6))]);
    for (size_t i = 0; i <= below(2); ++i)
      writes.push_back(add_buffer(graph, sizes[below(6)], s + 1 == steps && i == 0));
    std::vector<std::pair<BufferId, BufferId>> in_place;
    for (BufferId write : writes)
      for (BufferId read : reads)
        if (below(2) == 0 && graph.buffer(read).bytes == graph.buffer(write).bytes) in_place.emplace_back(write, read);
    known.insert(known.end(), writes.begin(), writes.end());
    if (below(4) == 0) writes.push_back(add_buffer(graph, sizes[below(6)]));  // scratch: nobody reads it
    add_step(graph, reads, writes, in_place);
  }
  return graph;
}

TEST(MemoryPlan, NeverOverwritesWhatIsStillRead) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    LoweredGraph graph = random_graph(random);
    const MemoryPlan plan = plan_memory(graph);
    MarkedArena(graph, plan).run();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace lathe
