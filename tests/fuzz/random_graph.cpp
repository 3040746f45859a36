#include "tests/fuzz/random_graph.h"

#include <random>

#include "graph/text.h"
#include "tests/fuzz/graph_maker.h"

namespace lathe::testing {
namespace {

constexpr uint32_t kMostRecipes = 14;

}  // namespace

RandomCase random_case(uint32_t seed) {
  std::mt19937 random(seed);
  RandomCase result;
  result.seed = seed;
  result.has_symbol = random() % 3 == 0;
  const uint32_t count = 2 + random() % (kMostRecipes - 1);
  for (uint32_t i = 0; i < count; ++i) {
    Recipe recipe;
    recipe.kind = random();
    for (uint32_t& pick : recipe.picks) pick = random();
    recipe.is_output = random() % 10 == 0;
    result.recipes.push_back(recipe);
  }
  return result;
}

BuiltCase build(const RandomCase& what) {
  GraphMaker maker(what.seed);
  maker.add_inputs();
  const std::vector<PatternFn*>& patterns = all_patterns();
  for (const Recipe& recipe : what.recipes) {
    const size_t before = maker.values().size();
    patterns[recipe.kind % patterns.size()](maker, recipe);
    if (recipe.is_output && maker.values().size() > before) maker.mark_output(maker.values().back().id);
  }
  maker.mark_output(maker.values().back().id);
  return maker.finish(what.has_symbol);
}

std::string describe(const RandomCase& what) {
  return "seed " + std::to_string(what.seed) + (what.has_symbol ? ", open first extent" : "") + ", " +
         std::to_string(what.recipes.size()) + " recipes:\n" + to_text(build(what).graph);
}

}  // namespace lathe::testing
