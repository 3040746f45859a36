#include "cache/tuning_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

namespace lathe {
namespace {

namespace fs = std::filesystem;
using Access = TuningCache::Access;

const TuningKey kKey = {"cpu", 2, "gemm.1", "128x768x768 f32"};
const TunedPlan kPlan = {"rows=14 vecs=2", 1000, 0.01, 1'700'000'000, "0.1"};

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("lathe_cache_" + std::to_string(getpid()) +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    path_ = (folder_ / "deep" / "tuning.db").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void make_cache() {
    TuningCache cache(path_, Access::read_write);
    ASSERT_TRUE(cache.store(kKey, kPlan));
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void patch(size_t offset, const std::string& text) const {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset));
    file << text;
  }
  // Opens the file both ways; expects an empty cache, at most one warning, and not a byte changed.
  void expect_unused_and_untouched() {
    const std::string before = bytes();
    testing::internal::CaptureStderr();
    for (Access access : {Access::read_only, Access::read_write}) {
      TuningCache cache(path_, access);
      EXPECT_EQ(cache.find(kKey), std::nullopt);
      EXPECT_FALSE(cache.store(kKey, kPlan));
      EXPECT_EQ(cache.size(), 0);
      EXPECT_NE(cache.problem(), "");
    }
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
    EXPECT_EQ(bytes(), before);
  }

  fs::path folder_;
  std::string path_;
};

}  // namespace

static bool operator==(const TunedPlan& a, const TunedPlan& b) {
  return a.candidate == b.candidate && a.nanoseconds == b.nanoseconds && a.spread == b.spread &&
         a.tuned_at == b.tuned_at && a.build == b.build;
}

namespace {

TEST_F(Cache, FindsWhatWasStoredAlsoAfterReopening) {
  make_cache();
  for (Access access : {Access::read_only, Access::read_write}) {
    const TuningCache cache(path_, access);
    const std::optional<TunedPlan> found = cache.find(kKey);
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(*found == kPlan);
    EXPECT_EQ(cache.size(), 1);
    EXPECT_EQ(cache.problem(), "");
  }
}

TEST_F(Cache, EveryPartOfTheKeyCounts) {
  make_cache();
  const TuningCache cache(path_);
  const auto find = [&](auto change) {
    TuningKey key = kKey;
    change(key);
    return cache.find(key).has_value();
  };
  EXPECT_TRUE(find([](TuningKey&) {}));
  EXPECT_FALSE(find([](TuningKey& key) { key.cpu = "other"; }));
  EXPECT_FALSE(find([](TuningKey& key) { key.threads = 1; }));
  EXPECT_FALSE(find([](TuningKey& key) { key.family = "gemm.2"; }));
  EXPECT_FALSE(find([](TuningKey& key) { key.task += " "; }));
}

TEST_F(Cache, KeepsTheFasterPlanOfOneBuild) {
  TuningCache cache(path_, Access::read_write);
  ASSERT_TRUE(cache.store(kKey, kPlan));
  TunedPlan slower = kPlan, faster = kPlan;
  slower.candidate = "rows=8 vecs=3";
  slower.nanoseconds = 1100;
  slower.tuned_at += 10;
  faster.candidate = "rows=12 vecs=2";
  faster.nanoseconds = 900;
  EXPECT_FALSE(cache.store(kKey, slower));
  EXPECT_EQ(cache.find(kKey)->candidate, kPlan.candidate);
  EXPECT_TRUE(cache.store(kKey, faster));
  EXPECT_EQ(cache.find(kKey)->candidate, faster.candidate);
}

TEST_F(Cache, NewerMeasurementOfTheSamePlanOrByAnotherBuildReplaces) {
  TuningCache cache(path_, Access::read_write);
  ASSERT_TRUE(cache.store(kKey, kPlan));
  TunedPlan again = kPlan, other_build = kPlan, stale = kPlan;
  again.nanoseconds = 1200;
  again.tuned_at += 10;
  EXPECT_TRUE(cache.store(kKey, again));
  other_build = {"rows=8 vecs=3", 1300, 0, again.tuned_at + 10, "0.2"};
  EXPECT_TRUE(cache.store(kKey, other_build));
  EXPECT_EQ(cache.find(kKey)->build, "0.2");
  stale = {"rows=6 vecs=1", 1400, 0, kPlan.tuned_at, "0.1"};
  EXPECT_FALSE(cache.store(kKey, stale));
}

TEST_F(Cache, ReadOnlyCreatesNothing) {
  TuningCache cache(path_);
  EXPECT_EQ(cache.find(kKey), std::nullopt);
  EXPECT_FALSE(cache.store(kKey, kPlan));
  EXPECT_EQ(cache.problem(), "");
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(Cache, ReadOnlyDoesNotStore) {
  make_cache();
  TuningCache cache(path_);
  TunedPlan faster = kPlan;
  faster.nanoseconds = 1;
  EXPECT_FALSE(cache.store(kKey, faster));
  EXPECT_EQ(cache.find(kKey)->nanoseconds, kPlan.nanoseconds);
}

TEST_F(Cache, FileOfNonsenseIsLeftAlone) {
  fs::create_directories(folder_ / "deep");
  std::ofstream(path_) << "this is no database, but a letter to a friend, long enough to have a header of its own: "
                       << std::string(4096, 'x');
  expect_unused_and_untouched();
}

TEST_F(Cache, NewerSchemaIsLeftAlone) {
  make_cache();
  patch(60, std::string("\0\0\0\2", 4));  // user_version in SQLite's file header
  expect_unused_and_untouched();
}

TEST_F(Cache, AnotherProgramsDatabaseIsLeftAlone) {
  make_cache();
  patch(68, "ELSE");  // application_id
  expect_unused_and_untouched();
}

TEST_F(Cache, TornFileIsLeftAlone) {
  make_cache();
  fs::resize_file(path_, 5000);
  patch(4096, std::string(904, '\x5a'));
  expect_unused_and_untouched();
}

TEST_F(Cache, FolderInPlaceOfTheFileIsNoCache) {
  fs::create_directories(path_);
  testing::internal::CaptureStderr();
  TuningCache cache(path_, Access::read_write);
  testing::internal::GetCapturedStderr();
  EXPECT_NE(cache.problem(), "");
  EXPECT_EQ(cache.find(kKey), std::nullopt);
}

// Whoever opens one waits for its other end.
TEST_F(Cache, PipeInPlaceOfTheFileIsNoCache) {
  fs::create_directories(fs::path(path_).parent_path());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  for (Access access : {Access::read_only, Access::read_write}) {
    EXPECT_EQ(TuningCache(path_, access).problem(), "not a regular file");
  }
  testing::internal::GetCapturedStderr();
}

// As another process leaves it for a moment.
TEST_F(Cache, FileWithoutATableIsAnEmptyCache) {
  fs::create_directories(fs::path(path_).parent_path());
  std::ofstream(path_).close();
  TuningCache cache(path_);
  EXPECT_EQ(cache.problem(), "");
  EXPECT_EQ(cache.find(kKey), std::nullopt);
  make_cache();
  EXPECT_TRUE(TuningCache(path_).find(kKey).has_value());
}

TEST_F(Cache, PathsWithSignsOfAnUriWork) {
  path_ = (folder_ / "100% sure? #1.db").string();
  make_cache();
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_TRUE(TuningCache(path_).find(kKey).has_value());
}

TEST_F(Cache, ManyWritersShareOneFile) {
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w)
    writers.emplace_back([&, w] {
      TuningCache cache(path_, Access::read_write);
      for (int i = 0; i < 25; ++i) {
        TuningKey key = kKey;
        key.task = std::to_string(w) + "." + std::to_string(i);
        EXPECT_TRUE(cache.store(key, kPlan)) << cache.problem();
      }
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(TuningCache(path_).size(), 100);
}

TEST_F(Cache, EmptyPathIsAnEmptyCache) {
  TuningCache cache("", Access::read_write);
  EXPECT_FALSE(cache.store(kKey, kPlan));
  EXPECT_EQ(cache.find(kKey), std::nullopt);
}

TEST(CachePath, FollowsOptionThenEnvironment) {
  const char* names[] = {"LATHE_CACHE", "XDG_CACHE_HOME", "HOME"};
  std::vector<std::string> before;
  for (const char* name : names) before.emplace_back(std::getenv(name) != nullptr ? std::getenv(name) : "");
  setenv("HOME", "/home/u", 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("LATHE_CACHE");
  EXPECT_EQ(tuning_cache_path(""), "/home/u/.cache/lathe/tuning.db");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(tuning_cache_path(""), "/x/lathe/tuning.db");
  setenv("LATHE_CACHE", "/y.db", 1);
  EXPECT_EQ(tuning_cache_path(""), "/y.db");
  EXPECT_EQ(tuning_cache_path("/z.db"), "/z.db");
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].empty()) {
      unsetenv(names[i]);
    } else {
      setenv(names[i], before[i].c_str(), 1);
    }
  }
}

TEST(CpuKey, TellsMachinesAndInstructionSetsApart) {
  CpuFacts facts;
  facts.vendor = "GenuineIntel";
  facts.family = 6;
  const std::string key = cpu_key(facts, Isa::avx512);
  EXPECT_NE(key, cpu_key(facts, Isa::avx2));
  facts.l2_bytes *= 2;
  EXPECT_NE(key, cpu_key(facts, Isa::avx512));
}

}  // namespace
}  // namespace lathe
