// The program from outside: exit codes, one-line errors, files in and out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/model.h"
#include "tests/model_builder.h"
#include "tests/tools/program.h"
#include "tools/tensor_files.h"

namespace lathe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::lathe;
using testing::ModelBuilder;
using testing::Outcome;
using testing::text_of;

enum Code { kGood = 0, kUsage = 2, kCannotLoad = 3, kMismatch = 4 };

// y = x W with x float32[batch,4]; its MatMul and, with `conv`, a Conv are tuned.
ModelBuilder matmul_model() {
  ModelBuilder model;
  const std::string x = model.input("x", {"batch", 4});
  model.input("flags", {2}, DType::i64);
  model.output(model.node("MatMul", {x, model.random_weight({4, 3})}));
  return model;
}

ModelBuilder conv_model() {
  ModelBuilder model;
  const std::string x = model.input("image", {"batch", 16, 12, 12});
  const std::string conv = model.node("Conv", {x, model.random_weight({32, 16, 3, 3}), model.random_weight({32})})
                               .with("kernel_shape", {3, 3})
                               .with("pads", {1, 1, 1, 1});
  const std::string relu = model.node("Relu", {conv});
  const std::string mean = model.node("Flatten", {model.node("GlobalAveragePool", {relu})}).with("axis", 1);
  model.output(model.node("Gemm", {mean, model.random_weight({32, 64}), model.random_weight({64})}));
  return model;
}

// A model and files beside it.
class Program : public ::testing::Test {
 protected:
  Program() {
    matmul_model().save(model_);
    conv_model().save(conv_);
  }
  std::string file(const std::string& name) const { return folder_ / name; }
  // Writes an input and gives "name=file".
  std::string input(const std::string& name, const Tensor& tensor) const {
    tools::write_npy(file(name + ".npy"), tensor);
    return name + "=" + file(name + ".npy");
  }
  std::vector<std::string> good_inputs() const {
    return {"--input", input("x", Tensor::from<float>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8})), "--input",
            input("flags", Tensor(DType::i64, {2}))};
  }
  Outcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"run", model_});
    return lathe(std::move(arguments));
  }
  static void expect_error(const Outcome& outcome, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(outcome.exit_code, code) << outcome;
    EXPECT_EQ(outcome.err.rfind("lathe: ", 0), 0U) << outcome;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << "one line: " << outcome;
    EXPECT_EQ(outcome.out, "") << "results are not errors";
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
  }

  const Folder folder_;
  const std::string model_ = folder_ / "model.onnx", conv_ = folder_ / "conv.onnx";
};

TEST_F(Program, RunsAModelAndWritesItsResults) {
  std::vector<std::string> arguments = good_inputs();
  arguments.insert(arguments.end(), {"--output", file("npy"), "--save", file("pb")});
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("MatMul_1: float32[2x3]"));
  const Tensor result = tools::read_npy(file("npy/0.npy"));
  const std::vector<Tensor> inputs{Tensor::from<float>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), Tensor(DType::i64, {2})};
  const Tensor want = matmul_model().load().run(inputs)[0];
  ASSERT_EQ(result.dims(), want.dims());
  for (int64_t i = 0; i < want.size(); ++i) EXPECT_EQ(result.data<float>()[i], want.data<float>()[i]);
  const Tensor proto = read_tensor_proto(file("pb/output_0.pb"));
  for (int64_t i = 0; i < want.size(); ++i) EXPECT_EQ(proto.data<float>()[i], want.data<float>()[i]);
}

TEST_F(Program, ReadsInputsFromAFolder) {
  tools::write_npy(file("0.npy"), Tensor(DType::f32, {3, 4}));
  write_tensor_proto(file("input_1.pb"), "flags", Tensor(DType::i64, {2}));
  const Outcome outcome = run({"--input-dir", folder_.path()});
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("float32[3x3]  min 0  max 0"));
  std::filesystem::create_directories(file("test_data_set_0"));
  std::filesystem::rename(file("input_1.pb"), file("test_data_set_0/input_1.pb"));
  EXPECT_EQ(run({"--data", folder_.path()}).exit_code, kGood) << "the layout of ONNX's suite";
}

