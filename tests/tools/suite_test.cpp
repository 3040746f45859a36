// lathe test over many folders: what it finds, what it says, and that no case can take the others down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "graph/model.h"
#include "tests/model_builder.h"
#include "tests/tools/program.h"
#include "tools/test_workers.h"

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
using testing::write_text;

// A folder of cases, each y = op(x) with x = {-1, 2}.
class Suite : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_ / name; }

  void add(const std::string& name, const std::string& op, std::initializer_list<float> expected,
           const char* domain = "") const {
    std::filesystem::create_directories(at(name));
    ModelBuilder model;
    const std::string x = model.input("x", {2});
    testing::NodeBuilder node = model.node(op, {x});
    if (*domain != 0) node.of_domain(domain);
    model.output(node);
    model.save(at(name) + "/model.onnx");
    add_data(name, 0, expected);
  }

  void add_data(const std::string& name, int set, std::initializer_list<float> expected) const {
    const std::string data = at(name) + "/test_data_set_" + std::to_string(set);
    std::filesystem::create_directories(data);
    const Tensor x = Tensor::from<float>({2}, {-1, 2});
    const auto count = static_cast<int64_t>(expected.size());
    write_value_proto(data + "/input_0.pb", "x", x, TensorType());
    write_value_proto(data + "/output_0.pb", "y", Tensor::from<float>({count}, expected), TensorType());
  }

 private:
  Folder folder_;
};

TEST_F(Suite, FindsCasesInTreesAndSaysWhatDiffersWhere) {
  add("suite/a/good", "Relu", {0, 2});
  add("suite/b/deep/wrong", "Relu", {0, 3});
  add("suite/b/sets", "Abs", {1, 2});
  add_data("suite/b/sets", 10, {1, 2});
  add_data("suite/b/sets", 2, {1, 2, 3});
  const Outcome outcome = lathe({"test", at("suite"), "--jobs", "3"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("fail " + at("suite/b/deep/wrong") +
                                     ": test_data_set_0: output 'Relu_1': 1 of 2 elements differ, worst at [1]: 2, "
                                     "expected 3\n"));
  EXPECT_THAT(outcome.out, HasSubstr("b/sets: test_data_set_2: output 'Abs_1': shape is 2, expected 3\n"));
  EXPECT_THAT(outcome.out, HasSubstr("1 of 3 cases passed, 2 fail ("));
  EXPECT_EQ(lathe({"test", at("suite/a"), at("suite/a/good"), "--timeout", "0"}).exit_code, 0);
}

TEST_F(Suite, MalformedCasesFailAlone) {
  add("good", "Relu", {0, 2});
  std::filesystem::create_directories(at("empty"));
  std::filesystem::create_directories(at("no_model/test_data_set_0"));
  add("broken", "Relu", {0, 2});
  write_text(at("broken/model.onnx"), "not a model");
  add("no_expectation", "Relu", {0, 2});
  std::filesystem::remove(at("no_expectation/test_data_set_0/output_0.pb"));
  add("broken_data", "Relu", {0, 2});
  write_text(at("broken_data/test_data_set_0/input_0.pb"), "not a tensor");
  add("broken_tolerance", "Relu", {0, 2});
  write_text(at("broken_tolerance/tolerance.json"), "{");
  add("unsupported", "Crash", {0, 2}, "rude");
  const Outcome outcome = lathe({"test", at("empty"), at("no_model"), at("broken"), at("no_expectation"),
                                 at("broken_data"), at("broken_tolerance"), at("unsupported"), at("good"), at("none")});
  EXPECT_EQ(outcome.exit_code, 3) << outcome;
  EXPECT_THAT(outcome.out, HasSubstr("1 of 9 cases passed, 7 error, 1 unsupported ("));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("error " + at("empty") + ": "), HasSubstr("broken/model.onnx"),
                                 HasSubstr("tolerance.json' is not {\"rtol\": NUMBER")));
  EXPECT_EQ(lathe({"test", at("unsupported")}).exit_code, 77);
  EXPECT_EQ(lathe({"test"}).exit_code, 2);
}

TEST_F(Suite, SkipsWhatIsRandomUnlessItAgrees) {
  add("random", "RandomNormalLike", {0, 0});
  const Outcome outcome = lathe({"test", at("random"), "--junit", at("report.xml")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("skipped " + at("random") + ": node 'RandomNormalLike_1' draws random"),
                                 HasSubstr("0 of 1 cases passed, 1 skipped")));
  EXPECT_THAT(text_of(at("report.xml")), AllOf(HasSubstr("skipped=\"1\""), HasSubstr("<skipped type=\"skipped\"")));
  EXPECT_THAT(lathe({"test", at("random"), "--atol", "100"}).out, HasSubstr("1 of 1 cases passed ("));
}

