#include "tuner/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lathe/error.h"
#include "tuner/candidate.h"

namespace lathe {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A machine whose time is a counter and whose kernels cost what a formula says.
class FakeMachine {
 public:
  std::function<double(const Candidate&)> cost_ns;
  std::function<bool(const Candidate&)> can_emit = [](const Candidate&) { return true; };
  std::function<double()> noise = [] { return 1.0; };
  nanoseconds build_time{50'000};
  int builds = 0;

  TunerClock clock() {
    return [this] { return now_; };
  }
  TuningTask task(std::vector<Knob> knobs, Candidate fallback) {
    TuningTask task;
    task.family = "fake.1";
    task.key = "fake";
    task.space.knobs = std::move(knobs);
    task.space.fallback = std::move(fallback);
    task.build = [this](const Candidate& candidate) -> Runner {
      ++builds;
      now_ += build_time;
      if (!can_emit(candidate)) return nullptr;
      return [this, ns = cost_ns(candidate)] { now_ += nanoseconds(static_cast<int64_t>(ns * noise())); };
    };
    return task;
  }

 private:
  nanoseconds now_{0};
};

const std::vector<Knob> kTwoKnobs = {{"a", {1, 2, 4, 8}}, {"b", {0, 1}}};

std::vector<Knob> many_knobs() {
  std::vector<Knob> knobs;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) knobs.push_back({name, {1, 2, 3, 4, 5, 6, 7, 8}});
  return knobs;
}

TEST(Search, FindsTheBestOfASmallSpace) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) { return 10'000.0 + 1000 * std::abs(c.at("a") - 4) + 500 * c.at("b"); };
  const SearchResult result = search(machine.task(kTwoKnobs, {{"a", 1}, {"b", 1}}), {}, machine.clock());
  EXPECT_EQ(to_string(result.winner), "a=4 b=0");
  EXPECT_EQ(result.nanoseconds, 10'000);
  EXPECT_DOUBLE_EQ(result.gain, 1.35);
  EXPECT_EQ(result.measured, 8U);
  EXPECT_TRUE(result.is_complete);
}

TEST(Search, FallbackStaysWhenNothingBeatsItByTheMargin) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) { return c.at("a") == 4 ? 99'000.0 : 100'000.0; };
  const TuningTask task = machine.task(kTwoKnobs, {{"a", 1}, {"b", 1}});
  EXPECT_EQ(to_string(search(task, {.margin = 0.02}, machine.clock()).winner), "a=1 b=1");
  EXPECT_EQ(search(task, {.margin = 0.005}, machine.clock()).winner.at("a"), 4);
}

TEST(Search, RespectsWhatTheSpaceAllows) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) { return 100'000.0 / c.at("a"); };
  TuningTask task = machine.task(kTwoKnobs, {{"a", 1}, {"b", 0}});
  task.space.allowed = [](const Candidate& c) { return c.at("a") < 8; };
  EXPECT_EQ(search(task, {}, machine.clock()).winner.at("a"), 4);
}

TEST(Search, SkipsCandidatesThatCannotBeEmitted) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) { return 100'000.0 / c.at("a"); };
  machine.can_emit = [](const Candidate& c) { return c.at("a") != 8; };
  const SearchResult result = search(machine.task(kTwoKnobs, {{"a", 1}, {"b", 0}}), {}, machine.clock());
  EXPECT_EQ(result.winner.at("a"), 4);
  EXPECT_EQ(result.rejected, 2U);
}

TEST(Search, WinsWithoutAFallbackThatCanBeEmitted) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) { return 100'000.0 / c.at("a"); };
  machine.can_emit = [](const Candidate& c) { return c.at("a") != 1; };
  EXPECT_EQ(search(machine.task(kTwoKnobs, {{"a", 1}, {"b", 0}}), {}, machine.clock()).winner.at("a"), 8);
}

TEST(Search, ReturnsTheFallbackWhenNothingCanBeEmitted) {
  FakeMachine machine;
  machine.can_emit = [](const Candidate&) { return false; };
  const SearchResult result = search(machine.task(kTwoKnobs, {{"a", 1}, {"b", 0}}), {}, machine.clock());
  EXPECT_EQ(to_string(result.winner), "a=1 b=0");
  EXPECT_EQ(result.measured, 0U);
}

TEST(Search, ClimbsInASpaceTooLargeToTryAll) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) {
    double cost = 20'000;
    for (const auto& [name, value] : c) cost += 2000 * std::abs(value - 6);
    return cost;
  };
  const Candidate fallback = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}};
  const SearchResult result =
      search(machine.task(many_knobs(), fallback), {.budget = milliseconds(200)}, machine.clock());
  EXPECT_EQ(to_string(result.winner), "a=6 b=6 c=6 d=6 e=6 f=6");
  EXPECT_LT(result.measured, 2000U);  // of 262,144
  EXPECT_FALSE(result.is_complete);
}

TEST(Search, EndsSoonAfterItsBudget) {
  for (milliseconds budget : {milliseconds(0), milliseconds(5), milliseconds(50)}) {
    FakeMachine machine;
    machine.cost_ns = [](const Candidate&) { return 1'000'000.0; };
    const Candidate fallback = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}};
    const SearchResult result = search(machine.task(many_knobs(), fallback), {.budget = budget}, machine.clock());
    EXPECT_EQ(result.winner, fallback);
    // One screening in progress and five final rounds of four.
    EXPECT_LT(machine.clock()(), budget + milliseconds(5 + 20 + 1)) << budget.count();
  }
}

