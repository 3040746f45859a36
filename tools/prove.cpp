#include "tools/prove.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "graph/infer.h"
#include "graph/pipeline.h"
#include "src/base/thread_team.h"
#include "src/base/topology.h"
#include "src/runtime/default_plans.h"
#include "src/runtime/graph_runner.h"
#include "tools/compare.h"

namespace lathe::tools {
namespace {

bool quantizes(const Graph& graph) {
  return std::any_of(graph.order().begin(), graph.order().end(), [&](NodeId id) {
    const std::string_view name = graph.node(id).op->name;
    return name == "QuantizeLinear" || name == "DynamicQuantizeLinear" || name.starts_with("QLinear");
  });
}

// Two steps of the type, relatively: a chain of 16-bit operators rounds each of their results, the same in one pass
// only operands and the last result.
double roundings(DType dtype) {
  if (dtype == DType::bf16) return 2 * 0x1p-7;
  return dtype == DType::f16 ? 2 * 0x1p-10 : 0;
}

class Prover {
 public:
  Prover(const Graph& graph, const std::vector<Tensor>& inputs, const ProofOptions& options)
      : graph_(graph),
        inputs_(inputs),
        options_(options),
        threads_(options.session.threads > 0 ? options.session.threads : usable_threads()),
        team_(std::make_shared<ThreadTeam>(threads_)),
        plans_(default_plans(options.session)),
        tolerance_(options.tolerance.value_or(quantizes(graph) ? 0.1 : 2e-4)) {}

  Proof prove() {
    want_ = run(graph_, 0, "");
    bool has_run = false;
    check("with all passes", [&] {
      const std::vector<Tensor> outputs = run(graph_, 99, "");
      has_run = true;
      return outputs;
    });
    // What changes nothing here is the same graph with it and without.
    const std::set<std::string_view> fired = *fired_;
    for (const std::string& pass : pass_names()) {
      if (!options_.only.empty() && pass != options_.only) continue;
      if (has_run && fired.count(pass) == 0) {
        ++proof_.idle;
        continue;
      }
      check("without " + pass, [&] { return run(graph_, 99, pass); });
    }
    for (int seed = 1; seed <= options_.orders; ++seed) try_order(seed);
    if (proof_.is_random) proof_.departures.clear();
    return proof_;
  }

 private:
  std::vector<Tensor> run(const Graph& graph, int level, const std::string& without) {
    fired_ = std::make_shared<std::set<std::string_view>>();
    auto context = std::make_shared<RunnerContext>(RunnerContext{.ops = OpRegistry::builtin(),
                                                                 .limits = {},
                                                                 .target = {usable_isa(), threads_},
                                                                 .team = team_,
                                                                 .packed = std::make_shared<PackedWeights>(),
                                                                 .plans = plans_,
                                                                 .optimization_level = level,
                                                                 .disabled_passes = {},
                                                                 .fired = fired_});
    if (!without.empty()) context->disabled_passes.push_back(without);
    GraphRunner runner(std::make_unique<Graph>(graph), context);
    runner.expect_one_shape();
    std::vector<Tensor> results(graph.outputs.size());
    runner.run(inputs_, results, nullptr);
    ++proof_.runs;
    return results;
  }

  // Behind the load passes in an order of their own.
  void try_order(int seed) {
    Graph graph = graph_;
    std::vector<Pass> passes = load_passes();
    std::mt19937 random(static_cast<unsigned>(seed));
    std::shuffle(passes.begin(), passes.end(), random);
    const Limits limits;
    std::set<std::string_view> fired;
    check("passes in order " + std::to_string(seed), [&] {
      infer_types(graph, limits);
      run_passes(graph, passes, {OpRegistry::builtin(), limits, vector_lanes(usable_isa()), &fired}, 99, {});
      return fired.empty() ? want_ : run(graph, 99, "");
    });
    proof_.idle += fired.empty();
  }

  // Those of level 0 give meaning to nodes: nothing runs without them.
  static std::vector<std::string> pass_names() {
    std::vector<std::string> names;
    for (const auto* list : {&load_passes(), &bind_passes(), &specialize_passes()}) {
      for (const Pass& pass : *list) {
        if (pass.level > 0 && std::find(names.begin(), names.end(), pass.name) == names.end()) {
          names.emplace_back(pass.name);
        }
      }
    }
    return names;
  }

  std::string difference(const std::vector<Tensor>& got) const {
    for (size_t i = 0; i < want_.size(); ++i) {
      double largest = 1e-3;
      if (want_[i].dtype() == DType::f32) {
        for (const float x : want_[i].elements<float>()) {
          if (std::isfinite(x)) largest = std::max<double>(largest, std::abs(x));
        }
      }
      const double relative = options_.tolerance ? 0 : roundings(want_[i].dtype());
      const std::string text = describe_difference(got[i], want_[i], {relative, tolerance_ * largest});
      if (!text.empty()) return "output " + std::to_string(i) + ": " + text;
    }
    return "";
  }

  template <class Run>
  void check(const std::string& how, const Run& outputs) {
    if (proof_.is_random) return;
    std::string text;
    try {
      text = difference(outputs());
    } catch (const std::exception& error) {
      text = std::string("threw: ") + error.what();
    }
    if (text.empty()) return;
    proof_.departures.push_back(how + ": " + text);
    if (proof_.departures.size() == 1) proof_.is_random = !difference(run(graph_, 0, "")).empty();
  }

  const Graph& graph_;
  const std::vector<Tensor>& inputs_;
  const ProofOptions& options_;
  const int threads_;
  std::shared_ptr<ThreadTeam> team_;
  std::shared_ptr<CachedPlans> plans_;
  const double tolerance_;
  std::shared_ptr<std::set<std::string_view>> fired_;  // by the run before
  std::vector<Tensor> want_;
  Proof proof_;
};

}  // namespace

Proof prove_passes(const Graph& graph, const std::vector<Tensor>& inputs, const ProofOptions& options) {
  return Prover(graph, inputs, options).prove();
}

}  // namespace lathe::tools