TEST_F(Program, TakesAListOfOneForAScalar) {
  ModelBuilder model;
  const std::string x = model.input("x", {2}), rate = model.input("rate", {});
  model.output(model.node("Mul", {x, rate}));
  model.save(file("scalar.onnx"));
  const std::string xs = input("x", Tensor::from<float>({2}, {1, 2}));
  const auto run_with = [&](const Tensor& tensor) {
    return lathe({"run", file("scalar.onnx"), "--input", xs, "--input", input("rate", tensor)});
  };
  const Outcome outcome = run_with(Tensor::from<float>({1}, {3}));
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("float32[2]  min 3  max 6"));
  expect_error(run_with(Tensor::from<float>({2}, {3, 4})), kUsage, {"'rate'", "float32[2]"});
}

TEST_F(Program, ComparesWithExpectedResults) {
  std::vector<std::string> arguments = good_inputs();
  arguments.insert(arguments.end(), {"--output", file("want")});
  ASSERT_EQ(run(arguments).exit_code, kGood);
  arguments = good_inputs();
  arguments.insert(arguments.end(), {"--compare", file("want")});
  EXPECT_EQ(run(arguments).exit_code, kGood);

  Tensor want = tools::read_npy(file("want/0.npy"));
  want.mutable_data<float>()[4] += 0.5F;
  tools::write_npy(file("want/0.npy"), want);
  const Outcome differs = run(arguments);
  expect_error(differs, kMismatch, {"output 'MatMul_1'", "1 of 6 elements differ", "[1,1]"});
  arguments.insert(arguments.end(), {"--atol", "0.6"});
  EXPECT_EQ(run(arguments).exit_code, kGood);
  tools::write_npy(file("want/0.npy"), Tensor(DType::f32, {3, 2}));
  expect_error(run(arguments), kMismatch, {"shape is 2x3, expected 3x2"});
  std::filesystem::remove(file("want/0.npy"));
  expect_error(run(arguments), kCannotLoad, {"output_0.pb"});
}

TEST_F(Program, FillsInputsBySeed) {
  const auto results = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--output", file("out"), "--dim", "batch=2"});
    EXPECT_EQ(run(arguments).exit_code, kGood);
    return text_of(file("out/0.npy"));
  };
  EXPECT_EQ(results({"--seed", "3"}), results({"--seed", "3"}));
  EXPECT_NE(results({"--seed", "3"}), results({"--seed", "4"}));
  EXPECT_NE(results({"--fill", "ones"}), results({"--fill", "zeros"}));
}

TEST_F(Program, TakesShapesAndOpenExtents) {
  EXPECT_THAT(run({}).out, HasSubstr("float32[1x3]")) << "open extents are 1";
  EXPECT_THAT(run({"--dim", "batch=7"}).out, HasSubstr("float32[7x3]"));
  EXPECT_THAT(run({"--shape", "x:5x4"}).out, HasSubstr("float32[5x3]"));
  EXPECT_THAT(run({"--shape", "x:0,4"}).out, HasSubstr("float32[0x3]"));
}

TEST_F(Program, SaysInOneLineWhatCannotBeLoaded) {
  expect_error(lathe({"run", "/nowhere/model.onnx"}), kCannotLoad, {"/nowhere/model.onnx"});
  expect_error(lathe({"bench", folder_.path()}), kCannotLoad, {folder_.path()});
  testing::write_text(file("empty.onnx"), "");
  expect_error(lathe({"inspect", file("empty.onnx")}), kCannotLoad, {"empty.onnx"});
  std::string bytes = text_of(model_);
  testing::write_text(file("cut.onnx"), bytes.substr(0, bytes.size() / 2));
  expect_error(lathe({"tune", file("cut.onnx")}), kCannotLoad, {"cut.onnx"});

  ModelBuilder dangling;
  dangling.input("x", {2});
  dangling.output(dangling.node("Relu", {"nobody"}));
  dangling.save(file("dangling.onnx"));
  expect_error(lathe({"run", file("dangling.onnx")}), kCannotLoad, {"'nobody'", "Relu_1"});
  ModelBuilder unknown;
  unknown.output(unknown.node("Levitate", {unknown.input("x", {2})}));
  unknown.save(file("unknown.onnx"));
  expect_error(lathe({"run", file("unknown.onnx")}), kCannotLoad, {"Levitate"});
}

