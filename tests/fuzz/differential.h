#pragma once
// Runs one random graph in several ways that must agree, and cuts a case that does not agree down to little.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/pipeline.h"
#include "src/base/cpu.h"
#include "tests/fuzz/random_graph.h"

namespace lathe::testing {

struct Setting {
  int level = 99;
  std::vector<std::string> disabled = {};  // passes
  Isa isa = usable_isa();
  int threads = 1;
};
std::string to_string(const Setting& setting);

// Everything that is different between level 0 and `setting`: a line, or nullopt when results agree.
std::optional<std::string> difference(const RandomCase& what, const Setting& setting);

// Before and after these passes, through references only: checks passes apart from any kernel.
std::optional<std::string> difference_with(const RandomCase& what, const std::vector<Pass>& passes, bool binds_extents);
// The same for all passes in another order, with some left out.
std::optional<std::string> difference_in_any_order(const RandomCase& what, uint32_t order_seed);

using Check = std::function<std::optional<std::string>(const RandomCase&)>;
// Fewer recipes and outputs for which `check` still finds a difference. Requires: it finds one for `failing`.
RandomCase shrunk(RandomCase failing, const Check& check);

// The setting that a seed is tried with: a pass left out now and then, either ISA, one or two threads.
Setting random_setting(uint32_t seed);

}  // namespace lathe::testing