TEST_F(Suite, ACrashOrAHangIsTheFailureOfItsCaseOnly) {
  add("suite/crash", "Crash", {0, 0}, "rude");
  add("suite/hang", "Hang", {0, 0}, "rude");
  for (const char* name : {"suite/1", "suite/2", "suite/x", "suite/y"}) add(name, "Neg", {1, -2});
  const std::string json = at("report.json"), xml = at("report.xml");
  const Outcome outcome = lathe({"test", at("suite"), "--custom-op", LATHE_RUDE_OPS, "--timeout", "500ms", "--jobs",
                                 "2", "--json=" + json, "--junit", xml});
  EXPECT_EQ(outcome.exit_code, 3) << outcome;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("crash " + at("suite/crash") + ": killed by signal 6"),
                                 HasSubstr("timeout " + at("suite/hang") + ": stopped after 0.5 s"),
                                 HasSubstr("4 of 6 cases passed, 1 crash, 1 timeout")));

  const auto report = nlohmann::json::parse(text_of(json));
  EXPECT_EQ(report["status"], "crash");
  EXPECT_EQ(report["total"], 6);
  EXPECT_EQ(report["counts"]["pass"], 4);
  std::vector<std::string> statuses;
  for (const auto& each : report["cases"]) statuses.push_back(each["status"]);
  EXPECT_THAT(statuses, ElementsAre("pass", "pass", "crash", "timeout", "pass", "pass"));

  pugi::xml_document document;
  ASSERT_TRUE(document.load_file(xml.c_str()));
  const pugi::xml_node suite = document.child("testsuites").child("testsuite");
  EXPECT_EQ(suite.attribute("tests").as_int(), 6);
  EXPECT_EQ(suite.attribute("failures").as_int(), 0);
  EXPECT_EQ(suite.attribute("errors").as_int(), 2);
  const pugi::xml_node crash = suite.find_child_by_attribute("name", "crash");
  EXPECT_THAT(crash.attribute("classname").value(), ::testing::EndsWith("/suite"));
  EXPECT_EQ(std::string(crash.child("error").attribute("type").value()), "crash");
  EXPECT_TRUE(suite.find_child_by_attribute("name", "1").first_child().empty());
}

TEST_F(Suite, TolerancesAreGeneralOrOfTheFolderOrOfAName) {
  add("near", "Relu", {0, 2.01F});
  EXPECT_EQ(lathe({"test", at("near")}).exit_code, 1);
  EXPECT_EQ(lathe({"test", at("near"), "--rtol", "0.1"}).exit_code, 0);
  EXPECT_EQ(lathe({"test", at("near"), "--atol", "0.1"}).exit_code, 0);
  EXPECT_EQ(lathe({"test", at("near"), "--tolerance", "n*r=0.1,0"}).exit_code, 0);
  EXPECT_EQ(lathe({"test", "--tolerance", "far*=0.1,0", at("near")}).exit_code, 1);
  EXPECT_EQ(lathe({"test", at("near"), "--tolerance", "near=much"}).exit_code, 2);
  write_text(at("near/tolerance.json"), R"({"rtol": 0.1})");
  EXPECT_EQ(lathe({"test", at("near")}).exit_code, 0);
  EXPECT_EQ(lathe({"test", at("near"), "--tolerance", "near=0,0"}).exit_code, 1);
}

TEST_F(Suite, PrintsOneObjectOrSavesTheOutputsOfOneCase) {
  add("one", "Relu", {0, 3});
  add("two", "Relu", {0, 2});
  const Outcome printed = lathe({"test", "--json", at("one")});
  EXPECT_EQ(printed.exit_code, 1) << printed;
  EXPECT_EQ(nlohmann::json::parse(printed.out)["status"], "fail");
  EXPECT_THAT(nlohmann::json::parse(printed.out)["detail"], HasSubstr("expected 3"));

  EXPECT_EQ(lathe({"test", at("one"), "--save", at("out")}).exit_code, 0);
  const Tensor saved = read_value_proto(at("out/test_data_set_0/output_0.pb"), TensorType());
  EXPECT_THAT(saved.elements<float>(), ElementsAre(0, 2));
  EXPECT_EQ(lathe({"test", at("one"), at("two"), "--save", at("out")}).exit_code, 2);
}

TEST_F(Suite, ServesCasesLineByLine) {
  add("good", "Relu", {0, 2});
  add("near", "Relu", {0, 2.01F});
  int in[2], out[2];
  ASSERT_EQ(pipe(in), 0);
  ASSERT_EQ(pipe(out), 0);
  std::string requests;
  for (const char* rest : {R"(good"})", R"(near"})", R"(near", "rtol": 0.1, "atol": 0})", R"(none"})"})
    requests += R"({"dir": ")" + at(rest) + "\n";
  requests += "{\"dir\": \n";
  ASSERT_EQ(write(in[1], requests.data(), requests.size()), static_cast<ssize_t>(requests.size()));
  close(in[1]);
  tools::serve_cases(in[0], out[1], {});
  close(out[1]);
  std::string answers(4096, 0);
  answers.resize(static_cast<size_t>(std::max<ssize_t>(read(out[0], answers.data(), answers.size()), 0)));
  close(in[0]);
  close(out[0]);
  std::vector<std::string> statuses;
  std::istringstream lines(answers);
  for (std::string line; std::getline(lines, line);) statuses.push_back(nlohmann::json::parse(line)["status"]);
  EXPECT_THAT(statuses, ElementsAre("pass", "fail", "pass", "error", "error"));
}

}  // namespace
}  // namespace lathe
