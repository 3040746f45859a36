// fuzz_nodes [SECONDS [FIRST_SEED]]: nodes that mostly make no sense, until the time is over, in processes that may
// crash or hang; 0 seconds: that one seed, in this process. `make fuzz-nodes`.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/strange_node.h"

namespace {

using namespace lathe::testing;  // a program of its own

constexpr uint32_t kNodesOfAProcess = 500;
constexpr unsigned kLongestSeconds = 20;  // for one node

bool is_right(uint32_t seed) {
  const StrangeNode strange = strange_node(seed);
  const auto fault = fault_of(strange, seed);
  if (fault) std::printf("\nseed %u: %s\n%s\n", seed, fault->c_str(), describe(strange).c_str());
  return !fault;
}

// What the process is at.
struct Progress {
  uint32_t seed, failures;
};

void run_process(Progress& at, uint32_t end) {
  for (; at.seed < end; ++at.seed) {
    alarm(kLongestSeconds);
    at.failures += !is_right(at.seed);
  }
  std::fflush(stdout);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  const auto first = static_cast<uint32_t>(argc > 2 ? std::atoll(argv[2]) : 1000);
  if (seconds == 0) {
    std::printf("%s\n", describe(strange_node(first)).c_str());
    return is_right(first) ? 0 : 1;
  }
  auto* at = static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (at == MAP_FAILED) return 1;
  *at = {first, 0};
  const auto begin = std::chrono::steady_clock::now();
  while (at->failures < 40 &&
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) run_process(*at, at->seed + kNodesOfAProcess);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    std::printf("\nseed %u: the process ended by %s\n%s\n", at->seed,
                WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "itself", describe(strange_node(at->seed)).c_str());
    ++at->seed;
    ++at->failures;
  }
  std::printf("%u nodes from seed %u, %u of them went wrong\n", at->seed - first, first, at->failures);
  return at->failures > 0 ? 1 : 0;
}
