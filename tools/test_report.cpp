#include "tools/test_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "src/base/write_file.h"

namespace lathe::tools {
namespace {

constexpr std::array kByGravity{CaseStatus::fail,        CaseStatus::crash,   CaseStatus::timeout, CaseStatus::error,
                                CaseStatus::unsupported, CaseStatus::skipped, CaseStatus::pass};

size_t index_of(CaseStatus status) { return static_cast<size_t>(status); }

// Models name their values as they like; control characters have no place in a line, and none in XML.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

void add_testcase(pugi::xml_node suite, const TestCase& test, const CaseResult& result) {
  const std::filesystem::path path = std::filesystem::path(test.directory).lexically_normal();
  pugi::xml_node node = suite.append_child("testcase");
  node.append_attribute("classname") = printable(path.parent_path().string()).c_str();
  node.append_attribute("name") = printable(path.filename().string()).c_str();
  node.append_attribute("time") = fmt::format("{:.3f}", result.seconds).c_str();
  if (result.status == CaseStatus::pass) return;
  const char* kind = result.status == CaseStatus::fail ? "failure" : "error";
  pugi::xml_node what = node.append_child(result.status == CaseStatus::skipped ? "skipped" : kind);
  what.append_attribute("type") = std::string(name_of(result.status)).c_str();
  what.append_attribute("message") = printable(result.detail).c_str();
}

}  // namespace

std::array<size_t, kCaseStatusCount> TestReport::counts() const {
  std::array<size_t, kCaseStatusCount> counts{};
  for (const CaseResult& result : results) ++counts[index_of(result.status)];
  return counts;
}

CaseStatus gravest(const TestReport& report) {
  const auto counts = report.counts();
  return *std::find_if(kByGravity.begin(), kByGravity.end() - 1,
                       [&](CaseStatus status) { return counts[index_of(status)] != 0; });
}

std::string line_of(const TestCase& test, const CaseResult& result) {
  return printable(fmt::format("{} {}{}{}", name_of(result.status), test.directory, result.detail.empty() ? "" : ": ",
                               result.detail));
}

std::string summary_of(const TestReport& report) {
  const auto counts = report.counts();
  std::string text = fmt::format("{} of {} cases passed", counts[index_of(CaseStatus::pass)], report.cases.size());
  for (CaseStatus status : kByGravity)
    if (status != CaseStatus::pass && counts[index_of(status)] != 0)
      text += fmt::format(", {} {}", counts[index_of(status)], name_of(status));
  return text + fmt::format(" ({:.1f} s)", report.seconds);
}

std::string json_of(const TestReport& report) {
  using nlohmann::json;
  const CaseStatus status = gravest(report);
  json object{{"status", name_of(status)}, {"detail", ""}, {"total", report.cases.size()}, {"seconds", report.seconds}};
  const auto counts = report.counts();
  for (CaseStatus each : kByGravity) object["counts"][std::string(name_of(each))] = counts[index_of(each)];
  object["cases"] = json::array();
  for (size_t i = report.cases.size(); i-- > 0;)
    if (report.results[i].status == status) object["detail"] = report.results[i].detail;
  for (size_t i = 0; i < report.cases.size(); ++i) {
    const CaseResult& result = report.results[i];
    object["cases"].push_back({{"dir", report.cases[i].directory},
                               {"status", name_of(result.status)},
                               {"detail", result.detail},
                               {"seconds", result.seconds}});
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

void write_junit(const std::string& path, const TestReport& report) {
  const auto counts = report.counts();
  const size_t passed = counts[index_of(CaseStatus::pass)], wrong = counts[index_of(CaseStatus::fail)],
               skipped = counts[index_of(CaseStatus::skipped)];
  pugi::xml_document document;
  pugi::xml_node suites = document.append_child("testsuites");
  pugi::xml_node suite = suites.append_child("testsuite");
  suite.append_attribute("name") = "lathe test";
  for (pugi::xml_node node : {suites, suite}) {
    node.append_attribute("tests") = std::to_string(report.cases.size()).c_str();
    node.append_attribute("failures") = std::to_string(wrong).c_str();
    node.append_attribute("errors") = std::to_string(report.cases.size() - passed - wrong - skipped).c_str();
    node.append_attribute("time") = fmt::format("{:.3f}", report.seconds).c_str();
  }
  suite.append_attribute("skipped") = std::to_string(skipped).c_str();
  for (size_t i = 0; i < report.cases.size(); ++i) add_testcase(suite, report.cases[i], report.results[i]);
  write_file(path, [&](std::ostream& file) {
    document.save(file, "  ");
    return file.good();
  });
}

}  // namespace lathe::tools
