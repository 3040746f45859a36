#include "tuner/cached_plans.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace lathe {
namespace {

TuningTask gemm_task(const std::string& key) {
  TuningTask task;
  task.family = "gemm.1";
  task.key = key;
  task.threads = 2;
  task.space.knobs = {{"rows", {6, 14}}, {"vecs", {1, 2}}};
  task.space.fallback = {{"rows", 6}, {"vecs", 1}};
  return task;
}

class CachedPlansTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/lathe_plans_" + std::to_string(getpid()) +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".db";
    remove_files();
    cache_ = std::make_shared<TuningCache>(path_, TuningCache::Access::read_write);
  }
  void TearDown() override {
    cache_.reset();
    remove_files();
  }
  void remove_files() const {
    for (const char* suffix : {"", "-wal", "-shm"}) std::filesystem::remove(path_ + suffix);
  }
  void store(const std::string& key, const std::string& candidate) {
    ASSERT_TRUE(cache_->store({"cpu", 2, "gemm.1", key}, {candidate, 1, 0, 1, "test"}));
  }

  std::string path_;
  std::shared_ptr<TuningCache> cache_;
};

TEST_F(CachedPlansTest, GivesTheTunedWinnerAndElseTheFallback) {
  store("tuned", "rows=14 vecs=2");
  CachedPlans plans(cache_, "cpu");
  EXPECT_EQ(to_string(plans.choose(gemm_task("tuned"))), "rows=14 vecs=2");
  EXPECT_EQ(to_string(plans.choose(gemm_task("other"))), "rows=6 vecs=1");
  EXPECT_EQ(plans.counts().hits, 1U);
  EXPECT_EQ(plans.counts().misses, 1U);
  EXPECT_EQ(plans.counts().invalid, 0U);
}

TEST_F(CachedPlansTest, WinnerOfAnotherMachineIsNotUsed) {
  store("tuned", "rows=14 vecs=2");
  EXPECT_EQ(to_string(CachedPlans(cache_, "other cpu").choose(gemm_task("tuned"))), "rows=6 vecs=1");
}

TEST_F(CachedPlansTest, RowsThatTheSpaceDoesNotKnowFallBack) {
  store("gone", "rows=15 vecs=2");
  store("less", "rows=14");
  store("junk", "; DROP TABLE plans");
  CachedPlans plans(cache_, "cpu");
  for (const char* key : {"gone", "less", "junk"})
    EXPECT_EQ(to_string(plans.choose(gemm_task(key))), "rows=6 vecs=1") << key;
  EXPECT_EQ(plans.counts().invalid, 3U);
}

TEST_F(CachedPlansTest, ForbiddenCombinationFallsBack) {
  store("tuned", "rows=14 vecs=2");
  TuningTask task = gemm_task("tuned");
  task.space.allowed = [](const Candidate& c) { return c.at("rows") * c.at("vecs") <= 14; };
  EXPECT_EQ(to_string(CachedPlans(cache_, "cpu").choose(task)), "rows=6 vecs=1");
}

TEST_F(CachedPlansTest, AFallbackOutsideItsSpaceMayBeTheTunedWinner) {
  store("tuned", "rows=1 vecs=12");
  TuningTask task = gemm_task("tuned");
  task.space.fallback = {{"rows", 1}, {"vecs", 12}};
  CachedPlans plans(cache_, "cpu");
  EXPECT_EQ(to_string(plans.choose(task)), "rows=1 vecs=12");
  EXPECT_EQ(plans.counts().hits, 1U);
  EXPECT_EQ(plans.counts().invalid, 0U);
}

TEST_F(CachedPlansTest, RecordsEachTaskOnceWhenAsked) {
  CachedPlans silent(cache_, "cpu"), recording(nullptr, "cpu", CachedPlans::Recording::on);
  for (const char* key : {"a", "b", "a"}) {
    silent.choose(gemm_task(key));
    recording.choose(gemm_task(key));
  }
  TuningTask one_thread = gemm_task("a");
  one_thread.threads = 1;
  recording.choose(one_thread);
  EXPECT_TRUE(silent.recorded().empty());
  ASSERT_EQ(recording.recorded().size(), 3U);
  EXPECT_EQ(recording.recorded()[1].key, "b");
}

}  // namespace
}  // namespace lathe
