#include "jit/kernels/copy/channel_gather.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/isas_here.h"

namespace lathe {
namespace {

using testing::isas_here;

TEST(ChannelGather, TakesAnyLanesFromAnyBlocks) {
  std::mt19937 random(20240901);
  for (const Isa isa : isas_here()) {
    const int lanes = vector_lanes(isa);
    for (int round = 0; round < 200; ++round) {
      const int sources = 1 + static_cast<int>(random() % kMostGatherSources);
      const int64_t pixels = 1 + static_cast<int64_t>(random() % 9);
      const auto elements = static_cast<size_t>(pixels * lanes);
      std::vector<std::vector<float>> blocks;
      for (int i = 0; i < sources; ++i) {
        blocks.emplace_back();
        for (size_t e = 0; e < elements; ++e) blocks.back().push_back(static_cast<float>(random() % 1000));
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
        lane_of[lane] = static_cast<int>(random() % static_cast<unsigned>(lanes));
        table.index[static_cast<size_t>(from[lane])][lane] = lane_of[lane];
        table.lanes[static_cast<size_t>(from[lane])][lane] = -1;
        table.written[lane] = -1;
      }
      std::vector<float> result(elements, -5);
      ChannelGatherArgs args{&table, {}, result.data(), pixels};
      for (int i = 0; i < sources; ++i) args.sources[static_cast<size_t>(i)] = blocks[static_cast<size_t>(i)].data();
      const Kernel<ChannelGatherFn> kernel = channel_gather_kernel({isa, sources, is_partial});
      kernel.entry()(&args);
      for (size_t e = 0; e < elements; ++e) {
        const size_t lane = e % from.size(), pixel = e / from.size();
        const float want =
            from[lane] < 0
                ? -5
                : blocks[static_cast<size_t>(from[lane])][pixel * from.size() + static_cast<size_t>(lane_of[lane])];
        ASSERT_EQ(result[e], want) << name_of(isa) << " round " << round << " pixel " << pixel << " lane " << lane;
      }
    }
  }
}

}  // namespace
}  // namespace lathe