TEST_F(Program, SaysInOneLineWhichInputDoesNotFit) {
  expect_error(run({"--input", "y=" + file("x.npy")}), kUsage, {"no input 'y'", "'x'", "'flags'"});
  expect_error(run({"--input", input("x", Tensor(DType::f64, {2, 4}))}), kUsage,
               {"'x'", "float32[batch,4]", "float64[2,4]"});
  expect_error(run({"--input", input("x", Tensor(DType::f32, {2, 5}))}), kUsage, {"'x'", "float32[2,5]"});
  expect_error(run({"--input", input("x", Tensor(DType::f32, {4}))}), kUsage, {"'x'", "float32[4]"});
  expect_error(run({"--input", "x=" + file("missing.npy")}), kCannotLoad, {"missing.npy"});
  testing::write_text(file("broken.npy"), "broken");
  expect_error(run({"--input", "x=" + file("broken.npy")}), kUsage, {"broken.npy"});
  expect_error(run({"--input-dir", "/nowhere"}), kCannotLoad, {"/nowhere"});
}

TEST_F(Program, SaysInOneLineWhichOptionIsWrong) {
  expect_error(lathe({}), kUsage, {"subcommand"});
  expect_error(lathe({"run"}), kUsage, {"MODEL"});
  expect_error(lathe({"fly", model_}), kUsage, {});
  expect_error(run({"--polish"}), kUsage, {"--polish"});
  expect_error(run({"--threads", "-1"}), kUsage, {"--threads"});
  expect_error(lathe({"rnu", model_}), kUsage, {"no verb 'rnu'"});
  expect_error(run({"--threads", "many"}), kUsage, {"--threads"});
  expect_error(run({"--optimization-level", "100"}), kUsage, {"--optimization-level"});
  expect_error(run({"--disable-pass", "make-it-fast"}), kUsage, {"make-it-fast"});
  expect_error(run({"--fill", "sevens"}), kUsage, {"--fill"});
  expect_error(run({"--seed", "x"}), kUsage, {"--seed"});
  expect_error(run({"--accuracy", "perfect"}), kUsage, {"--accuracy"});
  expect_error(run({"--dim", "height=3"}), kUsage, {"'height'", "'batch'"});
  expect_error(run({"--dim", "batch=-3"}), kUsage, {"--dim", "'-3'"});
  expect_error(run({"--dim", "batch"}), kUsage, {"--dim", "'batch'"});
  expect_error(run({"--shape", "z:2x4"}), kUsage, {"--shape", "'z'"});
  expect_error(run({"--shape", "x:2xx4"}), kUsage, {"--shape"});
  expect_error(run({"--shape", "x:2x"}), kUsage, {"--shape"});
  expect_error(run({"--shape", "x:2x5"}), kUsage, {"'x'", "float32[2,5]"});
  expect_error(lathe({"bench", model_, "--duration", "soon"}), kUsage, {"--duration", "'soon'"});
  expect_error(lathe({"bench", model_, "--iterations", "0"}), kUsage, {"--iterations"});
  expect_error(lathe({"bench", model_, "--percentile", "101"}), kUsage, {"--percentile"});
  expect_error(lathe({"bench", model_, "--dim", "batch=1..x"}), kUsage, {"--dim", "'batch=1..x'"});
  expect_error(lathe({"bench", model_, "--dim", "height=1..3"}), kUsage, {"'height'", "'batch'"});
  expect_error(lathe({"bench", model_, "--dim", "batch=1..3", "--profile"}), kUsage, {"--profile", "--dim"});
  expect_error(run({"--dim", "batch=1..3"}), kUsage, {"--dim", "'1..3'"});
  expect_error(lathe({"tune", model_, "--budget", "-1s"}), kUsage, {"--budget"});
  expect_error(lathe({"tune", model_, "--no-cache", "--budget", "10ms"}), kUsage, {"--no-cache", "--cache FILE"});
  expect_error(lathe({"inspect", model_, "--asm", "nobody"}), kUsage, {"'nobody'"});
}

