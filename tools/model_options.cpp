#include "tools/model_options.h"

#include <CLI/CLI.hpp>
#include <map>

namespace lathe::tools {

void ModelOptions::add_to(CLI::App& verb) {
  verb.add_option("MODEL", model, "an ONNX file")->required();
  verb.add_option("-t,--threads", session.threads, "threads of a run (0: as many as the machine grants)")
      ->check(CLI::Range(0, 1024));
  verb.add_option("--optimization-level", session.optimization_level, "0 none, 1 basic, 2 extended, 3 layout, 99 all")
      ->check(CLI::Range(0, 99));
  verb.add_option("--disable-pass", session.disabled_passes, "leave out a graph pass, by name (repeatable)")
      ->allow_extra_args(false);
  verb.add_option("--custom-op", session.custom_op_libraries, "shared library with operators (repeatable)")
      ->allow_extra_args(false);
  verb.add_option("--cache", session.cache_path, "tuning cache to use");
  verb.add_flag("!--no-cache", session.use_cache, "ignore the tuning cache");
  const std::map<std::string, Accuracy> levels{
      {"strict", Accuracy::strict}, {"normal", Accuracy::normal}, {"fast", Accuracy::fast}};
  verb.add_option("--accuracy", session.accuracy, "strict, normal or fast")->transform(CLI::CheckedTransformer(levels));
}

}  // namespace lathe::tools
