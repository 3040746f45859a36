// lathe prove MODEL...: the results stay with each graph pass left out in turn, and with passes in other orders.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>

#include "graph/model.h"
#include "lathe/error.h"
#include "ops/op_def.h"
#include "tools/model_inputs.h"
#include "tools/model_options.h"
#include "tools/prove.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

struct ProveOptions {
  std::vector<std::string> models;
  InputOptions inputs;
  ProofOptions proof;
};

// A file, or a folder of ONNX's backend suite with inputs of its own.
Proof prove_one(const std::string& given, const ProveOptions& options) {
  const bool is_folder = std::filesystem::is_directory(given);
  const std::string file = is_folder ? (std::filesystem::path(given) / "model.onnx").string() : given;
  InputOptions input_options = options.inputs;
  if (is_folder && input_options.directory.empty()) input_options.directory = given;
  SessionOptions plain = options.proof.session;
  plain.optimization_level = 0;
  const std::vector<Tensor> inputs = make_inputs(Session::load(file, plain), input_options);
  const Model model = import_model_file(file, OpRegistry::builtin());
  return prove_passes(*model.graph, inputs, options.proof);
}

void prove(const ProveOptions& options) {
  int runs = 0, idle = 0, models = 0, random = 0, refused = 0, wrong = 0;
  for (const std::string& model : options.models) {
    try {
      const Proof proof = prove_one(model, options);
      runs += proof.runs;
      idle += proof.idle;
      models += !proof.is_random;
      random += proof.is_random;
      wrong += !proof.departures.empty();
      for (const std::string& text : proof.departures) fmt::print("{}: {}\n", model, text);
    } catch (const Error& error) {
      if (options.models.size() == 1) throw;
      ++refused;  // by the plain run already
    }
  }
  fmt::print(
      "{} models in {} runs ({} more would change nothing), {} depart; {} more are random, {} cannot run at all\n",
      models, runs, idle, wrong, random, refused);
  if (wrong > 0) throw CLI::RuntimeError(kMismatch);
}

}  // namespace

void add_prove(CLI::App& app) {
  auto options = std::make_shared<ProveOptions>();
  CLI::App* verb =
      app.add_subcommand("prove", "compare results without each graph pass, and with passes in other orders");
  verb->add_option("MODEL", options->models, "models, or folders of the ONNX backend suite")->required();
  options->inputs.add_to(*verb);
  verb->add_option("-t,--threads", options->proof.session.threads, "threads of a run")->check(CLI::Range(0, 1024));
  verb->add_option(
      "--tolerance", options->proof.tolerance,
      "of the largest element of an output (2e-4, or 0.1 for quantized models; of 16-bit floats two roundings)");
  verb->add_option("--orders", options->proof.orders, "other orders of the passes to try")->check(CLI::Range(0, 1000));
  verb->add_option("--only", options->proof.only, "leave out this pass alone");
  verb->callback([options] { prove(*options); });
}

}  // namespace lathe::tools
