#include "tools/pass_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "src/runtime/session_state.h"
#include "tools/machine_peak.h"

namespace lathe::tools {
namespace {

constexpr double kMeasureSeconds = 0.15;
constexpr int kRounds = 3;

// The model with some passes left out, ready to run.
class Variant {
 public:
  Variant(const ModelOptions& model, const InputOptions& input_options, const std::string& without)
      : session_(Session::load(model.model, with_disabled(model.session, without))),
        inputs_(make_inputs(session_, input_options)) {
    const auto part = session_.state()->runner->part_for(inputs_);
    steps_ = part->head().lowered().steps.size();
    for (const Step& step : part->head().lowered().steps) {
      bytes_ += step.bytes;
      flop_ += step.flop;
      work_.emplace_back(step.flop, step.bytes);
    }
    reports_ = session_.state()->runner->load_report();
    reports_.insert(reports_.end(), part->passes().begin(), part->passes().end());
    session_.run(inputs_);
  }

  // Adds runs for a while; best_ms() is the fastest so far.
  void measure() {
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    do {
      const double before = seconds();
      session_.run(inputs_);
      best_ms_ = std::min(best_ms_, 1e3 * (seconds() - before));
    } while (seconds() < kMeasureSeconds);
  }

  size_t steps() const { return steps_; }
  int threads() const { return session_.state()->context->target.threads; }
  double megabytes() const { return bytes_ / 1e6; }
  double megaflop() const { return flop_ / 1e6; }
  // No step faster than this machine computes, or reads from memory.
  double estimated_ms(const MachinePeak& peak) const {
    double ms = 0;
    for (const auto& [flop, bytes] : work_) ms += 1e-6 * std::max(flop / peak.gflops, bytes / peak.read_gbytes_s);
    return ms;
  }
  double best_ms() const { return best_ms_; }
  const std::vector<PassReport>& reports() const { return reports_; }

 private:
  static SessionOptions with_disabled(SessionOptions options, const std::string& pass) {
    if (!pass.empty()) options.disabled_passes.push_back(pass);
    return options;
  }

  Session session_;
  std::vector<Tensor> inputs_;
  size_t steps_ = 0;
  double bytes_ = 0, flop_ = 0, best_ms_ = 1e30;
  std::vector<std::pair<double, double>> work_;  // of each step: FLOP, bytes
  std::vector<PassReport> reports_;
};

// Passes by name, in order: some run at load and again for the shapes at hand.
std::vector<PassReport> joined(const std::vector<PassReport>& reports) {
  std::vector<PassReport> result;
  for (const PassReport& report : reports) {
    const auto known =
        std::find_if(result.begin(), result.end(), [&](const PassReport& each) { return each.name == report.name; });
    if (known == result.end()) {
      result.push_back(report);
      continue;
    }
    known->fired += report.fired;
    known->nodes_saved += report.nodes_saved;
    known->milliseconds += report.milliseconds;
  }
  return result;
}

}  // namespace

void print_pass_table(const ModelOptions& model, const InputOptions& inputs) {
  Variant whole(model, inputs, "");
  const MachinePeak peak = measure_peak(whole.threads());
  fmt::print("{:<24} {:>5} {:>6} {:>8}   without it: {:>6} {:>10} {:>10} {:>9} {:>9}\n", "pass", "fired", "nodes", "ms",
             "steps", "MFLOP", "MB moved", "estimated", "run ms");
  double total = 0;
  for (const PassReport& report : joined(whole.reports())) {
    total += report.milliseconds;
    fmt::print("{:<24} {:>5} {:>6} {:>8.2f}", report.name, report.fired, -report.nodes_saved, report.milliseconds);
    if (report.fired > 0) {
      Variant without(model, inputs, std::string(report.name));
      for (int round = 0; round < kRounds; ++round) {
        without.measure();
        whole.measure();
      }
      fmt::print("{:>21} {:>+10.2f} {:>+10.2f} {:>+9.3f} {:>+9.3f}",
                 fmt::format("{:+}", static_cast<long>(without.steps()) - static_cast<long>(whole.steps())),
                 without.megaflop() - whole.megaflop(), without.megabytes() - whole.megabytes(),
                 without.estimated_ms(peak) - whole.estimated_ms(peak), without.best_ms() - whole.best_ms());
    }
    fmt::print("\n");
  }
  whole.measure();
  fmt::print(
      "all of them: {:.2f} ms; {} steps, {:.2f} MFLOP, {:.2f} MB moved, estimated {:.3f} ms, a run takes {:.3f} ms\n",
      total, whole.steps(), whole.megaflop(), whole.megabytes(), whole.estimated_ms(peak), whole.best_ms());
}

}  // namespace lathe::tools
