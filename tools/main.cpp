#include <CLI/CLI.hpp>

#include <cstdio>
#include <new>
#include <string>

#include "lathe/error.h"
#include "tools/model_options.h"
#include "tools/verbs.h"

namespace {

using namespace lathe;

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_model:
    case ErrorCode::unsupported:
    case ErrorCode::io:
    case ErrorCode::limit:
      return tools::kCannotLoad;
    case ErrorCode::invalid_argument:
      return tools::kUsage;
    case ErrorCode::internal:
      return tools::kCannotRun;
  }
  return tools::kCannotRun;
}

// The parser only says that a verb is missing.
std::string usage_error(const CLI::App& app, int argc, char** argv, const std::string& what) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const auto has_name = [&](const CLI::App* known) { return known->get_name() == verb; };
  const bool is_known = verb.empty() || verb.front() == '-' || !app.get_subcommands(has_name).empty();
  return is_known ? what : "there is no verb '" + verb + "'";
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return tools::kGood;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "lathe: %s (see lathe --help)\n", usage_error(app, argc, argv, error.what()).c_str());
    return tools::kUsage;
  } catch (const Error& error) {
    std::fprintf(stderr, "lathe: %s\n", error.what());
    return exit_code_of(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lathe: out of memory\n");
    return tools::kCannotLoad;
  } catch (const std::exception& error) {
    if (std::ferror(stdout) != 0) return tools::kGood;  // main() says so
    std::fprintf(stderr, "lathe: internal error: %s; please report this as a bug\n", error.what());
    return tools::kCannotRun;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Lathe: runs ONNX models on x86-64 CPUs"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "lathe " LATHE_VERSION);
  tools::add_run(app);
  tools::add_bench(app);
  tools::add_bench_kernel(app);
  tools::add_inspect(app);
  tools::add_test(app);
  tools::add_tune(app);
  tools::add_bisect(app);
  tools::add_prove(app);
  const int code = run(app, argc, argv);
  // What was printed is lost when the disk behind stdout is full: nobody may take that for success.
  if (code != tools::kGood || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
  std::fprintf(stderr, "lathe: cannot write to standard output\n");
  return tools::kCannotLoad;
}
