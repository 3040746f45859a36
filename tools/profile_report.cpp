#include "tools/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/median.h"

namespace lathe::tools {
namespace {

struct Row {
  StepTime step;
  double ms = 0;
};

std::vector<Row> median_rows(const std::vector<Profile>& runs) {
  std::vector<Row> rows;
  for (size_t s = 0; s < runs.front().steps.size(); ++s) {
    std::vector<double> times;
    for (const Profile& run : runs)
      if (s < run.steps.size()) times.push_back(static_cast<double>(run.steps[s].end_ns - run.steps[s].begin_ns) / 1e6);
    rows.push_back({runs.front().steps[s], median(std::move(times))});
  }
  return rows;
}

std::string shortened(const std::string& text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 2) + "..";
}

std::string summary_by_operator(const std::vector<Row>& rows, double total) {
  std::map<std::string, std::pair<double, int>> by_op;
  double on_reference = 0;
  for (const Row& row : rows) {
    by_op[row.step.op].first += row.ms;
    by_op[row.step.op].second += 1;
    if (row.step.kernel == "reference") on_reference += row.ms;
  }
  std::vector<std::pair<std::string, std::pair<double, int>>> sorted(by_op.begin(), by_op.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  std::string text = "\nby operator:\n";
  for (const auto& [op, sum] : sorted)
    text += fmt::format("{:>9.3f} ms {:>5.1f} %  {:>4} x {}\n", sum.first, 100 * sum.first / total, sum.second, op);
  return text + fmt::format("on reference fallbacks: {:.2f} %\n", 100 * on_reference / total);
}

}  // namespace

std::string profile_table(const std::vector<Profile>& runs, const MachinePeak& peak) {
  const std::vector<Row> rows = median_rows(runs);
  double total = 0;
  for (const Row& row : rows) total += row.ms;
  std::string text = fmt::format("{:>9} {:>5} {:>8} {:>7} {:>6}  {:<28} {:<30} {}\n", "ms", "%", "GFLOP/s", "GB/s",
                                 "peak %", "operator", "node", "kernel");
  for (const Row& row : rows) {
    const double seconds = row.ms / 1e3;
    const double gflops = seconds > 0 ? row.step.flop / seconds / 1e9 : 0;
    const double gbytes = seconds > 0 ? row.step.bytes / seconds / 1e9 : 0;
    const double of_peak = 100 * std::max(gflops / peak.gflops, gbytes / peak.read_gbytes_s);
    text +=
        fmt::format("{:>9.4f} {:>5.1f} {:>8.1f} {:>7.1f} {:>6.0f}  {:<28} {:<30} {}\n", row.ms, 100 * row.ms / total,
                    gflops, gbytes, of_peak, shortened(row.step.op, 28), shortened(row.step.node, 30), row.step.kernel);
  }
  text += summary_by_operator(rows, total);
  return text + fmt::format("sum of steps {:.3f} ms; peak here: {:.0f} GFLOP/s, {:.1f} GB/s from memory\n", total,
                            peak.gflops, peak.read_gbytes_s);
}

std::string chrome_trace(const Profile& run) {
  nlohmann::json events = nlohmann::json::array();
  for (const StepTime& step : run.steps)
    events.push_back({{"name", step.op},
                      {"cat", "step"},
                      {"ph", "X"},
                      {"ts", static_cast<double>(step.begin_ns) / 1e3},
                      {"dur", static_cast<double>(step.end_ns - step.begin_ns) / 1e3},
                      {"pid", 1},
                      {"tid", 1},
                      {"args",
                       {{"node", step.node},
                        {"kernel", step.kernel},
                        {"threads", step.threads},
                        {"flop", step.flop},
                        {"bytes", step.bytes}}}});
  return nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump(
      1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lathe::tools
