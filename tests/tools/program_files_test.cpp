// The program where files cannot be written, or are those that it reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cache/sqlite.h"
#include "cache/tuning_cache.h"
#include "tests/model_builder.h"
#include "tests/tools/program.h"

namespace lathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::lathe;
using testing::Outcome;
using testing::text_of;

enum Code { kGood = 0, kCannotLoad = 3 };

class ProgramFiles : public ::testing::Test {
 protected:
  ProgramFiles() {
    testing::ModelBuilder model;
    const std::string x = model.input("x", {"batch", 64});
    model.output(model.node("Gemm", {x, model.random_weight({64, 512}), model.random_weight({512})}));
    model.save(model_);
  }
  std::string file(const std::string& name) const { return folder_ / name; }
  // The exit code of a command of the shell with the model, whose errors go to "err".
  int shell(const std::string& before, const std::string& verb, const std::string& after) const {
    const std::string command = before + " LATHE_CACHE=" + file("tuning.db") + " " + LATHE_BINARY + " " + verb + " " +
                                model_ + " " + after + " 2>" + file("err");
    return WEXITSTATUS(std::system(command.c_str()));
  }

  const testing::Folder folder_;
  const std::string model_ = folder_ / "model.onnx";
};

TEST_F(ProgramFiles, SaysWhichFolderItCannotMake) {
  const std::string folder = model_ + "/results";
  for (const auto& [verb, option] : {std::pair("run", "--output"),
                                     {"run", "--output-dir"},
                                     {"run", "--save"},
                                     {"bench", "--iterations 1 --output-dir"}}) {
    EXPECT_EQ(shell("", verb, option + (" " + folder) + " >/dev/null"), kCannotLoad);
    EXPECT_THAT(text_of(file("err")), HasSubstr("lathe: cannot make the folder '" + folder)) << verb;
  }
}

TEST_F(ProgramFiles, DoesNotSucceedWhereNobodyCanReadWhatItPrints) {
  EXPECT_EQ(shell("", "inspect", ">/dev/full"), kCannotLoad);
  EXPECT_EQ(text_of(file("err")), "lathe: cannot write to standard output\n");
}

// The model is mapped while it runs.
TEST_F(ProgramFiles, SavesAnOptimizedModelOverItself) {
  const std::vector<std::string> run = {"run", model_, "--seed", "3", "--output"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = run;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome before = lathe(with({file("before")}));
  ASSERT_EQ(before.exit_code, kGood) << before;
  const std::string link = file("link.onnx");
  std::filesystem::create_symlink(model_, link);
  for (const std::string& place : {model_, link}) {
    const Outcome saved = lathe(with({file("saved"), "--save-optimized", place, "--compare", file("before")}));
    EXPECT_EQ(saved.exit_code, kGood) << saved;
  }
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  const Outcome after = lathe(with({file("after"), "--compare", file("before"), "--rtol", "1e-3", "--atol", "1e-4"}));
  EXPECT_EQ(after.exit_code, kGood) << after;
}

TEST_F(ProgramFiles, WritesToStandardOutputWhereItIsAFile) {
  EXPECT_EQ(shell("", "bench", "--iterations 1 --json /dev/stdout >>" + file("out")), kGood);
  EXPECT_THAT(text_of(file("out")), HasSubstr("\"median_ms\""));
}

// As on a disk that is full.
TEST_F(ProgramFiles, LeavesAFileThatItCannotReplace) {
  const std::string place = file("optimized.onnx");
  testing::write_text(place, "what was there");
  EXPECT_EQ(shell("trap '' XFSZ; ulimit -f 1;", "run", "--save-optimized " + place + " >/dev/null"), kCannotLoad);
  EXPECT_THAT(text_of(file("err")), AllOf(HasSubstr("cannot write '" + place), HasSubstr("File too large")));
  EXPECT_EQ(text_of(place), "what was there");
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_FALSE(entry.path().string().ends_with(".part")) << entry.path();
  }
}

TEST_F(ProgramFiles, DoesNotTuneForACacheThatTakesNothing) {
  const std::string cache = file("tuning.db");
  const std::vector<std::string> tune{"tune", model_, "--cache", cache, "--threads", "1", "--budget", "100ms"};
  testing::write_text(cache, "this is no database");
  const Outcome damaged = lathe(tune);
  EXPECT_EQ(damaged.exit_code, kCannotLoad) << damaged;
  EXPECT_EQ(std::count(damaged.err.begin(), damaged.err.end(), '\n'), 1) << damaged;
  std::filesystem::remove(cache);
  { const TuningCache created(cache, TuningCache::Access::read_write); }
  SqliteDatabase("file:" + cache, SQLITE_OPEN_READWRITE)
      .execute("CREATE TRIGGER full BEFORE INSERT ON plans BEGIN SELECT RAISE(ABORT, 'the disk is full'); END");
  const Outcome full = lathe(tune);
  EXPECT_EQ(full.exit_code, kCannotLoad) << full;
  EXPECT_THAT(full.err, AllOf(HasSubstr(cache), HasSubstr("the disk is full")));
  EXPECT_EQ(std::count(full.err.begin(), full.err.end(), '\n'), 1) << full;
}

}  // namespace
}  // namespace lathe
