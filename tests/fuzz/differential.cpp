#include "tests/fuzz/differential.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "graph/infer.h"
#include "graph/pipeline.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "lathe/error.h"
#include "src/runtime/default_plans.h"
#include "src/runtime/graph_runner.h"

namespace lathe::testing {
namespace {

// Of the largest result. Reassociated sums of a few dozen products, through a few layers.
constexpr double kTolerance = 3e-4;

std::string describe_difference(const std::vector<Tensor>& want, const std::vector<Tensor>& got) {
  if (want.size() != got.size()) return "another number of outputs";
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string output = "output " + std::to_string(i) + ": ";
    if (want[i].dtype() != got[i].dtype()) return output + "another type";
    if (want[i].dims() != got[i].dims()) {
      return output + "expected [" + lathe::to_string(want[i].dims()) + "], got [" + lathe::to_string(got[i].dims()) +
             "]";
    }
    double largest = 1e-3;
    for (const float x : want[i].elements<float>()) {
      if (std::isfinite(x)) largest = std::max<double>(largest, std::abs(x));
    }
    for (int64_t at = 0; at < want[i].size(); ++at) {
      const double a = want[i].data<float>()[at], b = got[i].data<float>()[at];
      if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= kTolerance * largest) continue;
      return output + "element " + std::to_string(at) + ": expected " + std::to_string(a) + ", got " +
             std::to_string(b);
    }
  }
  return "";
}

// So little that what lies between the convolutions of these small pictures is large.
constexpr size_t kNearCacheBytes = 1024;

std::vector<Tensor> run(const BuiltCase& built, const Setting& setting) {
  SessionOptions options;
  options.use_cache = false;
  auto context = std::make_shared<RunnerContext>(
      RunnerContext{.ops = OpRegistry::builtin(),
                    .limits = {},
                    .target = {.isa = setting.isa, .threads = setting.threads, .near_cache_bytes = kNearCacheBytes},
                    .team = std::make_shared<ThreadTeam>(setting.threads),
                    .packed = std::make_shared<PackedWeights>(),
                    .plans = default_plans(options),
                    .optimization_level = setting.level,
                    .disabled_passes = setting.disabled});
  GraphRunner runner(std::make_unique<Graph>(built.graph), context);
  std::vector<Tensor> outputs(built.graph.outputs.size());
  runner.run(built.inputs, outputs, nullptr);
  return outputs;
}

std::optional<std::string> compared(const std::function<std::vector<Tensor>()>& want,
                                    const std::function<std::vector<Tensor>()>& got) {
  try {
    const std::string text = describe_difference(want(), got());
    return text.empty() ? std::nullopt : std::optional<std::string>(text);
  } catch (const std::exception& error) {
    return std::string("threw: ") + error.what();
  }
}

}  // namespace

std::string to_string(const Setting& setting) {
  std::string text = "level " + std::to_string(setting.level) + ", " + std::string(name_of(setting.isa)) + ", " +
                     std::to_string(setting.threads) + " threads";
  for (const std::string& pass : setting.disabled) text += ", without " + pass;
  return text;
}

std::optional<std::string> difference(const RandomCase& what, const Setting& setting) {
  const BuiltCase built = build(what);
  const auto plain = [&] { return run(built, {.level = 0, .isa = setting.isa}); };
  const auto result = compared(plain, [&] { return run(built, setting); });
  if (!result) return std::nullopt;
  // Which of the two is wrong?
  const auto oracle = [&] { return run_reference_graph(built.graph, built.inputs); };
  const auto level0 = compared(oracle, plain);
  return *result + (level0 ? "; level 0 departs from the reference too: " + *level0 : "; level 0 is as the reference");
}

std::optional<std::string> difference_with(const RandomCase& what, const std::vector<Pass>& passes,
                                           bool binds_extents) {
  const BuiltCase built = build(what);
  const auto rewritten = [&] {
    Graph graph = built.graph;
    for (size_t i = 0; binds_extents && i < built.inputs.size(); ++i) {
      graph.value(graph.inputs[i]).type = TensorType::of(built.inputs[i].dtype(), built.inputs[i].dims());
    }
    const Limits limits;
    infer_types(graph, limits);
    run_passes(graph, passes, {OpRegistry::builtin(), limits, 8}, 99, {});
    verify(graph);
    return run_reference_graph(graph, built.inputs);
  };
  const auto result = compared([&] { return run_reference_graph(built.graph, built.inputs); }, rewritten);
  if (!result) return std::nullopt;
  std::string order;
  for (const Pass& pass : passes) order += " " + std::string(pass.name);
  return *result + "; passes:" + order;
}

std::optional<std::string> difference_in_any_order(const RandomCase& what, uint32_t order_seed) {
  std::vector<Pass> passes = load_passes();
  passes.insert(passes.end(), specialize_passes().begin(), specialize_passes().end());
  // Layouts are beyond the references.
  std::erase_if(passes, [](const Pass& pass) { return pass.level >= 3; });
  std::mt19937 random(order_seed);
  std::shuffle(passes.begin(), passes.end(), random);
  passes.resize(passes.size() - random() % 3);
  return difference_with(what, passes, random() % 2 == 0);
}

RandomCase shrunk(RandomCase failing, const Check& check) {
  const auto still_fails = [&](const RandomCase& tried) { return check(tried).has_value(); };
  if (failing.has_symbol) {
    RandomCase tried = failing;
    tried.has_symbol = false;
    if (still_fails(tried)) failing = tried;
  }
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t chunk = failing.recipes.size() / 2 + 1; chunk > 0; chunk /= 2) {
      for (size_t first = 0; first + chunk <= failing.recipes.size();) {
        RandomCase tried = failing;
        const auto begin = tried.recipes.begin() + static_cast<std::ptrdiff_t>(first);
        tried.recipes.erase(begin, begin + static_cast<std::ptrdiff_t>(chunk));
        if (still_fails(tried)) {
          failing = std::move(tried);
          smaller = true;
        } else {
          ++first;
        }
      }
    }
  }
  for (Recipe& recipe : failing.recipes) {
    if (!recipe.is_output) continue;
    recipe.is_output = false;
    if (!still_fails(failing)) recipe.is_output = true;
  }
  return failing;
}

Setting random_setting(uint32_t seed) {
  std::mt19937 random(seed ^ 0x5eed);
  Setting setting;
  setting.isa = usable_isas()[random() % usable_isas().size()];
  setting.threads = 1 + static_cast<int>(random() % 2);
  if (random() % 3 == 0) {
    std::vector<Pass> passes = load_passes();
    passes.insert(passes.end(), specialize_passes().begin(), specialize_passes().end());
    setting.disabled = {std::string(passes[random() % passes.size()].name)};
  }
  return setting;
}

}  // namespace lathe::testing