TEST_F(Program, ExplainsItself) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"bench", "--help"}, {"tune", "--help"}}) {
    const Outcome outcome = lathe(arguments);
    EXPECT_EQ(outcome.exit_code, kGood) << outcome;
    EXPECT_THAT(outcome.out, HasSubstr("Usage:"));
  }
  EXPECT_THAT(lathe({"--version"}).out, HasSubstr("lathe " LATHE_VERSION));
}

TEST_F(Program, TimesTheTasksThatItLists) {
  const Outcome tasks = lathe({"inspect", conv_, "--show", "tasks"});
  EXPECT_EQ(tasks.exit_code, kGood) << tasks;
  EXPECT_THAT(tasks.out, AllOf(HasSubstr("conv "), HasSubstr("gemm f32 "), HasSubstr("node lathe.Reorder@1")));
  const Outcome nodes = lathe({"inspect", conv_, "--show", "tasks", "--accuracy", "strict"});
  EXPECT_THAT(nodes.out, HasSubstr("node accuracy=strict "));
  testing::write_text(file("tasks.txt"), "# a comment\n" + nodes.out);
  const Outcome table = lathe({"bench-kernel", "--tasks", file("tasks.txt"), "--threads", "1", "--duration", "1ms",
                               "--no-cache", "--json", file("kernels.json")});
  EXPECT_EQ(table.exit_code, kGood) << table;
  EXPECT_EQ(table.err, "");
  EXPECT_THAT(table.out, AllOf(HasSubstr("GFLOP/s"), HasSubstr("peak here, 1 threads")));
  const nlohmann::json report = nlohmann::json::parse(text_of(file("kernels.json")));
  std::string again;
  for (const nlohmann::json& row : report["tasks"]) {
    again += std::string(row["task"]) + "\n";
    EXPECT_LE(row["min_ms"], row["median_ms"]);
    EXPECT_GT(row["of_peak"], 0);
  }
  EXPECT_EQ(again, nodes.out);
}

TEST_F(Program, TimesPlansOfOneTaskInTurns) {
  const Outcome table =
      lathe({"bench-kernel", "--plan", "", "--plan", "k_unroll=1", "gemm f32 b1 m40 n16 k8 packed avx2", "--threads",
             "1", "--duration", "1ms", "--no-cache", "--json", file("plans.json")});
  EXPECT_EQ(table.exit_code, kGood) << table;
  EXPECT_THAT(table.out, HasSubstr("[k_unroll=1] gemm f32"));
  const nlohmann::json report = nlohmann::json::parse(text_of(file("plans.json")));
  ASSERT_EQ(report["tasks"].size(), 2U);
  EXPECT_EQ(report["tasks"][0]["task"], report["tasks"][1]["task"]);
  EXPECT_THAT(std::string(report["tasks"][1]["plan"]), HasSubstr("k_unroll=1"));
  EXPECT_EQ(report["tasks"][0]["speedup"], 1);
  EXPECT_GT(report["tasks"][1]["speedup"], 0);
}

TEST_F(Program, AnswersTasksLineByLine) {
  const std::string gemm = "gemm f32 b1 m40 n16 k8 packed avx2", node = "node Relu@14(float32[4,5]) -> float32[4,5]";
  const Outcome served = lathe({"bench-kernel", "--stdin", "--threads", "1", "--duration", "1ms", "--no-cache"},
                               gemm + "\ngemm of all things\n" + node + "\n");
  EXPECT_EQ(served.exit_code, kGood) << served;
  std::istringstream lines(served.out);
  std::vector<nlohmann::json> answers;
  for (std::string line; std::getline(lines, line);) answers.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(answers.size(), 3U) << served;
  EXPECT_EQ(answers[0]["task"], gemm);
  EXPECT_GT(answers[0]["timings"].at(0)["median_ms"], 0);
  EXPECT_THAT(std::string(answers[1]["error"]), HasSubstr("gemm of all things"));
  EXPECT_EQ(answers[2]["timings"].at(0)["task"], node);
}

