#include <cstdio>
#include <new>

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
  try {
    app.parse(argc, argv);
    return tools::kGood;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "lathe: %s (see lathe --help)\n", error.what());
    return tools::kUsage;
  } catch (const Error& error) {
    std::fprintf(stderr, "lathe: %s\n", error.what());
    return exit_code_of(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lathe: out of memory\n");
    return tools::kCannotLoad;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lathe: internal error: %s; please report this as a bug\n", error.what());
    return tools::kCannotRun;
  }
}
