#include "tools/varying_dims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lathe/error.h"

namespace lathe::tools {
namespace {

using ::testing::ElementsAre;
using Runs = std::vector<std::vector<std::string>>;

TEST(VaryingDimsTest, TellsRangesFromNumbers) {
  EXPECT_TRUE(has_range({"batch=2", "length=8..9"}));
  EXPECT_FALSE(has_range({"batch=2", "a..b=8"}));
  EXPECT_FALSE(has_range({}));
}

TEST(VaryingDimsTest, RangesAdvanceTogether) {
  EXPECT_EQ(
      dims_of_runs({"past=0..2", "batch=4", "total=1..3"}),
      (Runs{{"past=0", "total=1", "batch=4"}, {"past=1", "total=2", "batch=4"}, {"past=2", "total=3", "batch=4"}}));
}

TEST(VaryingDimsTest, StepsAndGoesDown) {
  EXPECT_THAT(dims_of_runs({"n=8..20..5"}), ElementsAre(ElementsAre("n=8"), ElementsAre("n=13"), ElementsAre("n=18")));
  EXPECT_THAT(dims_of_runs({"n=3..2"}), ElementsAre(ElementsAre("n=3"), ElementsAre("n=2")));
  EXPECT_THAT(dims_of_runs({"n=7..7"}), ElementsAre(ElementsAre("n=7")));
}

TEST(VaryingDimsTest, RefusesWhatIsNoRange) {
  for (const char* dim : {"n=..", "n=1..", "n=..2", "n=1..2..0", "n=1..2..3..4", "n=-1..2", "n=1..x", "n=0..1000000"})
    EXPECT_THROW(dims_of_runs({dim}), Error) << dim;
  EXPECT_THROW(dims_of_runs({"a=1..3", "b=1..4"}), Error);
}

}  // namespace
}  // namespace lathe::tools