TEST(Search, IsTheSameForTheSameSeed) {
  const auto run = [](uint64_t seed) {
    FakeMachine machine;
    machine.cost_ns = [](const Candidate& c) {
      return 20'000.0 + 977 * ((c.at("a") * 31 + c.at("b") * 17 + c.at("c")) % 89);
    };
    const Candidate fallback = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}, {"f", 1}};
    return search(machine.task(many_knobs(), fallback), {.budget = milliseconds(60), .seed = seed}, machine.clock());
  };
  EXPECT_EQ(run(3).winner, run(3).winner);
  EXPECT_EQ(run(3).measured, run(3).measured);
}

TEST(Search, SlowPhaseOfTheMachineDoesNotMakeAWinner) {
  // All candidates are alike; the machine runs at half speed while the fallback is screened.
  FakeMachine machine;
  int runs = 0;
  machine.cost_ns = [](const Candidate&) { return 50'000.0; };
  machine.noise = [&runs] { return ++runs < 8 ? 2.0 : 1.0; };
  const SearchResult result = search(machine.task(kTwoKnobs, {{"a", 2}, {"b", 0}}), {}, machine.clock());
  EXPECT_EQ(to_string(result.winner), "a=2 b=0");
}

// A shared machine: most runs are a little slower than they could be, some much.
double shared_machine(std::mt19937& random) {
  const double part = std::uniform_real_distribution<double>(0, 1)(random);
  return part < 0.1 ? 1.4 : 1 + 0.2 * part;
}

TEST(Search, NoiseDoesNotMakeAWinner) {
  int wrong = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    FakeMachine machine;
    std::mt19937 random(seed);
    machine.cost_ns = [](const Candidate&) { return 50'000.0; };
    machine.noise = [&random] { return shared_machine(random); };
    wrong += to_string(search(machine.task(kTwoKnobs, {{"a", 2}, {"b", 0}}), {}, machine.clock()).winner) != "a=2 b=0";
  }
  EXPECT_LE(wrong, 1);
}

TEST(Search, NoiseDoesNotHideAWinner) {
  int right = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    FakeMachine machine;
    std::mt19937 random(seed);
    machine.cost_ns = [](const Candidate& c) { return c.at("a") == 8 ? 46'000.0 : 50'000.0; };
    machine.noise = [&random] { return shared_machine(random); };
    right += search(machine.task(kTwoKnobs, {{"a", 2}, {"b", 0}}), {}, machine.clock()).winner.at("a") == 8;
  }
  EXPECT_GE(right, 95);
}

TEST(Search, GainIsOneWhereTheFallbackStays) {
  FakeMachine machine;
  int runs = 0;
  machine.cost_ns = [](const Candidate&) { return 50'000.0; };
  machine.noise = [&runs] { return ++runs % 7 == 0 ? 1.5 : 1.0; };
  EXPECT_EQ(search(machine.task(kTwoKnobs, {{"a", 2}, {"b", 0}}), {}, machine.clock()).gain, 1);
}

TEST(Search, TellsItsProgress) {
  FakeMachine machine;
  machine.cost_ns = [](const Candidate& c) { return 100'000.0 / c.at("a"); };
  size_t calls = 0;
  double last_best = 1e30;
  search(machine.task(kTwoKnobs, {{"a", 1}, {"b", 0}}), {}, machine.clock(), [&](const SearchProgress& progress) {
    EXPECT_EQ(progress.measured, ++calls);
    EXPECT_LE(progress.best_ns, last_best);
    EXPECT_EQ(progress.fallback_ns, 100'000);
    ASSERT_NE(progress.best, nullptr);
    last_best = progress.best_ns;
  });
  EXPECT_EQ(calls, 8U);
  EXPECT_EQ(last_best, 12'500);
}

TEST(Candidate, TextRoundTrips) {
  const Candidate candidate = {{"vecs", 2}, {"rows", 14}, {"k_unroll", -1}};
  EXPECT_EQ(to_string(candidate), "k_unroll=-1 rows=14 vecs=2");
  EXPECT_EQ(parse_candidate(to_string(candidate)), candidate);
  EXPECT_EQ(parse_candidate(""), Candidate());
}

TEST(Candidate, RejectsWhatIsNotOne) {
  for (const char* text : {"rows", "rows=", "=3", "rows=x", "rows=3x", "rows=3  vecs=2", "rows=99999999999", "a=1 a=1"})
    EXPECT_THROW(parse_candidate(text), Error) << text;
}

TEST(Candidate, IsValidOnlyWithExactlyTheKnobsAndTheirChoices) {
  SearchSpace space{.knobs = kTwoKnobs, .allowed = nullptr, .fallback = {}};
  EXPECT_TRUE(is_valid(space, {{"a", 8}, {"b", 1}}));
  EXPECT_FALSE(is_valid(space, {{"a", 8}}));
  EXPECT_FALSE(is_valid(space, {{"a", 3}, {"b", 1}}));
  EXPECT_FALSE(is_valid(space, {{"a", 8}, {"b", 1}, {"c", 1}}));
  EXPECT_FALSE(is_valid(space, {{"a", 8}, {"c", 1}}));
  space.allowed = [](const Candidate& c) { return c.at("b") == 0; };
  EXPECT_FALSE(is_valid(space, {{"a", 8}, {"b", 1}}));
}

}  // namespace
}  // namespace lathe