TEST_F(Program, RefusesTasksAndPlansThatAreNone) {
  expect_error(lathe({"bench-kernel"}), kUsage, {"--tasks"});
  expect_error(lathe({"bench-kernel", "--stdin", "--json", file("none.json")}), kUsage, {"--stdin", "--json"});
  expect_error(lathe({"bench-kernel", "gemm of all things"}), kUsage, {"gemm of all things"});
  const std::string task = "gemm f32 b1 m4 n16 k8 packed avx2";
  expect_error(lathe({"bench-kernel", task, "--plan", "rows=999"}), kUsage, {"rows=999"});
  expect_error(lathe({"bench-kernel", task, "--plan", "row=4"}), kUsage, {"'row'", "rows="});
  expect_error(lathe({"bench-kernel", "gemm f32 b1 m9999999 n9999999 k9999999 packed avx2"}), kUsage, {"large"});
  expect_error(lathe({"bench-kernel", "--tasks", file("nowhere.txt")}), kCannotLoad, {"nowhere.txt"});
  const std::string node = "node Relu@14(float32[4,5]) -> float32[4,5]";
  EXPECT_EQ(lathe({"bench-kernel", node, "--threads", "1", "--duration", "1ms"}).exit_code, kGood);
  expect_error(lathe({"bench-kernel", node, "--plan", "rows=9"}), kUsage, {"rows=9"});
  expect_error(lathe({"bench-kernel", "node Relu@14(float32[4,5]) -> float32[4,6]"}), kUsage, {"float32[4,5]"});
  expect_error(lathe({"bench-kernel", "node Relu of it"}), kUsage, {"Relu of it"});
  expect_error(lathe({"bench-kernel", "node accuracy=all Relu@14(float32[4]) -> float32[4]"}), kUsage, {"accuracy"});
}

TEST_F(Program, ReportsABenchAsJson) {
  const Outcome outcome = lathe({"bench", conv_, "--iterations", "7", "--warmup", "1", "--threads", "1", "--percentile",
                                 "50", "99.5", "--json", file("bench.json"), "--output-dir", file("results")});
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_EQ(outcome.err, "") << "no progress outside a terminal";
  const nlohmann::json report = nlohmann::json::parse(text_of(file("bench.json")));
  EXPECT_EQ(report["runs"], 7);
  EXPECT_EQ(report["times_ms"].size(), 7U);
  EXPECT_LE(report["min_ms"], report["median_ms"]);
  EXPECT_EQ(report["median_ms"], report["p50_ms"]);
  EXPECT_LE(report["median_ms"], report["p99.5_ms"]);
  EXPECT_GT(report["load_ms"], 0);
  EXPECT_GT(report["rss_mb"], 0);
  EXPECT_EQ(report["plans"]["from_cache"], 0);
  EXPECT_GE(report["plans"]["tasks"], 2) << "a convolution and a product";
  EXPECT_THAT(tools::read_npy(file("results/0.npy")).dims(), ElementsAre(1, 64));
}

TEST_F(Program, TimesAModelThatGivesStrings) {
  ModelBuilder model;
  const std::string text = model.node("Cast", {model.input("x", {3})}).with("to", static_cast<int64_t>(DType::string));
  model.output(text, DType::string);
  model.save(file("text.onnx"));
  const Outcome outcome = lathe({"bench", file("text.onnx"), "--iterations", "2", "--threads", "1", "--profile"});
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("2 runs: median"));
}

TEST_F(Program, WritesAProfileThatATraceViewerReads) {
  const Outcome outcome =
      lathe({"bench", conv_, "--iterations", "1", "--threads", "1", "--profile=" + file("trace.json")});
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("Conv+Relu"), HasSubstr("GFLOP/s"), HasSubstr("on reference fallbacks: 0.00 %")));
  const nlohmann::json trace = nlohmann::json::parse(text_of(file("trace.json")));
  ASSERT_GE(trace["traceEvents"].size(), 3U);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["ts"], 0);
    EXPECT_GE(event["dur"], 0);
    EXPECT_FALSE(event["args"]["kernel"].get<std::string>().empty());
  }
}

