// fuzz_graphs [SECONDS [FIRST_SEED]]: random graphs, optimized and not, until the time is over. `make fuzz-graphs`.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/differential.h"

namespace {

using namespace lathe::testing;  // a program of its own

bool agrees(const RandomCase& what, const Check& check, const std::string& how) {
  if (!check(what)) return true;
  const RandomCase small = shrunk(what, check);
  std::printf("\n%s\n%s\n%s\n", how.c_str(), check(small)->c_str(), describe(small).c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  auto seed = static_cast<uint32_t>(argc > 2 ? std::atoll(argv[2]) : 1000);
  const uint32_t first = seed;
  const auto begin = std::chrono::steady_clock::now();
  int failures = 0;
  for (; std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds; ++seed) {
    const RandomCase what = random_case(seed);
    const Setting setting = random_setting(seed);
    const bool runs = agrees(
        what, [&](const RandomCase& c) { return difference(c, setting); }, to_string(setting));
    const bool passes = agrees(
        what, [&](const RandomCase& c) { return difference_in_any_order(c, seed); }, "passes in any order");
    failures += !(runs && passes);
    if (failures >= 5) break;
  }
  std::printf("%u graphs from seed %u, %d of them went wrong\n", seed - first, first, failures);
  return failures > 0 ? 1 : 0;
}
