// --custom-op of the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model_builder.h"
#include "tests/tools/program.h"

namespace lathe {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::lathe;
using testing::ModelBuilder;
using testing::Outcome;

TEST(CustomOpOption, GivesEveryVerbTheOperators) {
  const Folder folder;
  const std::string path = folder / "model.onnx";
  ModelBuilder model;
  const std::string x = model.input("x", {2, 3});
  model.output(model.node("SoftClip", {x}).of_domain("example"));
  model.save(path);
  const std::vector<std::vector<std::string>> verbs = {{"run", path, "--fill", "ones"},
                                                       {"bench", path, "--warmup", "0", "--iterations", "1"},
                                                       {"inspect", path},
                                                       {"tune", path, "--budget", "1s"}};
  for (std::vector<std::string> arguments : verbs) {
    SCOPED_TRACE(arguments[0]);
    const Outcome without = lathe(arguments);
    EXPECT_EQ(without.exit_code, 3) << without;
    EXPECT_THAT(without.err, HasSubstr("'SoftClip' (example 1) is not supported"));
    arguments.insert(arguments.end(), {"--custom-op", LATHE_EXAMPLE_OPS});
    const Outcome with = lathe(arguments);
    EXPECT_EQ(with.exit_code, 0) << with;
    // tanh(1)
    EXPECT_THAT(with.out, arguments[0] == "run" ? HasSubstr("max 0.761594") : HasSubstr(""));
  }
  const Outcome missing = lathe({"run", path, "--custom-op", folder / "none.so"});
  EXPECT_EQ(missing.exit_code, 3) << missing;
  EXPECT_THAT(missing.err, HasSubstr("none.so': No such file"));
}

TEST(CustomOpOption, GivesTestTheOperators) {
  const Folder folder;
  ModelBuilder model;
  const std::string x = model.input("x", {2, 3});
  model.output(model.node("SoftClip", {x}).of_domain("example"));
  model.save(folder / "model.onnx");
  const std::string data = folder / "test_data_set_0";
  std::filesystem::create_directories(data);
  ASSERT_EQ(lathe({"run", folder / "model.onnx", "--custom-op", LATHE_EXAMPLE_OPS, "--fill", "zeros", "--save", data})
                .exit_code,
            0);
  std::filesystem::copy_file(data + "/output_0.pb", data + "/input_0.pb");  // tanh(0) = 0
  const Outcome outcome = lathe({"test", folder.path(), "--custom-op", LATHE_EXAMPLE_OPS});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
}

}  // namespace
}  // namespace lathe