TEST_F(Program, InspectsAModel) {
  const Outcome outcome = lathe({"inspect", conv_, "--dim", "batch=2", "--graph"});
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("image: float32[batch,16,12,12]"), HasSubstr("Gemm_5: float32[batch,64]"),
                                 HasSubstr("fuse-epilogue"), HasSubstr("Conv+Relu"), HasSubstr("kernels of"),
                                 HasSubstr("took their plan from the tuning cache")));
}

TEST_F(Program, PrintsTheMachineCodeOfANode) {
  for (const char* node : {"Conv_1", "Gemm_5"}) {
    const Outcome outcome = lathe({"inspect", conv_, "--asm", node});
    EXPECT_EQ(outcome.exit_code, kGood) << outcome;
    EXPECT_THAT(outcome.out, HasSubstr(" bytes\n"));
    EXPECT_GT(outcome.out.size(), 500U) << "the code itself: " << outcome;
  }
  expect_error(lathe({"inspect", conv_, "--asm", "Flatten_4"}), kUsage, {"Flatten_4"});
}

TEST_F(Program, UsesInAFreshProcessWhatItTuned) {
  const std::string cache = file("sub/tuning.db");
  const std::vector<std::string> common{conv_, "--cache", cache, "--threads", "1"};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin() + 1, common.begin(), common.end());
    return lathe(arguments);
  };
  EXPECT_THAT(with({"inspect"}).out, HasSubstr("0 of 2 tasks took their plan from the tuning cache"));
  EXPECT_FALSE(std::filesystem::exists(cache)) << "only tune writes it";
  const Outcome tuned = with({"tune", "--budget", "300ms"});
  EXPECT_EQ(tuned.exit_code, kGood) << tuned;
  EXPECT_THAT(tuned.out, HasSubstr("2 tasks, 2 to tune, cache " + cache));
  EXPECT_EQ(tuned.err, "") << "no progress outside a terminal";
  EXPECT_THAT(with({"tune", "--budget", "300ms"}).out, HasSubstr("2 tasks, 0 to tune"));
  const Outcome bench = with({"bench", "--iterations", "1", "--json", file("bench.json")});
  EXPECT_THAT(bench.out, HasSubstr("2 of 2 tasks took their plan from the tuning cache " + cache));
  EXPECT_EQ(nlohmann::json::parse(text_of(file("bench.json")))["plans"]["from_cache"], 2);
  EXPECT_THAT(lathe({"bench", conv_, "--cache", cache, "--no-cache", "--iterations", "1"}).out,
              HasSubstr("switched off"));
}

TEST_F(Program, RunsWithoutACacheThatIsDamaged) {
  testing::write_text(file("tuning.db"), "this is no database");
  const Outcome outcome = lathe({"bench", conv_, "--cache", file("tuning.db"), "--iterations", "1"});
  EXPECT_EQ(outcome.exit_code, kGood) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("is not used"));
  EXPECT_EQ(text_of(file("tuning.db")), "this is no database") << "left alone";
}

TEST_F(Program, TestsAFolderOfTheOnnxSuite) {
  std::filesystem::create_directories(file("case/test_data_set_0"));
  ModelBuilder model;
  model.output(model.node("Neg", {model.input("x", {2})}));
  model.save(file("case/model.onnx"));
  write_tensor_proto(file("case/test_data_set_0/input_0.pb"), "x", Tensor::from<float>({2}, {1, 2}));
  write_tensor_proto(file("case/test_data_set_0/output_0.pb"), "y", Tensor::from<float>({2}, {-1, -2}));
  EXPECT_EQ(lathe({"test", file("case")}).exit_code, kGood);
  write_tensor_proto(file("case/test_data_set_0/output_0.pb"), "y", Tensor::from<float>({2}, {-1, -3}));
  const Outcome wrong = lathe({"test", file("case")});
  EXPECT_EQ(wrong.exit_code, 1) << wrong;
  EXPECT_THAT(wrong.out, AllOf(HasSubstr("fail"), HasSubstr("1 of 2 elements differ")));
}

}  // namespace
}  // namespace lathe
