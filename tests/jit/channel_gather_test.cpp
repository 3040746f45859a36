#include "jit/kernels/copy/channel_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "tests/guarded_bytes.h"
#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::GuardedBytes;
using testing::isas_here;

// A source's or the result's memory ends at a guard page.
template <class Element>
void expect_gathers() {
  std::mt19937 random(20240901);
  for (const Isa isa : isas_here()) {
    const int lanes = vector_lanes(isa);
    for (int round = 0; round < 200; ++round) {
      const int sources = 1 + static_cast<int>(random() % kMostGatherSources);
      const int64_t pixels = 1 + static_cast<int64_t>(random() % 9);
      const auto elements = static_cast<size_t>(pixels * lanes);
      std::deque<GuardedBytes> memory;
      std::vector<Element*> blocks;
      for (int i = 0; i < sources; ++i) {
        memory.emplace_back(elements * sizeof(Element));
        blocks.push_back(memory.back().as<Element>());
        for (size_t e = 0; e < elements; ++e) blocks.back()[e] = static_cast<Element>(random() % 200);
      }
      ChannelGatherTable table;
      bool is_partial = false;
      std::vector<int> from(static_cast<size_t>(lanes), -1), lane_of(static_cast<size_t>(lanes), 0);
      for (size_t lane = 0; lane < from.size(); ++lane) {
        if (random() % 8 == 0) {
          is_partial = true;
          continue;
        }
        from[lane] = static_cast<int>(random() % static_cast<unsigned>(sources));
        // Most sources are read at lanes of their own in half of the rounds.
        const auto apart = static_cast<size_t>(from[lane] * (lanes / kMostGatherSources));
        lane_of[lane] =
            static_cast<int>((round % 2 == 0 ? random() : apart + random() % 3) % static_cast<unsigned>(lanes));
        table.set(static_cast<size_t>(from[lane]), static_cast<int>(lane), lane_of[lane]);
      }
      constexpr bool kHasBytes = sizeof(Element) == 1;
      constexpr Element kBefore = 201;
      GuardedBytes result_memory(elements * sizeof(Element));
      auto* result = result_memory.as<Element>();
      std::fill_n(result, elements, kBefore);
      ChannelGatherPlan plan{isa, sources, is_partial, kHasBytes};
      if (!kHasBytes) plan.groups = groups_of(table, sources);
      const GatherTableForm form = form_of(table, plan);
      ChannelGatherArgs args{address_of(form), {}, result, pixels};
      for (size_t i = 0; i < blocks.size(); ++i) args.sources[i] = blocks[i];
      const Kernel<ChannelGatherFn> kernel = channel_gather_kernel(plan);
      kernel.entry()(&args);
      for (size_t e = 0; e < elements; ++e) {
        const size_t lane = e % from.size(), pixel = e / from.size();
        const Element want =
            from[lane] < 0
                ? kBefore
                : blocks[static_cast<size_t>(from[lane])][pixel * from.size() + static_cast<size_t>(lane_of[lane])];
        ASSERT_EQ(result[e], want) << name_of(isa) << " round " << round << " pixel " << pixel << " lane " << lane;
      }
    }
  }
}

TEST(ChannelGather, TakesAnyLanesFromAnyBlocks) { expect_gathers<float>(); }

TEST(ChannelGather, PutsSourcesThatMeetInNoLaneIntoOneGroup) {
  ChannelGatherTable table;
  for (int lane = 0; lane < 16; ++lane) table.set(static_cast<size_t>(lane / 4), lane, lane % 4 + lane / 4 * 2);
  const std::vector<std::vector<int>> want{{0, 2}, {1, 3}};
  EXPECT_EQ(groups_of(table, 4), want);
}

TEST(ChannelGather, TakesAnyBytesFromAnyBlocks) { expect_gathers<uint8_t>(); }

}  // namespace
}  // namespace lathe
