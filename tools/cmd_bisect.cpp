// lathe bisect MODEL: the first node, kernel or pass whose result departs from the plain reference.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "graph/model.h"
#include "ops/op_def.h"
#include "tools/bisect.h"
#include "tools/model_inputs.h"
#include "tools/model_options.h"
#include "tools/verbs.h"

namespace lathe::tools {
namespace {

struct BisectOptions {
  ModelOptions model;
  InputOptions inputs;
  Tolerance tolerance;
};

void bisect(const BisectOptions& options) {
  const Session session = Session::load(options.model.model, options.model.session);
  const std::vector<Tensor> inputs = make_inputs(session, options.inputs);
  const Model model = import_model_file(options.model.model, OpRegistry::builtin());
  const auto found = find_departure(*model.graph, inputs, options.model.session, options.tolerance);
  if (!found) {
    fmt::print("nothing departs from the reference (atol {}, rtol {})\n", options.tolerance.atol,
               options.tolerance.rtol);
    return;
  }
  if (found->kind == Departure::Kind::node) {
    fmt::print("node '{}' ({}) departs first: {}\n", found->name, found->operation, found->difference);
  } else {
    fmt::print("every node is right by itself; with pass '{}' the results depart: {}\n", found->name,
               found->difference);
  }
  throw CLI::RuntimeError(kMismatch);
}

}  // namespace

void add_bisect(CLI::App& app) {
  auto options = std::make_shared<BisectOptions>();
  CLI::App* verb = app.add_subcommand("bisect", "find the first node or pass whose result departs from the reference");
  options->model.add_to(*verb);
  options->inputs.add_to(*verb);
  verb->add_option("--atol", options->tolerance.atol, "absolute tolerance");
  verb->add_option("--rtol", options->tolerance.rtol, "relative tolerance");
  verb->callback([options] { bisect(*options); });
}

}  // namespace lathe::tools
