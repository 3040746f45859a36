#include "tools/bench_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "src/base/clock.h"
#include "src/runtime/session_state.h"
#include "tools/progress.h"

namespace lathe::tools {
namespace {

double time_run(const Session& session, const InputOptions& options) {
  const std::vector<Tensor> inputs = make_inputs(session, options);
  std::vector<Tensor> results(session.outputs().size());
  const int64_t begin = now_ns();
  session.state()->run(inputs, results, nullptr);
  return static_cast<double>(now_ns() - begin) / 1e6;
}

}  // namespace

std::vector<ShapeTime> time_shapes(const Session& session, InputOptions inputs,
                                   const std::vector<std::vector<std::string>>& dims, int again) {
  Progress progress;
  std::vector<ShapeTime> times;
  for (const std::vector<std::string>& shape : dims) {
    inputs.dims = shape;
    times.push_back({.dims = shape, .new_ms = time_run(session, inputs)});
    progress.show(fmt::format("shape {} of {}", times.size(), dims.size()));
  }
  for (int round = 0; round < again; ++round) {
    for (ShapeTime& time : times) {
      inputs.dims = time.dims;
      const double milliseconds = time_run(session, inputs);
      time.again_ms = round == 0 ? milliseconds : std::min(time.again_ms, milliseconds);
    }
    progress.show(fmt::format("again: {} of {}", round + 1, again));
  }
  return times;
}

ShapeMeans means_of(const std::vector<ShapeTime>& times) {
  const auto half = std::span(times).subspan(times.size() / 2);
  ShapeMeans means;
  for (const ShapeTime& time : half) means.new_ms += time.new_ms / static_cast<double>(half.size());
  for (const ShapeTime& time : times) means.again_ms += time.again_ms / static_cast<double>(times.size());
  return means;
}

}  // namespace lathe::tools
