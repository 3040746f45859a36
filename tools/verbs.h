#pragma once

namespace CLI {
class App;
}

namespace lathe::tools {

// Each verb is one file, cmd_<verb>.cpp: it adds its subcommand; the callback throws CLI::RuntimeError(exit code) when
// the verb ends with another code than 0.
void add_run(CLI::App& app);
void add_bench(CLI::App& app);
void add_bench_kernel(CLI::App& app);
void add_bisect(CLI::App& app);
void add_inspect(CLI::App& app);
void add_prove(CLI::App& app);
void add_test(CLI::App& app);
void add_tune(CLI::App& app);

}  // namespace lathe::tools
